"""How many planted copies are found, and how many different images are taken for copies; and what looking costs.

Copies of photographs and of synthetic sets that look alike are encoded anew, resized, flipped and cropped. A pair of
two originals that is confirmed is a false alarm, unless the data hold it twice: --sheet shows them, to be looked at.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from lookalike_sets import radiograph, tissue
from probmcl.data.duplicates.candidates import candidate_pairs
from probmcl.data.duplicates.hashing import SIZE, Fingerprint, fingerprints
from probmcl.data.duplicates.search import NearPair, exact_duplicates, near_duplicates
from probmcl.data.images import read_image
from rounds import alternate, median_ratio

Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def resized(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """0.4 to 1.5 times as large."""
    share = rng.uniform(0.4, 1.5)
    return image.resize((round(image.width * share), round(image.height * share)), Image.Resampling.BICUBIC)


def flipped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Left and right exchanged."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Without 2 to 6 % on each side."""
    left, top, right, bottom = rng.uniform(0.02, 0.06, 4)
    width, height = image.size
    return image.crop(
        (round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height))
    )


KINDS: dict[str, tuple[tuple[Change, ...], str]] = {
    "encoded as JPEG, quality 30 to 90": ((), ".jpg"),
    "encoded as PNG": ((), ".png"),
    "resized, 0.4 to 1.5": ((resized,), ".png"),
    "flipped": ((flipped,), ".png"),
    "cropped, 2 to 6 % a side": ((cropped,), ".png"),
    "resized, as JPEG": ((resized,), ".jpg"),
    "flipped and resized, as JPEG": ((flipped, resized), ".jpg"),
    "cropped and resized, as JPEG": ((cropped, resized), ".jpg"),
    "flipped, cropped and resized, as JPEG": ((flipped, cropped, resized), ".jpg"),
}


class Rates(NamedTuple):
    """Of each kind how many copies were planted, were candidates and were confirmed; and pairs that are no copies."""

    planted: Counter[str]
    candidates: Counter[str]
    confirmed: Counter[str]
    alarms: list[tuple[Path, Path, NearPair]]
    doubtful: int


def rates(originals: Sequence[Path], rounds: int, workers: int, seed: int) -> Rates:
    """Plant one copy of each original a round, of the next kind in turn, and look for them."""
    found = Rates(Counter(), Counter(), Counter(), [], 0)
    for turn in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng((seed, turn))
            kinds = [list(KINDS)[(row + turn) % len(KINDS)] for row in range(len(originals))]
            copies = [planted(path, kind, Path(folder), rng) for path, kind in zip(originals, kinds, strict=True)]
            found = _counted(found, [*originals, *copies], kinds, workers)
        print(f"  round {turn + 1} of {rounds}: {sum(found.confirmed.values()):,} copies confirmed", flush=True)
    return found


def planted(path: Path, kind: str, folder: Path, rng: np.random.Generator) -> Path:
    """Write a copy of some kind."""
    changes, suffix = KINDS[kind]
    with Image.open(path) as image:
        copy = image.convert("RGB")
    for change in changes:
        copy = change(copy, rng)
    target = folder / f"{path.stem}{suffix}"
    if suffix == ".jpg":
        copy.save(target, quality=int(rng.integers(30, 91)))
    else:
        copy.save(target, compress_level=1)  # not Pillow's own, or a PNG would come out byte by byte the same
    return target


def _counted(before: Rates, paths: Sequence[Path], kinds: Sequence[str], workers: int) -> Rates:
    """Copy k is row K + k."""
    taken = fingerprints(paths, workers=workers)
    near = near_duplicates(paths, taken, workers=workers)
    confirmed = {(pair.one, pair.other) for pair in near if pair.confirmed}
    candidates = _candidates(taken)
    alarms, doubtful = list(before.alarms), before.doubtful
    for row, kind in enumerate(kinds):
        before.planted[kind] += 1
        before.candidates[kind] += (row, row + len(kinds)) in candidates
        before.confirmed[kind] += (row, row + len(kinds)) in confirmed
    for pair in near:
        if pair.other - pair.one != len(kinds):
            one, other = paths[pair.one % len(kinds)], paths[pair.other % len(kinds)]
            doubtful += not pair.confirmed
            alarms += [(one, other, pair)] if pair.confirmed else []
    return before._replace(alarms=alarms, doubtful=doubtful)


def _candidates(taken: Sequence[Fingerprint]) -> set[tuple[int, int]]:
    hashes = np.array([(one.phash, one.inner_phash) for one in taken], dtype=np.uint64)
    pairs = candidate_pairs(hashes[:, 0], hashes[:, 1])
    return set(zip(pairs.ones.tolist(), pairs.others.tolist(), strict=True))


def report(name: str, count: int, found: Rates) -> list[tuple[Path, Path]]:
    """Print a table and return the pairs of originals that were taken for copies."""
    print(f"\n{name}: {count:,} images; share of planted copies that are candidates, and that are confirmed")
    for kind in KINDS:
        if found.planted[kind]:
            shares = [counted[kind] / found.planted[kind] for counted in (found.candidates, found.confirmed)]
            print(f"  {kind:40} {shares[0]:7.2%} {shares[1]:7.2%}  of {found.planted[kind]:,}")
    pairs = sorted({(min(one, other), max(one, other)) for one, other, _ in found.alarms})
    print(f"  pairs of different originals confirmed: {len(pairs)}; doubtful pairs in all rounds: {found.doubtful}")
    for one, other in pairs:
        best = max(pair.correlation for a, b, pair in found.alarms if {a, b} == {one, other})
        print(f"    {one.name} and {other.name}: correlation {best:.3f}")
    return pairs


def contact_sheet(pairs: Sequence[tuple[Path, Path]], target: Path) -> None:
    """Pairs side by side, four in a row, to be looked at."""
    sheet = Image.new("RGB", (4 * 340, max(1, (len(pairs) + 3) // 4) * 170), "white")
    for number, pair in enumerate(pairs):
        for place, path in enumerate(pair):
            corner = (number % 4 * 340 + place * 162, number // 4 * 170)
            sheet.paste(read_image(path).resize((160, 160)), corner)
    sheet.save(target)
    print(f"{len(pairs)} pairs in {target}")


def cost(paths: Sequence[Path], workers: int, rounds: int) -> None:
    """Time of fingerprints and of looking for duplicates, as ratio to reading every image as small."""

    def plain() -> float:
        start = time.perf_counter()
        for path in paths:
            read_image(path, SIZE)
        return time.perf_counter() - start

    def taken() -> float:
        start = time.perf_counter()
        fingerprints(paths)
        return time.perf_counter() - start

    found = fingerprints(paths, workers=workers)

    def compared() -> float:
        start = time.perf_counter()
        near_duplicates(paths, found)
        return time.perf_counter() - start

    times = alternate({"read": plain, "fingerprints": taken, "near duplicates": compared}, rounds, "s")
    for name in ("fingerprints", "near duplicates"):
        print(f"{len(paths):,} images: {name} takes {median_ratio(times[name], times['read']):.2f} of plain reading")
    sets = exact_duplicates(found)
    print(f"exact duplicates: {len(sets)} sets; all by one process")


def main() -> None:
    """Rates of the synthetic sets, then of each folder, then the cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="folders of photographs")
    parser.add_argument("--images", type=int, default=1000, help="photographs of each folder, drawn by --seed")
    parser.add_argument("--synthetic", type=int, default=200, help="images of each synthetic set; 0 leaves them out")
    parser.add_argument("--rounds", type=int, default=len(KINDS), help="copies of each photograph")
    parser.add_argument("--synthetic-rounds", type=int, default=3, help="copies of each synthetic image")
    parser.add_argument("--timed", type=int, default=0, help="images of the last folder that are timed")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="of the draw, the copies and the synthetic images")
    parser.add_argument("--sheet", type=Path, help="PNG that shows the pairs of originals taken for copies")
    args = parser.parse_args()
    suspects: list[tuple[Path, Path]] = []
    with tempfile.TemporaryDirectory() as folder:
        for make in (radiograph, tissue) if args.synthetic else ():
            paths = [Path(folder) / f"{make.__name__} {number}.png" for number in range(args.synthetic)]
            for number, path in enumerate(paths):
                make(args.seed * 1_000_000 + number).save(path)
            found = rates(paths, args.synthetic_rounds, args.workers, args.seed)
            report(make.__name__, len(paths), found)
    for data in args.data:
        everything = sorted(data.iterdir())
        drawn = np.random.default_rng(args.seed).permutation(len(everything))[: args.images]
        paths = [everything[row] for row in sorted(drawn)]
        suspects += report(str(data), len(paths), rates(paths, args.rounds, args.workers, args.seed))
        if args.timed and data == args.data[-1]:
            cost(everything[: args.timed], args.workers, 3)
    if args.sheet is not None:
        contact_sheet(suspects, args.sheet)


if __name__ == "__main__":
    main()
