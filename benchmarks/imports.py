"""How long `import probmcl` and `probmcl --help` take in fresh processes, beside `import torch` and nothing at all."""

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
    """From the start of a Python process to its end."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def timer(code: str) -> Callable[[], float]:
    """The same, to be called later."""
    return lambda: seconds(code)


def main() -> None:
    """Print the medians, and how much of them is Python itself."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="fresh processes of each")
    rounds = parser.parse_args().rounds
    for code in CODE.values():  # bytecode is compiled and files are in memory before anything is measured
        seconds(code)
    found = alternate({name: timer(code) for name, code in CODE.items()}, rounds, "s")
    for name, values in found.items():
        beyond = statistics.median(values) - statistics.median(found["nothing"])
        ratio = median_ratio(values, found["import torch"])
        print(f"{name:15} {statistics.median(values):.3f} s, {beyond:.3f} s beyond Python; {ratio:.3f} of import torch")


if __name__ == "__main__":
    main()
