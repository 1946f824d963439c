"""List the modules of probmcl whose functions `probmcl train photos/labels.csv` calls.

    python benchmarks/called_modules.py

A newcomer who follows one command through the code has to open these files. The script trains on a small folder of
generated images with a tiny encoder, which takes a few seconds. Importing a module does not count as calling it.
"""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path
from types import FrameType

import numpy as np
from PIL import Image

CLASSES = ("red", "green", "blue")
OPTIONS = "--encoder test_resnet --weights none --image-size 32 --epochs 1 --probe-epochs 2 --workers 0"


def write_photos(folder: Path, count: int = 40) -> Path:
    """Write images of colored squares and a table of their labels."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    table = folder / "labels.csv"
    with table.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["filename", "labels"])
        for number in range(count):
            present = rng.random(len(CLASSES)) < 0.5
            pixels = rng.integers(0, 80, (20, 20, 3))
            for channel in np.flatnonzero(present):
                pixels[6 * channel : 6 * channel + 5, 2:14, channel] = 255
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
            labels = [name for name, is_present in zip(CLASSES, present, strict=True) if is_present]
            writer.writerow([f"{number}.png", "|".join(labels)])
    return table


def called_modules(arguments: list[str]) -> list[str]:
    """Run a command in this process and return the modules whose functions it calls."""
    from probmcl import cli

    source = Path(cli.__file__).parents[1]
    called: set[str] = set()
    imports = 0  # modules that are being imported: calls made during an import do not count

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal imports
        if frame.f_code.co_name == "<module>":
            imports += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and imports == 0:
            called.add(frame.f_code.co_filename)

    sys.setprofile(profile)
    try:
        cli.app()(arguments)
    finally:
        sys.setprofile(None)
    modules = [Path(path) for path in called if path.startswith(str(source)) and path.endswith(".py")]  # no templates
    return sorted(str(path.relative_to(source)) for path in modules)


def main() -> None:
    """Print the modules and their count."""
    with tempfile.TemporaryDirectory() as folder:
        table = write_photos(Path(folder) / "photos")
        modules = called_modules(["train", str(table), "--out", str(Path(folder) / "run"), *OPTIONS.split()])
    print("\n".join(modules))
    print(f"{len(modules)} modules")


if __name__ == "__main__":
    main()
