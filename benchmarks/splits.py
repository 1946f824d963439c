"""Compare stratified folds and splits of 100,000 × 80 labels with iterative-stratification and scikit-multilearn.

The script measures time, balance and the number of divided groups. Both competitors are optional:
pip install iterative-stratification scikit-multilearn.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from probmcl.data.stratify import stratify
from rounds import alternate, median_ratio

Labels = NDArray[np.int64]
Parts = NDArray[np.int64]
Splitter = Callable[[Labels, Sequence[float], int], Parts]


def ours(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
    """Split with probmcl without groups, including the conversion to a sparse matrix."""
    return stratify(csr_array(labels), np.ones(len(labels), dtype=np.int64), shares, seed=seed, keep=None)


def ours_in_groups(group: NDArray[np.int64]) -> Splitter:
    """Return a splitter that uses probmcl and keeps groups together."""

    def split(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
        membership = csr_array((np.ones(len(group), dtype=np.int64), (group, np.arange(len(group)))))
        return stratify(membership @ csr_array(labels), np.bincount(group), shares, seed=seed, keep=None)[group]

    return split


def iterative_stratification(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
    """Split with iterative-stratification: two splits, or folds of equal size."""
    module = import_module("iterstrat.ml_stratifiers")
    if len(shares) == 2:
        splitter = module.MultilabelStratifiedShuffleSplit(n_splits=1, test_size=shares[1], random_state=seed)
        return _parts([rest for rest, _ in splitter.split(labels, labels)], len(labels), others=1)
    folds = module.MultilabelStratifiedKFold(len(shares), shuffle=True, random_state=seed).split(labels, labels)
    return _parts([fold for _, fold in folds], len(labels))


def scikit_multilearn(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
    """Split with scikit-multilearn at order 1, which balances single labels as the others do."""
    module = import_module("skmultilearn.model_selection")
    np.random.seed(seed)  # noqa: NPY002  # it uses numpy's global generator
    splitter = module.IterativeStratification(len(shares), order=1, sample_distribution_per_fold=list(shares))
    return _parts([fold for _, fold in splitter.split(labels, labels)], len(labels))


def _parts(folds: Sequence[Sequence[int]], images: int, others: int = 0) -> Parts:
    part = np.full(images, others)
    for number, fold in enumerate(folds):
        part[fold] = number
    return part


def competitors(without: Sequence[str]) -> dict[str, Splitter]:
    """Return the competitors that are installed."""
    splitters: dict[str, Splitter] = {
        "iterative-stratification": iterative_stratification,
        "scikit-multilearn": scikit_multilearn,
    }
    installed = {}
    labels = np.tile(np.eye(2, dtype=np.int64), (10, 1))
    for name in sorted(splitters.keys() - set(without)):
        try:
            splitters[name](labels, [0.5, 0.5], 0)
            installed[name] = splitters[name]
        except ImportError:
            print(f"{name} is not installed and is skipped; to include it: pip install {name}")
    return installed


def make_labels(images: int, classes: int) -> tuple[Labels, NDArray[np.int64]]:
    """Return labels that have MS-COCO's frequencies and co-occur by scene, and groups of different sizes."""
    rng = np.random.default_rng(0)
    scenes = 12
    rate = np.geomspace(0.5, 0.0003, classes)
    same_scene = rng.integers(0, scenes, classes) == rng.integers(0, scenes, (images, 1))
    chance = np.minimum(rate * np.where(same_scene, 0.6 * scenes, 0.4 * scenes / (scenes - 1)), 0.95)
    labels = (rng.random((images, classes)) < chance).astype(np.int64)
    sizes = rng.zipf(1.8, images).clip(max=max(1, images // 100))
    return labels, rng.permutation(np.repeat(np.arange(images), sizes)[:images])


class Balance(NamedTuple):
    """Mean deviation from the requested shares, for classes and for images, and the number of divided groups."""

    classes: float
    images: float
    divided: int


def balance(labels: Labels, part: Parts, shares: Sequence[float], group: NDArray[np.int64]) -> Balance:
    """Return the mean over classes and parts of |share of the positives − requested share|, also for images."""
    ones = np.ones(len(part), dtype=np.int64)
    positives = csr_array((ones, (part, np.arange(len(part)))), (len(shares), len(part))) @ labels
    positives = positives[:, labels.any(axis=0)]
    requested = np.array(shares)
    classes = np.abs(positives / positives.sum(axis=0) - requested[:, None]).mean()
    images = np.abs(np.bincount(part, minlength=len(shares)) / len(part) - requested).mean()
    divided = (csr_array((ones, (group, part))).astype(bool).sum(axis=1) > 1).sum()
    return Balance(float(classes), float(images), int(divided))


def compare(
    labels: Labels, group: NDArray[np.int64], shares: Sequence[float], rounds: int, without: Sequence[str]
) -> None:
    """Print the time ratios, and the mean balance over the seeds of the rounds."""
    splitters = {"probmcl": ours, "probmcl with groups": ours_in_groups(group), **competitors(without)}
    balances: dict[str, list[Balance]] = {name: [] for name in splitters}
    ours(labels[:1000], shares, 0)  # triggers late imports; the competitors were called once already

    def timer(name: str) -> Callable[[], float]:
        def call() -> float:
            start = time.process_time()  # CPU time depends less on other work; none of them uses threads
            part = splitters[name](labels, shares, len(balances[name]))
            seconds = time.process_time() - start
            balances[name].append(balance(labels, part, shares, group))
            return seconds

        return call

    times = alternate({name: timer(name) for name in splitters}, rounds, "s of CPU time")
    for name, values in balances.items():
        classes, images, divided = np.mean(values, axis=0)
        summary = f"mean deviation: classes {classes:.6f}, images {images:.6f}; groups divided: {divided:,.0f}"
        print(f"{name} takes {median_ratio(times[name], times['probmcl']):.2f} times as long as probmcl; {summary}")


def main() -> None:
    """Compare folds, then a train and test split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--images", type=int, default=100_000, help="rows; the time of scikit-multilearn is quadratic in them"
    )
    parser.add_argument("--classes", type=int, default=80, help="columns")
    parser.add_argument("--folds", type=int, default=5, help="number of folds")
    parser.add_argument("--test", type=float, default=0.2, help="share of the test split")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="competitors to skip")
    parser.add_argument("--rounds", type=int, default=3, help="seeds; every competitor is called once per seed")
    args = parser.parse_args()
    labels, group = make_labels(args.images, args.classes)
    positives, groups = labels.sum(axis=0), np.bincount(group)
    print(f"{args.images:,} images; {labels.sum(axis=1).mean():.1f} labels each; positives of a class: ", end="")
    print(f"{positives.min():,} to {positives.max():,}; {len(groups):,} groups of up to {groups.max():,} images")
    for title, shares in {
        f"{args.folds} folds": [1 / args.folds] * args.folds,
        f"train and test, {args.test:g} of the images": [1 - args.test, args.test],
    }.items():
        print(f"\n{title}")
        compare(labels, group, shares, args.rounds, args.without)


if __name__ == "__main__":
    main()
