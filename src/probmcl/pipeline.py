"""The front door: train a method, fit the probe on it, evaluate, and keep everything in a run folder."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl import runs
from probmcl.augment import AUGMENTATIONS
from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches
from probmcl.data.records import SPLITS, Records, Split
from probmcl.encoders import Encoder
from probmcl.evaluation.evaluate import evaluate, predict
from probmcl.feed import CPU_PIXELS, GPU_PIXELS, Feed
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.probing import Labelled, fit_probe
from probmcl.settings import Settings
from probmcl.training import Journal, Watcher, extract, fit
from probmcl.training.progress import Display


@dataclass(frozen=True, eq=False)
class Candidate:
    """A classifier that a run may keep: its scores on validation and test, and how good they are."""

    name: str
    classifier: Classifier
    scores: dict[Split, Float[Tensor, "N C"]]
    validation: dict[str, Any]
    test: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its folder, every candidate, the one that was kept, and what the collapse monitor had to say."""

    folder: Path
    candidates: dict[str, Candidate]
    kept: Candidate
    alarms: list[str]
    seconds: float


def train(records: Records, settings: Settings, folder: Path, display: Display | None = None) -> Run:
    """Train a method, fit a linear probe on its encoder, and keep what is better on validation.

    Everything that is needed to use, judge or repeat the run is written into `folder`, which must be new or empty. The
    test split is scored at the end and decides nothing.
    """
    for split in SPLITS:
        if len(records.rows(split)) == 0:
            raise ValueError(f"no image belongs to the {split} split; a run needs some in each of {', '.join(SPLITS)}")
    settings = settings.resolved()
    runs.claim(folder)
    work = _Work(records, settings, folder, display or Display())
    try:
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            torch.manual_seed(settings.seed)
            warnings.showwarning = lambda message, *_: work.display.say(f"  note: {message}")
            return work.run()
    except BaseException as error:
        work.record("interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed")
        raise


class _Work:
    """One run in the making."""

    def __init__(self, records: Records, settings: Settings, folder: Path, display: Display) -> None:
        self.records, self.settings, self.folder, self.display = records, settings, folder, display
        self.started = time.perf_counter()
        self.about = runs.circumstances(settings.seed)
        self.journal = Journal(folder, say=lambda alarm: display.say(f"  ALARM: {alarm}"))

    def record(self, status: str) -> None:
        """Write down how the run stands."""
        seconds = round(time.perf_counter() - self.started, 1)
        about = {**self.about, "status": status, "seconds": seconds, "alarms": self.journal.alarms}
        runs.write_json(self.folder / "run.json", about)
        self.journal.close()

    def run(self) -> Run:
        """All stages, one after the other."""
        self.record("running")
        s, space = self.settings, self.records.label_space
        encoder = Encoder(s.encoder.name, weights=s.encoder.weights, image_size=s.encoder.image_size)
        preprocessing = Preprocessing(encoder.image_size, encoder.mean, encoder.std, encoder.interpolation)
        augmentation = AUGMENTATIONS[s.augment](encoder.image_size)
        pixels_at_once = CPU_PIXELS if s.device == "cpu" else GPU_PIXELS
        self.feed = Feed(self.records, preprocessing, augmentation, s.seed, s.workers, pixels_at_once)
        self._describe(preprocessing)
        candidates = []
        method_class = find_method(s.method)
        if method_class is not Probe:
            method = method_class(encoder, space, s.method_settings)
            self._fit(method)
            if isinstance(method, Classifier):
                candidates.append(self._candidate("own head", method, self._predict("own head", method, "val")))
        candidates.append(self._probe(encoder))
        return self._finish(candidates)

    def _describe(self, preprocessing: Preprocessing) -> None:
        space = self.records.label_space
        runs.write_json(self.folder / "config.json", self.settings)
        runs.write_json(self.folder / "preprocessing.json", preprocessing)
        runs.write_json(self.folder / "labels.json", {"names": space.names, "counts": space.counts.tolist()})
        runs.write_split(self.folder / "split.csv", self.records)

    def _fit(self, method: Method) -> None:
        name, training = self.settings.method, self.settings.training
        batches = self.feed.training(n_views=method.n_views, batch_size=training.batch_size, epochs=training.epochs)
        try:
            with self.display.stage(f"training {name}", len(batches)) as bar:
                watchers = (self.journal.stage(name), bar)
                fit(method, batches, training, device=self.settings.device, watchers=watchers)
        finally:  # also after an interrupt: what was reached is kept
            place = "head" if isinstance(method, Classifier) else "contrastive"
            runs.save_tensors(self.folder / place / "model.safetensors", method.state_dict())

    def _probe(self, encoder: Encoder) -> Candidate:
        s, space = self.settings, self.records.label_space
        train = self._extract(encoder, "train", self.feed.probing(n_augmented=s.probe.views))
        validation = self._extract(encoder, "val", self.feed.plain("val"))
        config = s.method_settings if s.method == "probe" else None
        with self.display.stage("fitting the probe", s.probe.steps(len(train.labels))) as bar:

            def watchers(weight_decay: float) -> list[Watcher]:
                return [self.journal.stage(f"probe, weight decay {weight_decay:g}"), bar]

            fitted = fit_probe(train, validation, space, s.probe, config, seed=s.seed, watchers=watchers)
        self.about["probe_weight_decay"] = fitted.weight_decay
        with torch.inference_mode():
            scores = fitted.probe.logits(validation.features[0]).sigmoid()
        return self._candidate("probe", fitted.probe.on(encoder, space), scores)

    def _extract(self, encoder: Encoder, split: Split, batches: ImageBatches) -> Labelled:
        with self.display.stage(f"features of {split}", len(batches)) as bar:
            features = extract(encoder, batches, device=self.settings.device, done=bar.advance)
        return Labelled(features, *self._labels(split))

    def _labels(self, split: Split) -> tuple[Tensor, Tensor]:
        rows = self.records.rows(split)
        return torch.from_numpy(self.records.labels[rows]).float(), torch.from_numpy(self.records.known[rows])

    def _predict(self, name: str, classifier: Classifier, split: Split) -> Float[Tensor, "N C"]:
        batches = self.feed.plain(split)
        with self.display.stage(f"scoring {name} on {split}", len(batches)) as bar:
            return predict(classifier, batches, device=self.settings.device, done=bar.advance)

    def _candidate(self, name: str, classifier: Classifier, validation: Float[Tensor, "N C"]) -> Candidate:
        scores: dict[Split, Tensor] = {"val": validation, "test": self._predict(name, classifier, "test")}
        names = self.records.label_space.names
        results = {s: evaluate(x, *self._labels(s), names=names, split=s) for s, x in scores.items()}
        return Candidate(name, classifier, scores, results["val"], results["test"])

    def _finish(self, candidates: list[Candidate]) -> Run:
        kept = max(candidates, key=lambda candidate: candidate.validation["mAP"] or 0.0)
        runs.save_tensors(self.folder / "model.safetensors", kept.classifier.state_dict())
        for split, scores in kept.scores.items():
            runs.write_predictions(self.folder / "predictions", self.records, split, scores)
        runs.write_json(self.folder / "evaluation.json", kept.test)
        validation = [{"name": c.name, "validation_mAP": c.validation["mAP"]} for c in candidates]
        self.about |= {"candidates": validation, "kept": kept.name}
        self.record("finished")
        seconds = time.perf_counter() - self.started
        return Run(self.folder, {c.name: c for c in candidates}, kept, self.journal.alarms, seconds)
