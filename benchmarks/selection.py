"""Compare two rules for choosing a candidate on validation, by the test mAP of the candidate that each rule keeps.

Each trial trains the default candidates of `probmcl train` on a dataset, or on a small random subset of it, and scores
all of them on the dataset's test images. Subsets are split as `probmcl train` would split them, but their own test
images are left out and replaced by those of the dataset, which measure the test mAP far more precisely. Finished
trials are kept in the folder, so the script can be interrupted and started again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: waiting threads must not spin on busy cores

import numpy as np

from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.data.splitting import make_splits
from probmcl.evaluation import average_precision, bootstrapped_map, resamples
from probmcl.readers import read
from probmcl.run.results import CandidateId, Run
from probmcl.run.train import RunControl, all_candidates, read_run, train_run
from probmcl.settings import make_settings
from probmcl.store.run_folder import RunFolder


class Trial(NamedTuple):
    """A run of the study: a dataset and, for a random subset, its size and seed."""

    name: str
    data: Path
    images: int | None = None
    seed: int = 0

    def records(self, test_images: int) -> Records:
        """Read the images: all of them, or a subset for training and validation with many images for testing."""
        records = read(self.data)
        if self.images is None:
            return make_splits(records, seed=self.seed)
        rng = np.random.default_rng(self.seed)
        pool = np.flatnonzero(np.array(records.split) != "test")
        subset = records.take(np.sort(rng.choice(pool, self.images, replace=False)))
        subset = make_splits(subset.with_split(np.full(len(subset), "train")), seed=self.seed)
        test = rng.choice(records.rows("test"), min(test_images, len(records.rows("test"))), replace=False)
        chosen = {path: split for path, split in zip(subset.paths, subset.split, strict=True) if split != "test"}
        chosen |= {records.paths[row]: "test" for row in test}
        rows = np.array([row for row, path in enumerate(records.paths) if path in chosen])
        return records.take(rows).with_split(np.array([chosen[records.paths[row]] for row in rows]))


def trials(args: argparse.Namespace) -> Iterator[Trial]:
    """Yield the small subsets of each dataset, then the datasets themselves."""
    for seed in range(args.seeds):
        for images in args.images:
            for data in args.data:
                yield Trial(f"{data.name}-{images}-{seed}", data, images, seed)
    for data in args.data:
        yield Trial(data.name, data)


def train(trial: Trial, folder: Path, args: argparse.Namespace) -> Run:
    """Train and test all candidates, or read them if an earlier call has finished."""
    encoder = {"name": args.encoder, "weights": str(args.weights.resolve()), "image_size": args.image_size}
    settings = make_settings({"encoder": encoder, "seed": trial.seed, "device": "cpu", "workers": args.workers})
    finished = folder / "run.json"
    if finished.exists() and json.loads(finished.read_text(encoding="utf-8"))["status"] == "finished":
        return read_run(RunFolder(folder))
    return train_run(
        PreparedData.of(trial.records(args.test_images)),
        settings,
        folder,
        Console.quiet(),
        control=RunControl(test=all_candidates),
    )


def outcome(trial: Trial, folder: Path, draws: int) -> dict[str, Any]:
    """Return validation and test mAP of every candidate, and the standard error of its distance from the best."""
    candidates, samples = {}, {}
    for name, results in _results(folder).items():
        val, test = (np.load(results / "predictions" / f"{split}.npz") for split in ("val", "test"))
        weights = resamples(len(val["scores"]), None, draws=draws)
        samples[name] = bootstrapped_map(val["scores"], val["labels"], val["known"], weights)
        candidates[name] = {"val": _map(val), "test": _map(test)}
    for name, scores in candidates.items():
        scores["error"] = float(np.nanstd(samples[best(candidates)] - samples[name]))
    return {"trial": trial.name, "candidates": candidates}


def _results(folder: Path) -> dict[str, Path]:
    """Return the folder with the predictions of each candidate, in the order of the run."""
    entries = json.loads((folder / "run.json").read_text(encoding="utf-8"))["candidates"]
    identities = [CandidateId(entry["method"], entry["head"], entry["trial"]) for entry in entries]
    return {identity.name: RunFolder(folder).results(identity.key) for identity in identities}


def _map(arrays: Mapping[str, np.ndarray]) -> float:
    ap = average_precision(arrays["scores"], arrays["labels"], arrays["known"])
    return float(ap.nanmean().nan_to_num())


def best(candidates: Mapping[str, Mapping[str, float]]) -> str:
    """Return the candidate with the highest validation mAP; on a tie, the earlier one."""
    return max(candidates, key=lambda name: candidates[name]["val"])


def simplest(candidates: Mapping[str, Mapping[str, float]]) -> str:
    """Return the first candidate within one standard error of the best."""
    highest = candidates[best(candidates)]["val"]
    return next(name for name, scores in candidates.items() if highest - scores["val"] <= scores["error"])


def report(outcomes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the choices of both rules in each trial, then a Markdown table with the mean test mAP per kind of trial."""
    kinds: dict[str, list[Mapping[str, Mapping[str, float]]]] = {}
    for result in outcomes:
        candidates = result["candidates"]
        kinds.setdefault(result["trial"].rpartition("-")[0] or result["trial"], []).append(candidates)
        test = ", ".join(f"{name} {100 * scores['test']:.1f}" for name, scores in candidates.items())
        yield f"{result['trial']}: best {best(candidates)}; simplest {simplest(candidates)}; test mAP: {test}"
    yield "| data | trials | choice changes | test mAP, best | simplest − best, points |\n|---|---|---|---|---|"
    for kind, trials in kinds.items():
        old, new = ([c[choose(c)]["test"] for c in trials] for choose in (best, simplest))
        changed, gains = sum(best(c) != simplest(c) for c in trials), 100 * (np.array(new) - np.array(old))
        error = f" ± {gains.std(ddof=1) / len(gains) ** 0.5:.2f}" if len(gains) > 1 else ""
        yield f"| {kind} | {len(trials)} | {changed} | {100 * np.mean(old):.1f} | {gains.mean():+.2f}{error} |"


def main() -> None:
    """Run all trials, and print the report after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="datasets in a supported layout")
    parser.add_argument("--weights", type=Path, required=True, help="safetensors file with the encoder's weights")
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0", help="name of a timm model")
    parser.add_argument("--image-size", type=int, default=160, help="width and height of the input in pixels")
    parser.add_argument("--images", type=int, nargs="+", default=[100, 300], help="sizes of the subsets")
    parser.add_argument("--seeds", type=int, default=10, help="subsets of each size and dataset")
    parser.add_argument("--test-images", type=int, default=1000, help="test images for a subset")
    parser.add_argument("--draws", type=int, default=1000, help="bootstrap resamples of the validation images")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for trial in trials(args):
        stored = args.out / f"{trial.name}.json"
        if not stored.exists():
            train(trial, args.out / trial.name, args)
            stored.write_text(json.dumps(outcome(trial, args.out / trial.name, args.draws)), encoding="utf-8")
            shutil.rmtree(args.out / trial.name / "checkpoints", ignore_errors=True)
        outcomes.append(json.loads(stored.read_text(encoding="utf-8")))
        print("\n".join(report(outcomes)), flush=True)


if __name__ == "__main__":
    main()
