"""mAP of 40,000 × 80 scores: ours beside torchmetrics and scikit-learn, in seconds and, on ties, in exactness.

torchmetrics is optional: pip install torchmetrics.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: threads that wait on busy cores must not spin

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score
from torch import Tensor

from probmcl.evaluation import average_precision
from probmcl.runtime import torchvision_compat  # noqa: F401  # before torchmetrics, which imports torchvision
from rounds import alternate, median_ratio

Scorer = Callable[[Tensor, Tensor], NDArray[np.float64]]


def ours(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """This package's."""
    return average_precision(scores, labels).numpy()


def scikit_learns(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """The reference."""
    return np.asarray(average_precision_score(labels.numpy(), scores.numpy(), average=None))


def scorers() -> dict[str, Scorer]:
    """Who takes part."""
    found: dict[str, Scorer] = {"probmcl": ours, "scikit-learn": scikit_learns}
    try:
        from torchmetrics.functional.classification import multilabel_average_precision
    except ImportError:
        print("torchmetrics is not installed and takes no part; to change that: pip install torchmetrics")
        return found

    def torchmetrics_s(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
        values = multilabel_average_precision(scores, labels, num_labels=labels.shape[1], average=None)
        return np.asarray(values.numpy(), dtype=np.float64)

    return found | {"torchmetrics": torchmetrics_s}


def made(images: int, classes: int) -> tuple[Tensor, Tensor]:
    """Scores that are fairly good, and labels as rare as those of MS-COCO."""
    generator = torch.Generator().manual_seed(0)
    rate = 0.3 * torch.rand(classes, generator=generator) ** 3 + 0.003
    labels = (torch.rand(images, classes, generator=generator) < rate).long()
    return (torch.randn(images, classes, generator=generator) + 2.0 * labels - 3.0).sigmoid(), labels


def timer(scorer: Scorer, scores: Tensor, labels: Tensor) -> Callable[[], float]:
    """Seconds of one call."""

    def call() -> float:
        start = time.perf_counter()
        scorer(scores, labels)
        return time.perf_counter() - start

    return call


def main() -> None:
    """Print ratios of time, then the largest difference from scikit-learn in any class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--images", type=int, default=40_000, help="rows")
    parser.add_argument("--classes", type=int, default=80, help="columns")
    parser.add_argument("--rounds", type=int, default=7, help="calls of each")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="torchmetrics")
    (scores, labels), rivals = made(args.images, args.classes), scorers()
    for scorer in rivals.values():
        scorer(scores[:1000], labels[:1000])
    found = alternate({name: timer(scorer, scores, labels) for name, scorer in rivals.items()}, args.rounds, "s")
    for name in rivals:
        print(f"{name} takes {median_ratio(found[name], found['probmcl']):.2f} times as long as probmcl")
    tied = scores.round(decimals=2)
    exact = scikit_learns(tied, labels)
    for name, scorer in rivals.items():
        difference = np.abs(scorer(tied, labels) - exact).max()
        print(f"{name} on scores rounded to two digits: at most {difference:.1e} from scikit-learn in any class")


if __name__ == "__main__":
    main()
