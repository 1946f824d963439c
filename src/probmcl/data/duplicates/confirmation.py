"""From which correlation on two images are the same picture: it depends on how alike all images of a set are."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from probmcl.data.duplicates.candidates import Lookalikes

CONFIRMED, DOUBTFUL = 0.92, 0.8
"""Correlations from which on a pair is a copy, and from which on it is worth a word.

Planted copies that are confirmed (`benchmarks/duplicates.py`): encoded anew, resized or flipped, at least 99.8 % in
1,000 photographs each of PASCAL VOC and MS-COCO (`seed=2`), 100 % in 500 synthetic tissue patches and 500 synthetic
chest radiographs (`seed=1`); cropped by 2 to 6 % a side, at least 99.6 %, 100 % and 97 %. Different images confirmed:
none. The limits were chosen on other seeds, but a quarter of the VOC draw and an eighth of the MS-COCO draw had been
seen. Among all 6,703 photographs of VOC 2 pairs are confirmed and among 14,000 of MS-COCO 1: all show a scene twice,
moments apart.
"""

BEYOND_CONFIRMED, BEYOND_DOUBTFUL = 5.5, 4.5
"""Where any two images of a set are alike, a copy must be more so: by so many deviations, of log(1 - correlation).

In the synthetic radiographs pairs at random have 0.95 at the median, and a pair must reach 0.996 to be confirmed.
"""

SAMPLE = 300
FEWEST = 40  # images, below which a sample says nothing


def sample_pairs(count: int) -> Lookalikes:
    """Some pairs at random, which tell how alike any two images of the set are."""
    size = SAMPLE if count >= FEWEST else 0
    rng = np.random.default_rng(0)
    ones = rng.integers(0, max(count, 1), size)
    others = (ones + rng.integers(1, max(count, 2), size)) % max(count, 1)
    return Lookalikes(ones, others, np.zeros(size, dtype=bool), np.zeros(size, dtype=np.uint8))


def limits(sample: Float[ndarray, "K"]) -> tuple[float, float]:
    """From which correlations on a pair is confirmed and doubtful, given those of pairs at random.

    >>> confirmed, doubtful = limits(np.full(300, 0.96) + 0.01 * np.sin(np.arange(300)))
    >>> 0.98 < doubtful < confirmed < 1
    True
    """
    if not len(sample):
        return CONFIRMED, DOUBTFUL
    unlike = np.log(np.maximum(1 - sample, 1e-6))
    middle = float(np.median(unlike))
    deviation = 1.4826 * float(np.median(np.abs(unlike - middle)))
    beyond = [1 - math.exp(middle - times * deviation) for times in (BEYOND_CONFIRMED, BEYOND_DOUBTFUL)]
    return max(CONFIRMED, beyond[0]), max(DOUBTFUL, beyond[1])
