"""Measure `import probmcl` and `probmcl --help` in new processes, next to `import torch` and an empty script."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from rounds import alternate, median_ratio

CODE = {
    "nothing": "pass",
    "import probmcl": "import probmcl",
    "probmcl --help": "import sys; sys.argv = ['probmcl', '--help']; from probmcl.cli import main; main()",
    "import torch": "import torch",
}


def seconds(code: str) -> float:
    """Return the time of a new Python process from start to end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def timer(code: str) -> Callable[[], float]:
    """Return a function that measures the code."""
    return lambda: seconds(code)


def main() -> None:
    """Print the median times, with and without Python's own startup time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="processes per command")
    rounds = parser.parse_args().rounds
    for code in CODE.values():  # compiles bytecode and fills the file cache
        seconds(code)
    times = alternate({name: timer(code) for name, code in CODE.items()}, rounds, "s")
    for name, values in times.items():
        extra = statistics.median(values) - statistics.median(times["nothing"])
        ratio = median_ratio(values, times["import torch"])
        print(f"{name:15} {statistics.median(values):.3f} s, {extra:.3f} s without Python; {ratio:.3f} of import torch")


if __name__ == "__main__":
    main()
