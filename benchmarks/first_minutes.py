"""Compare one epoch of the plain script with `probmcl train`: time until there is a model, and its test mAP.

Options of `probmcl train` can follow after --, for example: first_minutes.py --data DATA -- --budget 8m
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

PROBMCL = [sys.executable, "-m", "probmcl"]


class Milestone(NamedTuple):
    """Seconds until a model exists, and its test mAP."""

    seconds: float
    score: float


def plain_script(args: argparse.Namespace) -> Milestone:
    """Run the plain script; its time includes imports."""
    print("plain script …", flush=True)
    start, script = time.perf_counter(), Path(__file__).with_name("plain_script.py")
    command = [
        sys.executable,
        str(script),
        "--data",
        str(args.data),
        *flags(args),
        "--batch-size",
        str(args.batch_size),
    ]
    result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Milestone(time.perf_counter() - start, json.loads(result.stdout.splitlines()[-1])["mAP"])


def flags(args: argparse.Namespace) -> list[str]:
    """Return the options that both sides share."""
    weights = str(Path(args.weights).resolve()) if Path(args.weights).is_file() else args.weights
    return ["--encoder", args.encoder, "--weights", weights, "--image-size", str(args.image_size)]


def probmcl_train(args: argparse.Namespace, run: Path, copy: Path) -> tuple[float, float]:
    """Return the seconds until the first model, which is copied, and until the end of the run."""
    print("probmcl train …", flush=True)
    start = time.perf_counter()
    command = [*PROBMCL, "train", str(args.data), *flags(args), "--out", str(run), *args.options]
    with subprocess.Popen(command) as process:
        while not can_predict(run) and process.poll() is None:
            time.sleep(0.1)
        first = time.perf_counter() - start
        if can_predict(run):
            copy_files(run, copy)
            print(f"first model after {first:.0f} s", flush=True)
    if process.returncode:
        raise SystemExit(f"probmcl train failed with exit code {process.returncode}; see its message above")
    return first, time.perf_counter() - start


def can_predict(run: Path) -> bool:
    """Return whether run.json lists a model; the entry is written after the weights."""
    metadata = run / "run.json"
    return metadata.is_file() and json.loads(metadata.read_text(encoding="utf-8"))["model"] is not None


def copy_files(run: Path, copy: Path) -> None:
    """Copy the current files of a run folder, without its subfolders."""
    copy.mkdir()
    for path in run.iterdir():
        if path.is_file() and not path.name.startswith("."):  # files with a leading dot are incomplete
            shutil.copy2(path, copy)


def test_score(run: Path, data: Path, result: Path) -> float:
    """Return the test mAP of a run, computed by `probmcl evaluate`."""
    command = [*PROBMCL, "evaluate", str(run), str(data), "--split", "test", "--json", str(result)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return score_in(result)


def score_in(path: Path) -> float:
    """Return the mAP in a results file."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return float(result["mAP"])


def arguments() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with labels.csv, classes.txt and images/")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0", help="any timm model")
    parser.add_argument("--weights", default="pretrained", help="pretrained, none, or a safetensors file")
    parser.add_argument("--image-size", type=int, default=224, help="side of the square input")
    parser.add_argument("--batch-size", type=int, default=64, help="batch size of the plain script")
    parser.add_argument("options", nargs="*", help="options for probmcl train, after --")
    return parser


def main() -> None:
    """Print the time and the test mAP of each model, and the time relative to the plain script."""
    args = arguments().parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # for both sides: waiting threads must not spin on busy cores
    script = plain_script(args)
    print(f"plain script: {script.seconds:.0f} s, test mAP {script.score:.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run, copy = Path(folder) / "run", Path(folder) / "first"
        first, end = probmcl_train(args, run, copy)
        models = {
            "first model": Milestone(first, test_score(copy, args.data, Path(folder) / "first.json")),
            "end of the run": Milestone(end, score_in(run / "evaluation.json")),
        }
    for name, milestone in models.items():
        ratio = milestone.seconds / script.seconds
        print(f"{name}: {milestone.seconds:.0f} s, test mAP {milestone.score:.3f}; {ratio:.2f} of the script's time")


if __name__ == "__main__":
    main()
