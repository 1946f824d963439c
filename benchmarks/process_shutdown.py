"""Count the two-process runs under torchrun that fail on a busy machine.

    python benchmarks/process_shutdown.py --runs 40 --busy 3

torch's gloo can abort an interpreter that exits while a process group is still alive. Each run trains a small model on
random images in two processes. Only the exit code is checked.
"""

import argparse
import contextlib
import multiprocessing
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "probmcl"]
SMALL = "--encoder test_convnext --weights none --image-size 32 --probe-epochs 1 --epochs 1 --batch-size 8 --workers 0"


def main() -> None:
    """Print the number of runs that fail."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--busy", type=int, default=3, help="processes that keep the cores busy")
    args = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, busy(args.busy):
        table = write_images(Path(folder) / "photos")
        for number in range(1, args.runs + 1):
            start = time.monotonic()
            out = Path(folder) / f"run{number}"
            options = ["train", str(table), *SMALL.split(), "--method", "bce", "--device", "cpu", "--out", str(out)]
            result = subprocess.run([*TORCHRUN, *options], capture_output=True, text=True, check=False)
            failed += result.returncode != 0
            print(f"run {number}: exit code {result.returncode}, {time.monotonic() - start:.0f} s", flush=True)
            if result.returncode:
                print(result.stderr[-2000:], flush=True)
    print(f"{failed} of {args.runs} runs failed next to {args.busy} busy processes")


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` busy processes inside the context."""
    processes = [multiprocessing.Process(target=spin, daemon=True) for _ in range(count)]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.terminate()


def spin() -> None:
    """Compute forever."""
    while True:
        sum(range(100_000))


def write_images(folder: Path, images: int = 24) -> Path:
    """Write random images and a table with one of two labels for each, and return the table."""
    folder.mkdir()
    rng, lines = np.random.default_rng(0), ["filename,tags"]
    for number in range(images):
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder / "labels.csv"


if __name__ == "__main__":
    main()
