"""Compare the time of `model.evaluate` in a plain script with `probmcl evaluate`, as whole processes."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rounds import alternate, median_ratio

COMMAND = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"
EVALUATE = """
import json, sys
run, data, out = sys.argv[1:]
result = probmcl.load(run).evaluate(data)
with open(out, "w") as file:
    json.dump(result, file)
"""
SCRIPTS = {
    "probmcl imported first": f"import probmcl{EVALUATE}",
    "torch imported first": f"import torch, probmcl{EVALUATE}",
}
OPENMP = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "OMP_NUM_THREADS")


def timed(code: str, arguments: list[str], out: Path) -> float:
    """Return the seconds that a new process takes, including imports and loading; it writes its results to `out`."""
    environment = {name: value for name, value in os.environ.items() if name not in OPENMP}
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code, *arguments, str(out)], env=environment, check=True, capture_output=True)
    return time.perf_counter() - start


def competitor(code: str, arguments: list[str], folder: Path, results: list[Any]) -> Callable[[], float]:
    """Return a function that runs the code once and appends the scores to `results`."""

    def call() -> float:
        out = folder / f"{len(results)}.json"
        seconds = timed(code, arguments, out)
        results.append(json.loads(out.read_text(encoding="utf-8")))
        return seconds

    return call


def main() -> None:
    """Print the time of each process, and for both import orders the median ratio to the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--run", required=True, help="run folder of a trained model")
    parser.add_argument("--data", required=True, help="table of labeled images")
    parser.add_argument("--rounds", type=int, default=5, help="measurements per competitor")
    args = parser.parse_args()
    results: list[Any] = []
    with tempfile.TemporaryDirectory() as name:
        words = ["evaluate", args.run, args.data, "--json"]
        competitors = {"command": competitor(COMMAND, words, Path(name), results)}
        for script, code in SCRIPTS.items():
            competitors[script] = competitor(code, [args.run, args.data], Path(name), results)
        seconds = alternate(competitors, args.rounds, "s")
    for script in SCRIPTS:
        print(f"{script} / command: {median_ratio(seconds[script], seconds['command']):.2f} (median)")
    print(f"command: {statistics.median(seconds['command']):.1f} s (median), {results[0]['images']:,} images")
    print("results are equal" if all(result == results[0] for result in results) else "results differ")


if __name__ == "__main__":
    main()
