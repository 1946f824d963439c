"""100,000 × 80 labels in folds and in two splits: ours beside iterative-stratification and scikit-multilearn.

In seconds, in how far the parts are from their shares, and in groups that are divided. Both rivals are optional:
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
    """This package's, every image for itself; with the time that a dense matrix takes to become sparse."""
    return stratify(csr_array(labels), np.ones(len(labels), dtype=np.int64), shares, seed=seed, keep=None)


def ours_in_groups(group: NDArray[np.int64]) -> Splitter:
    """This package's, groups whole."""

    def split(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
        member = csr_array((np.ones(len(group), dtype=np.int64), (group, np.arange(len(group)))))
        return stratify(member @ csr_array(labels), np.bincount(group), shares, seed=seed, keep=None)[group]

    return split


def iterative_stratifications(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
    """Its folds where shares are equal, otherwise its two splits; it has no others."""
    its = import_module("iterstrat.ml_stratifiers")
    if len(shares) == 2:
        divider = its.MultilabelStratifiedShuffleSplit(n_splits=1, test_size=shares[1], random_state=seed)
        return _parts([rest for rest, _ in divider.split(labels, labels)], len(labels), others=1)
    folds = its.MultilabelStratifiedKFold(len(shares), shuffle=True, random_state=seed).split(labels, labels)
    return _parts([fold for _, fold in folds], len(labels))


def scikit_multilearns(labels: Labels, shares: Sequence[float], seed: int) -> Parts:
    """Its first order: single labels, as the others have it. It draws from numpy's own generator."""
    its = import_module("skmultilearn.model_selection")
    np.random.seed(seed)  # noqa: NPY002  # it knows no other
    divider = its.IterativeStratification(len(shares), order=1, sample_distribution_per_fold=list(shares))
    return _parts([fold for _, fold in divider.split(labels, labels)], len(labels))


def _parts(folds: Sequence[Sequence[int]], images: int, others: int = 0) -> Parts:
    part = np.full(images, others)
    for number, fold in enumerate(folds):
        part[fold] = number
    return part


def rivals(without: Sequence[str]) -> dict[str, Splitter]:
    """Who takes part besides ours."""
    tried: dict[str, Splitter] = {
        "iterative-stratification": iterative_stratifications,
        "scikit-multilearn": scikit_multilearns,
    }
    found = {}
    few = np.tile(np.eye(2, dtype=np.int64), (10, 1))
    for name in sorted(tried.keys() - set(without)):
        try:
            tried[name](few, [0.5, 0.5], 0)
            found[name] = tried[name]
        except ImportError:
            print(f"{name} is not installed and takes no part; to change that: pip install {name}")
    return found


def made(images: int, classes: int) -> tuple[Labels, NDArray[np.int64]]:
    """Labels as frequent and as rare as in MS-COCO, which come together by scene, and groups of one to many images."""
    rng = np.random.default_rng(0)
    scenes = 12
    rate = np.geomspace(0.5, 0.0003, classes)
    near = rng.integers(0, scenes, classes) == rng.integers(0, scenes, (images, 1))
    chance = np.minimum(rate * np.where(near, 0.6 * scenes, 0.4 * scenes / (scenes - 1)), 0.95)
    labels = (rng.random((images, classes)) < chance).astype(np.int64)
    sizes = rng.zipf(1.8, images).clip(max=max(1, images // 100))
    return labels, rng.permutation(np.repeat(np.arange(images), sizes)[:images])


class Balance(NamedTuple):
    """How far parts are from their shares, of the classes on average and of the images; and groups in several parts."""

    classes: float
    images: float
    divided: int


def balance(labels: Labels, part: Parts, shares: Sequence[float], group: NDArray[np.int64]) -> Balance:
    """Mean over classes and parts of |share of the positives − wanted share|, and the same of the images."""
    ones = np.ones(len(part), dtype=np.int64)
    positives = csr_array((ones, (part, np.arange(len(part)))), (len(shares), len(part))) @ labels
    positives = positives[:, labels.any(axis=0)]
    wanted = np.array(shares)
    classes = np.abs(positives / positives.sum(axis=0) - wanted[:, None]).mean()
    images = np.abs(np.bincount(part, minlength=len(shares)) / len(part) - wanted).mean()
    divided = (csr_array((ones, (group, part))).astype(bool).sum(axis=1) > 1).sum()
    return Balance(float(classes), float(images), int(divided))


def compare(
    labels: Labels, group: NDArray[np.int64], shares: Sequence[float], rounds: int, without: Sequence[str]
) -> None:
    """Print times of all in turn with their ratios, and the mean balance over the rounds' seeds."""
    splitters = {"probmcl": ours, "probmcl, groups whole": ours_in_groups(group), **rivals(without)}
    found: dict[str, list[Balance]] = {name: [] for name in splitters}
    ours(labels[:1000], shares, 0)  # what is imported late; the rivals had this when they were looked for

    def timer(name: str) -> Callable[[], float]:
        def call() -> float:
            start = time.process_time()  # none has threads, and so other work on the machine counts less
            part = splitters[name](labels, shares, len(found[name]))
            seconds = time.process_time() - start
            found[name].append(balance(labels, part, shares, group))
            return seconds

        return call

    times = alternate({name: timer(name) for name in splitters}, rounds, "s of processor time")
    for name, balances in found.items():
        classes, images, divided = np.mean(balances, axis=0)
        far = f"from the wanted share: classes {classes:.6f}, images {images:.6f}; groups divided: {divided:,.0f}"
        print(f"{name} takes {median_ratio(times[name], times['probmcl']):.2f} times as long as probmcl; {far}")


def main() -> None:
    """Folds, then a train and a test split."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--images", type=int, default=100_000, help="rows; scikit-multilearn's time grows with their square"
    )
    parser.add_argument("--classes", type=int, default=80, help="columns")
    parser.add_argument("--folds", type=int, default=5, help="parts of equal share")
    parser.add_argument("--test", type=float, default=0.2, help="share of the smaller of two parts")
    parser.add_argument("--without", nargs="*", default=[], metavar="NAME", help="rivals that take no part")
    parser.add_argument("--rounds", type=int, default=3, help="seeds, for each of which every rival is called")
    args = parser.parse_args()
    labels, group = made(args.images, args.classes)
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
