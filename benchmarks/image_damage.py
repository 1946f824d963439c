"""Measure how many damaged JPEG files are detected, how many intact files are reported, and the cost.

Photographs are damaged in several ways, as they are and re-encoded with restart markers or progressively. Only copies
count that Pillow decodes without an error to other pixels. Three detectors are compared: ours, which uses the warnings
of libjpeg at 1/8 of the size; any warning or error of libjpeg at full size; and the color of missing data in the last
row. The cost is measured on the files as they are, and on mosaics of 3 megapixels.
"""

from __future__ import annotations

import argparse
import io
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg
from PIL import Image

from probmcl.audit.duplicates.hashing import image_fingerprint
from probmcl.data.jpeg_damage import jpeg_damage
from rounds import alternate, median_ratio

END = b"\xff\xd9"
ENCODINGS: dict[str, dict[str, Any] | None] = {
    "as it is": None,
    "baseline, restart markers": {"restart_marker_rows": 1},
    "progressive": {"progressive": True},
    "progressive, restart markers": {"progressive": True, "restart_marker_rows": 1},
}
INTACT = "intact"
SIDE, TILES = (504, 378), 4  # a mosaic has 4 × 4 photographs: 3 megapixels
Damage = Callable[[bytes, int, int, np.random.Generator], bytes]


def data_of(content: bytes) -> tuple[int, int]:
    """Return the start of the data of the first scan, and the end of the last."""
    header = content.index(b"\xff\xda") + 2
    return header + int.from_bytes(content[header : header + 2], "big"), content.rindex(END)


def zeros(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """Overwrite bytes with zeros."""
    return content[:start] + bytes(size) + content[start + size :]


def noise(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """Overwrite bytes with random ones, without markers."""
    return content[:start] + rng.integers(0, 255, size, dtype=np.uint8).tobytes() + content[start + size :]


def moved(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """Overwrite bytes with others of the same file."""
    first, last = data_of(content)
    other = int(rng.integers(first, last - size))
    return content[:start] + content[other : other + size] + content[start + size :]


def removed(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """Remove bytes."""
    return content[:start] + content[start + size :]


def bit(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """Change one bit."""
    return content[:start] + bytes([content[start] ^ 1 << int(rng.integers(8))]) + content[start + 1 :]


def half(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """Keep the first half, with an end marker."""
    return content[: sum(data_of(content)) // 2] + END


def cut(content: bytes, start: int, size: int, rng: np.random.Generator) -> bytes:
    """End at a random byte, with an end marker."""
    return content[:start] + END


DAMAGES: dict[str, Damage] = {
    "first half and end marker": half,
    "random start and end marker": cut,
    "64 to 1,024 bytes removed": removed,
    "64 to 1,024 bytes zero": zeros,
    "64 to 1,024 bytes random": noise,
    "64 to 1,024 bytes from elsewhere": moved,
    "one bit changed": bit,
}


def pixels(content: bytes) -> bytes | None:
    """Decode a file, or return None if Pillow raises an error."""
    try:
        with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
            return image.convert("RGB").tobytes()
    except Exception:
        return None


def is_damaged(content: bytes) -> bool:
    """Return whether our detector reports a file."""
    return jpeg_damage(content) is not None


def is_gray_at_the_end(content: bytes) -> bool:
    """Return whether the last row of blocks has the color of missing data."""
    with Image.open(io.BytesIO(content), formats=["JPEG"]) as image:
        image.draft("YCbCr", (1, 1))
        return bool((np.asarray(image)[-1] == 128).all())


def has_warnings(content: bytes) -> bool:
    """Return whether libjpeg warns about a file, or fails, at full size."""
    try:
        simplejpeg.decode_jpeg(content, strict=True)
    except ValueError:
        return True
    return False


DETECTORS: dict[str, Callable[[bytes], bool]] = {
    "ours": is_damaged,
    "all warnings": has_warnings,
    "gray end": is_gray_at_the_end,
}


def encode(path: Path, options: dict[str, Any] | None) -> bytes:
    """Return the content of a file, or of a re-encoded copy."""
    if options is None:
        return path.read_bytes()
    content = io.BytesIO()
    with Image.open(path) as image:
        image.save(content, "JPEG", quality=90, **options)
    return content.getvalue()


def measure(paths: Sequence[Path], seed: int) -> dict[str, dict[str, Counter[str]]]:
    """Return, for each encoding and damage, the numbers of copies, of visible damage, and of detections."""
    rng = np.random.default_rng(seed)
    counts = {encoding: {name: Counter[str]() for name in (*DAMAGES, INTACT)} for encoding in ENCODINGS}
    for path in paths:
        for encoding, options in ENCODINGS.items():
            intact = encode(path, options)
            _detect(counts[encoding][INTACT], intact)
            for name, damage in DAMAGES.items():
                first, last = data_of(intact)
                size = int(rng.integers(64, min(1024, (last - first) // 4) + 1))
                start = int(rng.integers(first + (last - first) // 8, last - (last - first) // 8 - size))
                _count(counts[encoding][name], intact, damage(intact, start, size, rng))
    return counts


def _count(counts: Counter[str], intact: bytes, damaged: bytes) -> None:
    decoded = pixels(damaged)
    counts["copies"] += 1
    counts["Pillow raises an error"] += decoded is None
    if decoded is not None and decoded != pixels(intact):
        counts["visible"] += 1
        _detect(counts, damaged)


def _detect(counts: Counter[str], content: bytes) -> None:
    for name, detect in DETECTORS.items():
        counts[name] += detect(content)


def mosaics(paths: Sequence[Path], folder: Path) -> list[Path]:
    """Write JPEGs of 3 megapixels, each made of several photographs, so that they have as much detail as these."""
    per_mosaic = TILES**2
    made = []
    for first in range(0, len(paths) - per_mosaic + 1, per_mosaic):
        mosaic = Image.new("RGB", (TILES * SIDE[0], TILES * SIDE[1]))
        for index, path in enumerate(paths[first : first + per_mosaic]):
            row, column = divmod(index, TILES)
            with Image.open(path) as image:
                mosaic.paste(image.convert("RGB").resize(SIDE), (column * SIDE[0], row * SIDE[1]))
        made.append(folder / f"{first}.jpg")
        mosaic.save(made[-1], quality=90)
    return made


def cost(paths: Sequence[Path], rounds: int) -> float:
    """Return the time of the detector relative to the rest of the pass in which every image is read once."""
    contents = [path.read_bytes() for path in paths]

    def detect() -> float:
        start = time.process_time()
        for content in contents:
            jpeg_damage(content)
        return time.process_time() - start

    def read_all() -> float:
        start = time.process_time()
        for path in paths:
            image_fingerprint(path)
        return time.process_time() - start

    times = alternate({"detector": detect, "pass with the detector": read_all}, rounds, "s of CPU")
    share = median_ratio(times["detector"], times["pass with the detector"])
    return share / (1 - share)


def report(counts: dict[str, dict[str, Counter[str]]]) -> None:
    """Print a table with the share of visible damage that each detector finds."""
    for encoding, damages in counts.items():
        print(f"\n{encoding}: visible damage of all copies, and the share of it that is detected")
        print(f"  {INTACT} copies that are reported: {dict(damages[INTACT])}")
        for name, count in damages.items():
            if name == INTACT:
                continue
            shares = "  ".join(f"{key} {count[key] / max(1, count['visible']):6.1%}" for key in DETECTORS)
            print(f"  {name:34} {count['visible']:6,} of {count['copies']:,}  {shares}")


def main() -> None:
    """Print the false alarms, the detection rates and the cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--voc", type=Path, required=True, help="folder of PASCAL VOC images")
    parser.add_argument("--coco", type=Path, required=True, help="folder of MS-COCO images")
    parser.add_argument("--images", type=int, default=250, help="images per folder that are damaged")
    parser.add_argument("--timed", type=int, default=500, help="images per folder for timing")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for timing")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    args = parser.parse_args()
    results: dict[str, Any] = {"false alarms": {}, "cost": {}, "images damaged": 2 * args.images}
    chosen: list[Path] = []
    timed: dict[str, list[Path]] = {}
    for name, folder in (("voc", args.voc), ("coco", args.coco)):
        paths = sorted(folder.iterdir())
        alarms = {key: [path.name for path in paths if detect(path.read_bytes())] for key, detect in DETECTORS.items()}
        results["false alarms"][name] = {"images": len(paths), **alarms}
        print(f"{name}: {len(paths):,} intact images; reported: {alarms}", flush=True)
        chosen += [paths[row] for row in np.random.default_rng(args.seed).permutation(len(paths))[: args.images]]
        timed[name] = paths[: args.timed]
    with tempfile.TemporaryDirectory() as temporary:
        timed["3 megapixels"] = mosaics(timed["voc"], Path(temporary))
        for name, paths in timed.items():
            share = round(cost(paths, args.rounds), 3)
            results["cost"][name] = share
            print(f"{name}: the detector takes {share:.2f} of the time of the rest of the pass", flush=True)
    results["detected"] = measure(chosen, args.seed)
    report(results["detected"])
    if args.out is not None:
        args.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
