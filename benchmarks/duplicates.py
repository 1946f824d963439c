"""Measure how many planted copies are found, how many different images are confirmed as copies, and the time.

Copies of photographs and of synthetic sets are re-encoded, resized, flipped and cropped. A confirmed pair of two
originals is a false positive, unless the data contains real duplicates; --sheet writes them to an image for inspection.
--against compares the time and the confirmed pairs with those of another version of probmcl, on synthetic radiographs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from lookalike_sets import radiograph, tissue
from probmcl.audit.duplicates.candidates import candidate_pairs
from probmcl.audit.duplicates.hashing import TILE, Fingerprint, ResultCache, SearchSettings, fingerprints
from probmcl.audit.duplicates.search import NearPair, exact_duplicates, near_duplicates
from probmcl.data.images import read_image
from rounds import alternate, median_ratio

Change = Callable[[Image.Image, np.random.Generator], Image.Image]


def resized(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Resize by a factor of 0.4 to 1.5."""
    factor = rng.uniform(0.4, 1.5)
    return image.resize((round(image.width * factor), round(image.height * factor)), Image.Resampling.BICUBIC)


def flipped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Flip horizontally."""
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


def cropped(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """Crop by 2 to 6 % on each side."""
    left, top, right, bottom = rng.uniform(0.02, 0.06, 4)
    width, height = image.size
    return image.crop(
        (round(left * width), round(top * height), round((1 - right) * width), round((1 - bottom) * height))
    )


KINDS: dict[str, tuple[tuple[Change, ...], str]] = {
    "re-encoded as JPEG, quality 30 to 90": ((), ".jpg"),
    "re-encoded as PNG": ((), ".png"),
    "resized, 0.4 to 1.5": ((resized,), ".png"),
    "flipped": ((flipped,), ".png"),
    "cropped, 2 to 6 % per side": ((cropped,), ".png"),
    "resized, as JPEG": ((resized,), ".jpg"),
    "flipped and resized, as JPEG": ((flipped, resized), ".jpg"),
    "cropped and resized, as JPEG": ((cropped, resized), ".jpg"),
    "flipped, cropped and resized, as JPEG": ((flipped, cropped, resized), ".jpg"),
}


class Rates(NamedTuple):
    """Numbers of planted, candidate and confirmed copies of each kind, and the pairs that are not copies."""

    planted: Counter[str]
    candidates: Counter[str]
    confirmed: Counter[str]
    false_positives: list[tuple[Path, Path, NearPair]]
    doubtful: int


def measure(originals: Sequence[Path], rounds: int, workers: int, seed: int) -> Rates:
    """Plant one copy of each original per round, cycling through the kinds, and search for them."""
    result = Rates(Counter(), Counter(), Counter(), [], 0)
    for round_index in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            rng = np.random.default_rng((seed, round_index))
            kinds = [list(KINDS)[(row + round_index) % len(KINDS)] for row in range(len(originals))]
            copies = [write_copy(path, kind, Path(folder), rng) for path, kind in zip(originals, kinds, strict=True)]
            result = _update(result, [*originals, *copies], kinds, workers)
        print(f"  round {round_index + 1} of {rounds}: {sum(result.confirmed.values()):,} copies confirmed", flush=True)
    return result


def write_copy(path: Path, kind: str, folder: Path, rng: np.random.Generator) -> Path:
    """Write a copy of the given kind and return its path."""
    changes, suffix = KINDS[kind]
    with Image.open(path) as image:
        copy = image.convert("RGB")
    for change in changes:
        copy = change(copy, rng)
    target = folder / f"{path.stem}{suffix}"
    if suffix == ".jpg":
        copy.save(target, quality=int(rng.integers(30, 91)))
    else:
        copy.save(target, compress_level=1)  # differs from Pillow's default, so the copy of a PNG has different bytes
    return target


def _update(rates: Rates, paths: Sequence[Path], kinds: Sequence[str], workers: int) -> Rates:
    """Return the rates with the results of a round added; the copy of row k of K is row K + k."""
    settings = SearchSettings(workers=workers)
    hashed = fingerprints(paths, settings)
    near = near_duplicates(paths, hashed, settings)
    confirmed = {(pair.one, pair.other) for pair in near if pair.confirmed}
    candidates = _candidates(hashed)
    false_positives, doubtful = list(rates.false_positives), rates.doubtful
    for row, kind in enumerate(kinds):
        rates.planted[kind] += 1
        rates.candidates[kind] += (row, row + len(kinds)) in candidates
        rates.confirmed[kind] += (row, row + len(kinds)) in confirmed
    for pair in near:
        if pair.other - pair.one != len(kinds):
            one, other = paths[pair.one % len(kinds)], paths[pair.other % len(kinds)]
            doubtful += not pair.confirmed
            false_positives += [(one, other, pair)] if pair.confirmed else []
    return rates._replace(false_positives=false_positives, doubtful=doubtful)


def _candidates(hashed: Sequence[Fingerprint]) -> set[tuple[int, int]]:
    hashes = np.array([(image.phash, image.inner_phash) for image in hashed], dtype=np.uint64)
    pairs = candidate_pairs(hashes[:, 0], hashes[:, 1])
    return set(zip(pairs.ones.tolist(), pairs.others.tolist(), strict=True))


def report(name: str, count: int, rates: Rates) -> list[tuple[Path, Path]]:
    """Print a table and return the pairs of originals that were confirmed as copies."""
    print(f"\n{name}: {count:,} images; shares of planted copies that are candidates and that are confirmed")
    for kind in KINDS:
        if rates.planted[kind]:
            shares = [counts[kind] / rates.planted[kind] for counts in (rates.candidates, rates.confirmed)]
            print(f"  {kind:40} {shares[0]:7.2%} {shares[1]:7.2%}  of {rates.planted[kind]:,}")
    pairs = sorted({(min(one, other), max(one, other)) for one, other, _ in rates.false_positives})
    print(f"  pairs of different originals confirmed: {len(pairs)}; doubtful pairs in all rounds: {rates.doubtful}")
    for one, other in pairs:
        best = max(pair.correlation for a, b, pair in rates.false_positives if {a, b} == {one, other})
        print(f"    {one.name} and {other.name}: correlation {best:.3f}")
    return pairs


def contact_sheet(pairs: Sequence[tuple[Path, Path]], target: Path) -> None:
    """Write an image that shows pairs side by side, four per row."""
    sheet = Image.new("RGB", (4 * 340, max(1, (len(pairs) + 3) // 4) * 170), "white")
    for number, pair in enumerate(pairs):
        for column, path in enumerate(pair):
            corner = (number % 4 * 340 + column * 162, number // 4 * 170)
            sheet.paste(read_image(path).resize((160, 160)), corner)
    sheet.save(target)
    print(f"{len(pairs)} pairs in {target}")


def cost(paths: Sequence[Path], workers: int, rounds: int, folder: Path) -> None:
    """Print the time of fingerprinting and of the duplicate search, relative to reading the images at the same size.

    Every measurement starts with an empty cache in `folder`.
    """

    def empty_cache() -> ResultCache:
        return ResultCache(Path(tempfile.mkdtemp(dir=folder)) / "results.sqlite")

    def read_images() -> float:
        start = time.perf_counter()
        for path in paths:
            read_image(path, TILE)
        return time.perf_counter() - start

    def compute_fingerprints() -> float:
        start = time.perf_counter()
        fingerprints(paths, SearchSettings(cache=empty_cache()))
        return time.perf_counter() - start

    def search() -> float:
        cache = empty_cache()
        hashed = fingerprints(paths, SearchSettings(workers=workers, cache=cache))
        start = time.perf_counter()
        near_duplicates(paths, hashed, SearchSettings(cache=cache))
        return time.perf_counter() - start

    times = alternate(
        {"read": read_images, "fingerprints": compute_fingerprints, "near duplicates": search}, rounds, "s"
    )
    for name in ("fingerprints", "near duplicates"):
        print(f"{len(paths):,} images: {name} {median_ratio(times[name], times['read']):.2f} times as long as reading")
    sets = exact_duplicates(fingerprints(paths, SearchSettings(workers=workers)))
    print(f"exact duplicates: {len(sets)} sets; one process")


def against(checkout: Path, images: int, workers: int, rounds: int, seed: int) -> None:
    """Print how many times as long as this version another one takes for radiographs and one copy of each.

    Both start with an empty cache. Afterwards, this version searches again with a filled cache.
    """
    runs: dict[str, list[dict[str, Any]]] = {"other": [], "this": [], "again": []}
    with tempfile.TemporaryDirectory() as folder:
        data = _radiographs_with_copies(Path(folder), images, seed)

        def other() -> float:
            runs["other"].append(_search(checkout, data, workers, tempfile.mkdtemp(dir=folder)))
            return float(runs["other"][-1]["search"]["CPU"])

        def this() -> float:
            cache = tempfile.mkdtemp(dir=folder)
            for name in ("this", "again"):
                runs[name].append(_search(Path(__file__).parents[1], data, workers, cache))
            return float(runs["this"][-1]["search"]["CPU"])

        alternate({"other": other, "this": this}, rounds, "s of CPU for the search")
    same = all(run["pairs"] == runs["other"][0]["pairs"] for run in runs["this"] + runs["again"])
    print(f"{2 * images:,} images, {workers} workers, {len(runs['this'][0]['pairs']):,} copies confirmed", end="; ")
    print("the same pairs in all runs" if same else "DIFFERENT PAIRS")
    for part in ("search", "reading and search"):
        for clock in ("CPU", "wall"):
            times = {name: [run[part][clock] for run in runs[name]] for name in runs}
            ratio, again = median_ratio(times["other"], times["this"]), median_ratio(times["this"], times["again"])
            print(f"{part}, {clock} time: other / this {ratio:.2f}; this / again, with a filled cache {again:.2f}")


def _radiographs_with_copies(folder: Path, images: int, seed: int) -> Path:
    """Write radiographs and one copy of each, cycling through the kinds of copies, and return their folder."""
    data, copies = folder / "data", folder / "copies"
    data.mkdir()
    copies.mkdir()
    rng = np.random.default_rng(seed)
    for number in range(images):
        original = data / f"{number:05}.png"
        radiograph(seed * 1_000_000 + number).save(original)
        copy = write_copy(original, list(KINDS)[number % len(KINDS)], copies, rng)
        copy.rename(data / f"copy of {copy.name}")
    return data


def _search(checkout: Path, data: Path, workers: int, cache: str) -> dict[str, Any]:
    """Run a version of probmcl in a new process."""
    environment = {"PYTHONPATH": str(checkout / "src"), "XDG_CACHE_HOME": cache, "OMP_WAIT_POLICY": "PASSIVE"}
    script = [sys.executable, str(Path(__file__).with_name("duplicate_search.py")), str(data), str(workers)]
    run = subprocess.run(script, env=os.environ | environment, check=True, capture_output=True, text=True)
    result: dict[str, Any] = json.loads(run.stdout)
    return result


def main() -> None:
    """Print the rates for the synthetic sets and for each folder, then the time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="folders of photographs")
    parser.add_argument("--images", type=int, default=1000, help="photographs per folder, chosen at random")
    parser.add_argument("--synthetic", type=int, default=200, help="images per synthetic set; 0 skips these sets")
    parser.add_argument("--rounds", type=int, default=len(KINDS), help="copies of each photograph")
    parser.add_argument("--synthetic-rounds", type=int, default=3, help="copies of each synthetic image")
    parser.add_argument("--timed", type=int, default=0, help="number of images of the last folder for timing")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--sheet", type=Path, help="PNG file for the pairs of originals confirmed as copies")
    parser.add_argument("--against", type=Path, help="checkout of another version to compare the time with")
    args = parser.parse_args()
    if args.against is not None:
        against(args.against, args.synthetic, args.workers, args.synthetic_rounds, args.seed)
        return
    suspects: list[tuple[Path, Path]] = []
    with tempfile.TemporaryDirectory() as folder:
        for make in (radiograph, tissue) if args.synthetic else ():
            paths = [Path(folder) / f"{make.__name__} {number}.png" for number in range(args.synthetic)]
            for number, path in enumerate(paths):
                make(args.seed * 1_000_000 + number).save(path)
            result = measure(paths, args.synthetic_rounds, args.workers, args.seed)
            report(make.__name__, len(paths), result)
    for data in args.data:
        all_paths = sorted(data.iterdir())
        chosen = np.random.default_rng(args.seed).permutation(len(all_paths))[: args.images]
        paths = [all_paths[row] for row in sorted(chosen)]
        suspects += report(str(data), len(paths), measure(paths, args.rounds, args.workers, args.seed))
        if args.timed and data == args.data[-1]:
            with tempfile.TemporaryDirectory() as folder:
                cost(all_paths[: args.timed], args.workers, 3, Path(folder))
    if args.sheet is not None:
        contact_sheet(suspects, args.sheet)


if __name__ == "__main__":
    main()
