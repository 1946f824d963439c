"""The plain script's one epoch, then `probmcl train` on the same: when is there a model, and how good is it?

Flags of `probmcl train` may follow after --, as in: first_minutes.py --data DATA -- --budget 8m
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


class Reached(NamedTuple):
    """A model, after so many seconds, and its test mAP."""

    seconds: float
    score: float


def plain_script(args: argparse.Namespace) -> Reached:
    """The script from start to end, imports included."""
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
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return Reached(time.perf_counter() - start, json.loads(answer.stdout.splitlines()[-1])["mAP"])


def flags(args: argparse.Namespace) -> list[str]:
    """What both sides are told alike."""
    weights = str(Path(args.weights).resolve()) if Path(args.weights).is_file() else args.weights
    return ["--encoder", args.encoder, "--weights", weights, "--image-size", str(args.image_size)]


def probmcl_train(args: argparse.Namespace, run: Path, copy: Path) -> tuple[float, float]:
    """When the first model was there, of which a copy is taken, and when the run ended."""
    print("probmcl train …", flush=True)
    start = time.perf_counter()
    command = [*PROBMCL, "train", str(args.data), *flags(args), "--out", str(run), *args.more]
    with subprocess.Popen(command) as process:
        while not can_predict(run) and process.poll() is None:
            time.sleep(0.1)
        first = time.perf_counter() - start
        if can_predict(run):
            copy_files(run, copy)
            print(f"first model after {first:.0f} s", flush=True)
    if process.returncode:
        raise SystemExit(f"probmcl train ended with {process.returncode}; its message stands above")
    return first, time.perf_counter() - start


def can_predict(run: Path) -> bool:
    """Whether the folder says which model it has; it says so last, when the weights are there."""
    about = run / "run.json"
    return about.is_file() and json.loads(about.read_text(encoding="utf-8"))["model"] is not None


def copy_files(run: Path, copy: Path) -> None:
    """The files of a run folder as they are now, without its folders."""
    copy.mkdir()
    for path in run.iterdir():
        if path.is_file() and not path.name.startswith("."):  # a dot: in the making
            shutil.copy2(path, copy)


def test_score(run: Path, data: Path, answer: Path) -> float:
    """Test mAP of a run, by `probmcl evaluate`."""
    command = [*PROBMCL, "evaluate", str(run), str(data), "--split", "test", "--json", str(answer)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return score_in(answer)


def score_in(path: Path) -> float:
    """The mAP that a file of results holds."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return float(result["mAP"])


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with labels.csv, classes.txt and images/")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0", help="any timm model")
    parser.add_argument("--weights", default="pretrained", help="pretrained, none, or a safetensors file")
    parser.add_argument("--image-size", type=int, default=224, help="side of the square input")
    parser.add_argument("--batch-size", type=int, default=64, help="of the plain script")
    parser.add_argument("more", nargs="*", help="flags for probmcl train, after --")
    return parser


def main() -> None:
    """Print when each had a model, how good it was, and the two ratios of time."""
    args = arguments().parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # for both sides: threads that wait on busy cores must not spin
    script = plain_script(args)
    print(f"plain script: {script.seconds:.0f} s, test mAP {script.score:.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        run, copy = Path(folder) / "run", Path(folder) / "first"
        first, end = probmcl_train(args, run, copy)
        models = {
            "first model": Reached(first, test_score(copy, args.data, Path(folder) / "first.json")),
            "end of the run": Reached(end, score_in(run / "evaluation.json")),
        }
    for name, reached in models.items():
        ratio = reached.seconds / script.seconds
        print(f"{name}: {reached.seconds:.0f} s, test mAP {reached.score:.3f}; {ratio:.2f} of the script's time")


if __name__ == "__main__":
    main()
