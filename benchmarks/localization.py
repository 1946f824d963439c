"""Measure how well the Grad-CAM maps of trained methods localize objects, with boxes that no method was trained on.

For every candidate of the given runs (frozen probe, own heads, probes on the trained encoders), the maps of the classes
that are present in an image are compared with the boxes of these classes:

- pointing game: the center of the largest entry of the map lies in a box (or within `--tolerance` of it);
- energy: the share of the sum of the map that lies in the boxes.

A map of zeros localizes nothing and counts as a miss with energy 0. Baselines: the center of the image for the pointing
game, and a constant map for the energy. Scores are means over the images of a class, then over classes; intervals
resample images. The result is a Markdown table, and with `--out` a JSON file with the scores of every class.

The runs must have the same test images. Boxes are a table `filename,label,difficult,xmin,ymin,xmax,ymax` in pixels of
the image files, whose difficult objects are left out, or those of generated digit scenes (`--digits SEED`).
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from probmcl.console import Console
from probmcl.data.images import PREPROCESSING_FILE, Preprocessing
from probmcl.data.loader import decode_files
from probmcl.data.records import LabelSpace
from probmcl.demo.digits import NAMES, digit_boxes
from probmcl.encoders import Encoder
from probmcl.evaluation import interval, resamples
from probmcl.explain import forward_pass
from probmcl.explain.explanations import enlarge
from probmcl.methods import find_method
from probmcl.methods.base import Classifier
from probmcl.run.results import CandidateId
from probmcl.run.state import load_candidate
from probmcl.runtime.files import write_json
from probmcl.settings import CONFIG_FILE
from probmcl.store.files import LABELS, METADATA
from probmcl.store.run_folder import RunFolder

SMALL = 0.05
"""Largest share of the image that the boxes of a class cover if its objects count as small."""

MEASURES = ("pointing", "pointing, small", "energy", "energy, small")

REFERENCES = ["asl, own head", "asl, re-probed", "frozen probe"]
"""Candidates that the others are compared with."""

Boxes = Mapping[str, Mapping[str, np.ndarray]]
"""For each file name and label, the boxes (xmin, ymin, xmax, ymax) as fractions of the width and height."""


class Located(NamedTuple):
    """The scores of one map, and whether it is all zeros."""

    pointing: float
    energy: float
    zero: bool


def read_boxes(table: Path, sizes: Mapping[str, tuple[int, int]]) -> Boxes:
    """Read the boxes of the objects that are not difficult, in the images whose (width, height) is given."""
    boxes: dict[str, dict[str, list[list[float]]]] = defaultdict(lambda: defaultdict(list))
    with table.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["difficult"] != "1" and row["filename"] in sizes:
                width, height = sizes[row["filename"]]
                corners = [float(row[key]) for key in ("xmin", "ymin", "xmax", "ymax")]
                boxes[row["filename"]][row["label"]].append(list(np.divide(corners, [width, height] * 2)))
    return {name: {label: np.array(rows) for label, rows in labels.items()} for name, labels in boxes.items()}


def scene_boxes(paths: Sequence[Path], seed: int, size: int) -> Boxes:
    """Return the boxes of digit scenes, which are generated again from their seed."""
    last = max(int(path.stem.rpartition("_")[2]) for path in paths)
    return {
        name: {
            NAMES[item.digit]: np.array([[item.box.left, item.box.top, item.box.left, item.box.top]]) / size
            + np.array([0, 0, item.box.side, item.box.side]) / size
            for item in placed
        }
        for name, placed in digit_boxes(test=last + 1, size=size, seed=seed).items()
    }


def inside(boxes: np.ndarray, size: int) -> np.ndarray:
    """Return which pixel centers of a square image lie in at least one of the boxes."""
    centers = (np.arange(size) + 0.5) / size
    low, high = boxes[:, :2], boxes[:, 2:]
    x, y = ((centers >= low[:, [k]]) & (centers <= high[:, [k]]) for k in (0, 1))  # (boxes, size)
    return np.asarray((y[:, :, None] & x[:, None, :]).any(0))


def contains(boxes: np.ndarray, x: float, y: float, tolerance: float) -> bool:
    """Return whether a point lies in a box or within `tolerance` of it."""
    low, high = boxes[:, :2] - tolerance, boxes[:, 2:] + tolerance
    return bool(((low <= (x, y)) & ((x, y) <= high)).all(1).any())


def locate(heat: np.ndarray, boxes: np.ndarray, size: int, tolerance: float) -> Located:
    """Score one map against the boxes of its class."""
    enlarged = enlarge(heat, width=size, height=size)
    total = float(enlarged.sum(dtype=np.float64))
    if total <= 0:
        return Located(0.0, 0.0, True)
    # Bilinear interpolation has its maximum at the center of an entry of the map, and is constant near the border.
    row, column = (
        (int(k) + 0.5) / side for k, side in zip(np.unravel_index(heat.argmax(), heat.shape), heat.shape, strict=True)
    )
    hit = contains(boxes, column, row, tolerance)
    energy = float(enlarged[inside(boxes, size)].sum(dtype=np.float64)) / total
    return Located(float(hit), energy, False)


class Scores:
    """The scores of every image and class of one candidate; NaN if the class is not present."""

    def __init__(self, images: int, classes: int) -> None:
        self.values = {name: np.full((images, classes), np.nan) for name in MEASURES}
        self.zeros = 0

    def add(self, image: int, column: int, located: Located, *, small: bool) -> None:
        """Store the scores of one map."""
        for name, value in (("pointing", located.pointing), ("energy", located.energy)):
            self.values[name][image, column] = value
            if small:
                self.values[f"{name}, small"][image, column] = value
        self.zeros += located.zero


def class_means(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean of each class in each resample, (B, C); NaN for a class without an image."""
    present = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        means: np.ndarray = (weights @ np.nan_to_num(values)) / (weights @ present)
    return means


def summarize(values: np.ndarray, weights: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean over classes, and its bootstrapped values."""
    scored = ~np.isnan(values).all(0)
    once = np.ones((1, len(values)))
    drawn = np.nanmean(class_means(values[:, scored], weights), axis=1)
    return float(class_means(values[:, scored], once).mean()), drawn


def candidates(runs: Sequence[Path]) -> Iterator[tuple[str, Classifier]]:
    """Yield the name and the classifier of each candidate of the runs; the frozen probe only once."""
    seen: set[CandidateId] = set()
    for path in runs:
        folder = RunFolder.existing(path)
        for entry in folder.read(METADATA).candidates:
            identity = CandidateId(entry.method, entry.head, entry.trial)
            if identity not in seen:
                seen.add(identity)
                yield identity.name, load_classifier(folder, identity)


def load_classifier(folder: RunFolder, identity: CandidateId) -> Classifier:
    """Load a candidate with its parameters."""
    candidate, labels = load_candidate(folder, identity), folder.read(LABELS)
    classes = len(labels.names)
    label_space = LabelSpace(labels.names, np.array(labels.counts), np.zeros((classes, classes), dtype=np.int64))
    encoder = Encoder(folder.read(CONFIG_FILE).encoder.name, image_size=folder.read(PREPROCESSING_FILE).size)
    classifier = find_method(candidate.method)(encoder, label_space, candidate.settings)
    classifier.load_state_dict(dict(candidate.state))
    assert isinstance(classifier, Classifier)
    return classifier.eval()


def measure(
    classifiers: Mapping[str, Classifier],
    names: Sequence[str],
    paths: Sequence[Path],
    boxes: Boxes,
    preprocessing: Preprocessing,
    tolerance: float,
) -> dict[str, Scores]:
    """Score the maps of all classifiers, and the two baselines as `center`."""
    scores = {name: Scores(len(paths), len(names)) for name in ("center", *classifiers)}
    size, first = preprocessing.size, 0
    with Console().progress("explaining", len(paths)) as bar:
        for batch in decode_files(paths, preprocessing, batch_size=32, workers=1):
            present = [boxes[path.name] for path in batch.paths]
            columns = [[names.index(label) for label in labels] for labels in present]
            for row, labels in enumerate(present):
                for column, rows in zip(columns[row], labels.values(), strict=True):
                    mask = inside(rows, size)
                    located = Located(float(contains(rows, 0.5, 0.5, tolerance)), float(mask.mean()), False)
                    scores["center"].add(first + row, column, located, small=mask.mean() <= SMALL)
            for name, classifier in classifiers.items():
                maps = explain(classifier, batch.images, columns)
                for row, labels in enumerate(present):
                    for heat, column, rows in zip(maps[row], columns[row], labels.values(), strict=False):
                        small = inside(rows, size).mean() <= SMALL
                        scores[name].add(first + row, column, locate(heat, rows, size, tolerance), small=small)
            first += len(batch.paths)
            bar.advance(len(batch.paths), steps=len(batch.paths))
    return scores


def explain(classifier: Classifier, images: torch.Tensor, columns: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the maps of the given columns of each image; rows with fewer columns are filled up."""
    longest = max(map(len, columns))
    padded = torch.tensor([[*row, *[0] * (longest - len(row))] for row in columns])
    return np.asarray(forward_pass(classifier, images).maps(padded))


def percent(value: float, ends: tuple[float, float], sign: str = "") -> str:
    """Return a share and its interval in percent."""
    low, high = (f"{100 * end:{sign}.1f}" for end in ends)
    return f"{100 * value:{sign}.1f} [{low}, {high}]"


def report(
    scores: Mapping[str, Scores], names: Sequence[str], references: Sequence[str], draws: int
) -> dict[str, object]:
    """Print the tables, and return the same numbers with those of every class."""
    images = len(next(iter(scores.values())).values["energy"])
    weights = resamples(images, None, draws=draws).astype(np.float64)
    summaries = {name: {m: summarize(s.values[m], weights) for m in MEASURES} for name, s in scores.items()}
    header = ["candidate", *MEASURES, "maps of zeros"]
    print("\n" + " | ".join(header) + "\n" + " | ".join("---" for _ in header))
    for name, summary in summaries.items():
        cells = [percent(mean, interval(drawn)) for mean, drawn in summary.values()]
        print(" | ".join([name, *cells, str(scores[name].zeros)]))
    differences: dict[str, dict[str, dict[str, object]]] = {}
    for reference in (name for name in references if name in summaries):
        print(f"\ndifference to {reference} | " + " | ".join(MEASURES))
        differences[reference] = {}
        for name, summary in summaries.items():
            pairs = [(summary[m], summaries[reference][m]) for m in MEASURES]
            gains = [(a[0] - b[0], interval(a[1] - b[1])) for a, b in pairs]
            differences[reference][name] = dict(zip(MEASURES, gains, strict=True))
            print(" | ".join([name, *(percent(mean, ends, "+") for mean, ends in gains)]))
    return {
        "images": images,
        "maps": int((~np.isnan(next(iter(scores.values())).values["energy"])).sum()),
        "mean": {n: {m: (mean, interval(d)) for m, (mean, d) in s.items()} for n, s in summaries.items()},
        "differences": differences,
        "classes": {name: per_class(s, names, weights) for name, s in scores.items()},
    }


def per_class(scores: Scores, names: Sequence[str], weights: np.ndarray) -> dict[str, dict[str, object]]:
    """Return the number of images, the scores and their intervals for each class."""
    result: dict[str, dict[str, object]] = {}
    for column, name in enumerate(names):
        values = {m: scores.values[m][:, [column]] for m in ("pointing", "energy")}
        count = int((~np.isnan(values["energy"])).sum())
        if count:
            result[name] = {"images": count}
            result[name] |= {
                m: (float(np.nanmean(v)), interval(class_means(v, weights)[:, 0])) for m, v in values.items()
            }
    return result


def main() -> None:
    """Measure the candidates of the given runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders with the same test images")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--boxes", type=Path, help="table of boxes")
    source.add_argument("--digits", type=int, metavar="SEED", help="the images are digit scenes with this seed")
    parser.add_argument("--limit", type=int, help="use a random subset of the test images")
    parser.add_argument("--seed", type=int, default=0, help="seed of the subset")
    parser.add_argument("--tolerance", type=float, default=0.0, help="pointing game: share of the side of the image")
    parser.add_argument("--reference", nargs="*", default=REFERENCES, metavar="NAME")
    parser.add_argument("--draws", type=int, default=1000, help="bootstrap resamples")
    parser.add_argument("--out", type=Path, help="JSON file for all numbers")
    options = parser.parse_args()
    folder = RunFolder.existing(options.runs[0])
    paths = [Path(path) for path, split in folder.read_split().items() if split == "test"]
    sizes = {path.name: Image.open(path).size for path in paths}
    if options.boxes is None:
        boxes = scene_boxes(paths, options.digits, next(iter(sizes.values()))[0])
    else:
        boxes = read_boxes(options.boxes, sizes)
    paths = [path for path in paths if boxes.get(path.name)]
    if options.limit is not None:
        chosen = np.random.default_rng(options.seed).permutation(len(paths))[: options.limit]
        paths = [paths[row] for row in sorted(chosen)]
    names = folder.read(LABELS).names
    preprocessing = folder.read(PREPROCESSING_FILE)
    scores = measure(dict(candidates(options.runs)), names, paths, boxes, preprocessing, options.tolerance)
    result = report(scores, names, options.reference, options.draws)
    print(json.dumps({key: result[key] for key in ("images", "maps")}))
    if options.out is not None:
        write_json(options.out, result)


if __name__ == "__main__":
    main()
