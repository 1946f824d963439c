"""Compare the mAP computation for 40,000 × 80 scores with torchmetrics and scikit-learn: time, and exactness with ties.

torchmetrics is optional: pip install torchmetrics.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: waiting threads must not spin on busy cores

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
    """Return the average precision computed by probmcl."""
    return average_precision(scores, labels).numpy()


def scikit_learn(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
    """Return the average precision computed by scikit-learn, the reference."""
    return np.asarray(average_precision_score(labels.numpy(), scores.numpy(), average=None))


def scorers() -> dict[str, Scorer]:
    """Return the competitors; torchmetrics only if it is installed."""
    result: dict[str, Scorer] = {"probmcl": ours, "scikit-learn": scikit_learn}
    try:
        from torchmetrics.functional.classification import multilabel_average_precision
    except ImportError:
        print("torchmetrics is not installed and is skipped; to include it: pip install torchmetrics")
        return result

    def torchmetrics(scores: Tensor, labels: Tensor) -> NDArray[np.float64]:
        values = multilabel_average_precision(scores, labels, num_labels=labels.shape[1], average=None)
        return np.asarray(values.numpy(), dtype=np.float64)

    return result | {"torchmetrics": torchmetrics}


def make_scores(images: int, classes: int) -> tuple[Tensor, Tensor]:
    """Return fairly good scores, and labels as rare as those of MS-COCO."""
    generator = torch.Generator().manual_seed(0)
    rate = 0.3 * torch.rand(classes, generator=generator) ** 3 + 0.003
    labels = (torch.rand(images, classes, generator=generator) < rate).long()
    return (torch.randn(images, classes, generator=generator) + 2.0 * labels - 3.0).sigmoid(), labels


def timer(scorer: Scorer, scores: Tensor, labels: Tensor) -> Callable[[], float]:
    """Return a function that measures one call in seconds."""

    def call() -> float:
        start = time.perf_counter()
        scorer(scores, labels)
        return time.perf_counter() - start

    return call


def main() -> None:
    """Print time ratios, then the largest difference from scikit-learn in any class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--images", type=int, default=40_000, help="rows")
    parser.add_argument("--classes", type=int, default=80, help="columns")
    parser.add_argument("--rounds", type=int, default=7, help="calls per competitor")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="torchmetrics")
    (scores, labels), competitors = make_scores(args.images, args.classes), scorers()
    for scorer in competitors.values():
        scorer(scores[:1000], labels[:1000])
    times = alternate({name: timer(scorer, scores, labels) for name, scorer in competitors.items()}, args.rounds, "s")
    for name in competitors:
        print(f"{name} takes {median_ratio(times[name], times['probmcl']):.2f} times as long as probmcl")
    tied = scores.round(decimals=2)
    exact = scikit_learn(tied, labels)
    for name, scorer in competitors.items():
        difference = np.abs(scorer(tied, labels) - exact).max()
        print(
            f"{name}, scores rounded to two digits: differs from scikit-learn by at most {difference:.1e} in any class"
        )


if __name__ == "__main__":
    main()
