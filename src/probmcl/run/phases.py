"""The phases of a run: the frozen probe, each contender and its probe, the test; what each found is a file."""

from __future__ import annotations

import copy
import functools
import shutil
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl import run_folder
from probmcl.console import Console
from probmcl.data.hierarchy import levels_of, parents_of
from probmcl.data.records import Records, Split
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.evaluation.evaluate import evaluate, predict
from probmcl.evaluation.retrieval import retrieval
from probmcl.files import atomic_write, load_tensors, read_json, save_tensors, write_json
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.custom_loss import CustomLoss
from probmcl.methods.probe import Config as ProbeConfig
from probmcl.methods.probe import Probe
from probmcl.run.activation_cache import labels_of, targets_of, weights_of
from probmcl.run.backbone import Material
from probmcl.run.budget import Planner, make_plan
from probmcl.run.probe import Labeled, fit_probe
from probmcl.run.results import Candidate, Run
from probmcl.run.view_sheet import views_sheet
from probmcl.runtime.distributed import barrier, broadcast, is_main_process
from probmcl.settings import Settings, TrainingJob, method_settings
from probmcl.tables import rough_duration
from probmcl.training import Callback, Checkpoint, MetricsLog, StoredViews, extract, fit
from probmcl.training.fit import check_weights

FROZEN = "frozen probe"

Tested = Callable[[Mapping[str, Candidate]], Iterable[str]]
"""Names of the candidates whose test scores are wanted, from all candidates and their scores on validation."""


def test_kept_only(candidates: Mapping[str, Candidate]) -> Iterable[str]:
    """No candidate but the one that is kept and the frozen probe, which are always tested."""
    return ()


def test_all(candidates: Mapping[str, Candidate]) -> Iterable[str]:
    """Every candidate."""
    return candidates


def folder_of(run: Path, candidate: str) -> Path:
    """Where the predictions and metrics of a tested candidate are that was not kept."""
    return run / "frozen" if candidate == FROZEN else run / "candidates" / candidate


def tidy_up(checkpoints: Path) -> None:
    """Delete what only a run in the making needs."""
    if not is_main_process():
        return
    for path in checkpoints.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name.startswith(("trained ", "training ")):
            path.unlink()


def restored(checkpoints: Path, name: str) -> Candidate:
    """A candidate from its file."""
    tensors, facts = load_tensors(checkpoints / f"{name}.safetensors")
    scores = tensors.pop("scores")
    state = {key.removeprefix("state."): value for key, value in tensors.items()}
    settings = method_settings(facts["method"], changes=facts["settings"])
    return Candidate(name, facts["method"], settings, state, {"val": scores}, facts["validation"], facts["seconds"])


def _names(job: TrainingJob) -> list[str]:
    """The candidates that a contender gives: its own head if it has one, then the probe."""
    has_head = find_method(job.method).has_own_head(job.settings)
    own = [f"{job.name}, own head"] if has_head else []
    return [*own, f"{job.name}, re-probed"]


class Phases:
    """One run in the making. What a phase found is a file in checkpoints/; one that is there is not computed again."""

    def __init__(
        self,
        records: Records,
        settings: Settings,
        encoder: Encoder,
        folder: Path,
        console: Console,
        tested: Tested,
        plan: Planner | None,
    ) -> None:
        self.records, self.settings, self.folder, self.console = records, settings, folder, console
        self.encoder = encoder
        self.tested, self.plan = tested, plan or functools.partial(make_plan, budget=settings.budget)
        self.checkpoints = folder / "checkpoints"
        self.about: dict[str, Any] = read_json(folder / "run.json")
        self.before: float = self.about["seconds"]
        self.started = time.perf_counter()
        self.journal = MetricsLog(folder, say=lambda alarm: console.print(f"  ALARM: {alarm}"))
        self.journal.alarms += self.about["alarms"]
        self.candidates: dict[str, Candidate] = {}
        self.probe_seconds = 0.0  # that fitting the last probe took
        # What was there at the start: asked once, so that all processes get the same answer.
        self.there: set[str] = set(
            broadcast([path.name for path in self.checkpoints.glob("*")] if is_main_process() else [])
        )

    @functools.cached_property
    def material(self) -> Material:
        """Made when it is first needed: it takes a while, in which an interrupt must already be noted."""
        return Material(self.records, self.settings, self.encoder, self.checkpoints, self.console)

    def seconds(self) -> float:
        """How long the run has taken, in all its attempts."""
        return self.before + time.perf_counter() - self.started

    def record(self, status: str) -> None:
        """Write down how the run stands."""
        self.about |= {"status": status, "seconds": round(self.seconds(), 1), "alarms": self.journal.alarms}
        if self.candidates:
            kept = self.best()
            self.about |= {
                "candidates": [
                    {"name": c.name, "validation_mAP": c.validation["mAP"]} | ({"note": c.note} if c.note else {})
                    for c in self.candidates.values()
                ],
                "kept": kept.name,
                "model": {"method": kept.method, "settings": kept.settings},
            }
        if is_main_process():
            write_json(self.folder / "run.json", self.about)
            self.journal.close()

    def finished(self) -> Run:
        """All of it, and a note of how it ended."""
        try:
            with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
                warnings.showwarning = lambda message, *_: self.console.print(f"  note: {message}")
                return self._run()
        except BaseException as error:
            self.record("interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed")
            raise

    def best(self) -> Candidate:
        """Of equals the first: the simpler."""
        return max(self.candidates.values(), key=lambda candidate: candidate.validation_map)

    def _run(self) -> Run:
        self._restore()
        self.record("running")
        self.material.describe()
        if is_main_process():
            write_json(self.folder / "preprocessing.json", self.material.feed.preprocessing)
            sheet = views_sheet(self.material.feed)
            atomic_write(self.folder / "views.png", lambda part: sheet.save(part, format="PNG"))
        self._probe(FROZEN, self.material.part, self.settings.probe.frozen_views, seconds=0.0)
        for job in self._plan():
            self._contend(job)
        return self._finish()

    def _restore(self) -> None:
        """Take back every candidate that was finished before."""
        for name in [FROZEN, *(name for c in self.settings.jobs for name in _names(c))]:
            if f"{name}.safetensors" in self.there:
                self.candidates[name] = restored(self.checkpoints, name)
                self.console.print(f"{name}: validation mAP {self.candidates[name].validation_map:.4f}, as before")
                self._say_notes(self.candidates[name])
        if self.candidates:
            self._save(self.best())

    # The phases.

    def _plan(self) -> tuple[TrainingJob, ...]:
        """Which contenders are trained, for how many epochs; measured once, then kept to."""
        path = self.checkpoints / "plan.json"
        if path.name not in self.there:
            self.console.print("timing a few steps …")
            shared, costs = self.material.costs(self.probe_seconds)
            plan = self.plan(costs, shared, self.seconds())
            if is_main_process():
                write_json(path, plan)
        plan = broadcast(read_json(path) if is_main_process() else {})
        for line in plan["said"]:
            self.console.print(line)
        return tuple(
            replace(
                c, training=replace(c.training, epochs=plan["epochs"][c.name], views=plan["views"] or c.training.views)
            )
            for c in self.settings.jobs
            if c.name in plan["epochs"]
        )

    def _contend(self, job: TrainingJob) -> None:
        """Train a contender and judge it; one that diverges is left out, and the run goes on."""
        note = self.checkpoints / f"diverged {job.name}.json"
        if note.name in self.there:
            self._leave_out(job, read_json(note)["error"])
            return
        if all(name in self.candidates for name in _names(job)):
            return
        try:
            method, seconds = self._trained(job)
        except FloatingPointError as error:
            if is_main_process():
                write_json(note, {"error": str(error)})
            self._leave_out(job, str(error))
            return
        *heads, probed = _names(job)
        if heads and isinstance(method, Classifier):
            self._judge(heads[0], job, method, seconds)
        self._probe(probed, method.encoder, self.settings.probe.views, seconds, method.probe_note)

    def _leave_out(self, job: TrainingJob, error: str) -> None:
        alarm = f"{job.name} is left out: {error}"
        if alarm not in self.journal.alarms:
            self.journal.alarms.append(alarm)
            self.console.print(f"  ALARM: {alarm}")
        self.record("running")

    def _trained(self, job: TrainingJob) -> tuple[Method, float]:
        """The contender's method after training, and how long that took."""
        name, training = job.name, job.training
        path = self.checkpoints / f"trained {name}.safetensors"
        self._seed(name)
        method = self.material.method(job)
        if path.name in self.there:
            state, facts = load_tensors(path)
            method.load_state_dict(state)
            return method.to(self.settings.device).eval(), facts["seconds"]
        self.material.prepare(method, self.candidates[FROZEN])
        batches = self.material.source.training(
            n_views=method.n_views,
            batch_size=training.batch_size,
            epochs=training.epochs,
            images=None if training.views is None else training.views // method.n_views,
        )
        checkpoint = Checkpoint(self.checkpoints / f"training {name}.safetensors")
        with self.console.progress(f"training {name}, learning rate {training.learning_rate:g}", len(batches)) as bar:
            callbacks: list[Callback] = [self.journal.stage(name), bar] if is_main_process() else []
            fit(method, batches, training, device=self.settings.device, callbacks=callbacks, checkpoint=checkpoint)
        check_weights(method)
        seconds = checkpoint.seconds()
        if is_main_process():
            if len(_names(job)) == 1:  # no head of its own: nothing else would be left of it
                file = "model" if name == job.method else name
                save_tensors(self.folder / "contrastive" / f"{file}.safetensors", self.material.whole(method))
            save_tensors(path, method.state_dict(), {"seconds": seconds})
            checkpoint.path.unlink(missing_ok=True)
        return method, seconds

    def _judge(self, name: str, job: TrainingJob, method: Classifier, seconds: float) -> None:
        """A method's own head, on validation."""
        if name in self.candidates:
            return
        scores = self._predicted(f"scoring {name} on val", method, self.material.source.plain("val"))
        by, settings = job.method, job.settings
        if isinstance(method, CustomLoss):  # saved as the linear layer that it is: a run loads where the loss is not
            by, settings = "probe", ProbeConfig()
        self._candidate(name, by, settings, self.material.whole(method), scores, seconds, note=method.note)

    def _probe(
        self, name: str, part: Encoder | PrecomputedFeatures, n_augmented: int, seconds: float, note: str = ""
    ) -> None:
        """A linear probe on what an encoder makes of the images."""
        if name in self.candidates:
            return
        s, space, started = self.settings, self.records.label_space, time.perf_counter()
        store, network = self.material.features(name, part)
        phases: dict[Split, StoredViews] = {"train": store.probing(n_augmented=n_augmented), "val": store.plain("val")}
        if store is self.material.source:
            started = time.perf_counter()  # activations are stored once for everybody, and are nobody's cost
        with self.console.progress(f"features for {name}", sum(map(len, phases.values()))) as bar:
            found = {
                split: extract(network, batches, device=s.device, done=bar.advance) for split, batches in phases.items()
            }
        train = Labeled(found["train"], *targets_of(self.records, "train"), weights_of(self.records, "train"))
        val = Labeled(found["val"], *labels_of(self.records, "val"))
        with self.console.progress(f"fitting {name}", s.probe.steps(len(train.labels))) as bar:

            def callbacks(weight_decay: float) -> list[Callback]:
                return [self.journal.stage(f"{name}, weight decay {weight_decay:g}"), bar] if is_main_process() else []

            self._seed(name)
            begun = time.perf_counter()
            fitted = fit_probe(train, val, space, s.probe, seed=s.seed, callbacks=callbacks)
            self.probe_seconds = time.perf_counter() - begun
        with torch.inference_mode():
            scores = fitted.probe.logits(val.features[0]).sigmoid()
        probe = fitted.probe.on(copy.deepcopy(part), space)  # a copy, since a probe freezes what it is on
        seconds += time.perf_counter() - started
        state = self.material.whole(probe)
        self._candidate(name, "probe", probe.config, state, scores, seconds, fitted.weight_decay, note)

    # Candidates.

    def _candidate(
        self,
        name: str,
        method: str,
        settings: Any,
        state: Mapping[str, Tensor],
        scores: Float[Tensor, "N C"],
        seconds: float,
        weight_decay: float | None = None,
        note: str = "",
    ) -> None:
        """Judge scores on validation, remember all of it, and put the best so far where it can be used."""
        result = self._evaluated("val", scores, note)
        state = {key: value.cpu() for key, value in state.items()}  # there may be many, and little room on a GPU
        facts = {"method": method, "settings": settings, "validation": result, "seconds": seconds}
        if is_main_process():
            tensors = {f"state.{key}": value for key, value in state.items()}
            about_it = facts | {"weight_decay": weight_decay}
            save_tensors(self.checkpoints / f"{name}.safetensors", tensors | {"scores": scores}, about_it)
        self.candidates[name] = Candidate(name, method, settings, state, {"val": scores}, result, seconds)
        self._save(self.best())
        saved = f"; saved, {self.folder} can predict now" if self.best().name == name else ""
        over = f"{result['images']:,} images, {result['classes_scored']} of {result['classes']} classes"
        self.console.print(f"{name}: validation mAP {self.candidates[name].validation_map:.4f} ({over}){saved}")
        self._say_notes(self.candidates[name])

    def _save(self, best: Candidate) -> None:
        """Put a candidate where it predicts."""
        if is_main_process():
            save_tensors(self.folder / "model.safetensors", best.state)
            run_folder.write_predictions(self.folder / "predictions", self.records, "val", best.scores["val"])
        self.record("running")

    def _predicted(self, stage: str, classifier: Classifier, batches: Any) -> Float[Tensor, "N C"]:
        with self.console.progress(stage, len(batches)) as bar:
            return predict(classifier, batches, device=self.settings.device, done=bar.advance)

    def _evaluated(self, split: Split, scores: Float[Tensor, "N C"], note: str = "") -> dict[str, Any]:
        space, labels = self.records.label_space, labels_of(self.records, split)
        levels = None if space.hierarchy is None else levels_of(parents_of(space.names, space.hierarchy)).tolist()
        return evaluate(scores, *labels, names=space.names, split=split, note=note, levels=levels)

    # The end.

    def _finish(self) -> Run:
        kept, beside = self.best(), [FROZEN, *self.tested(self.candidates)]
        for name in dict.fromkeys([kept.name, *beside]):
            self.candidates[name] = self._with_test(self.candidates[name])
        kept, frozen = self.candidates[kept.name], self.candidates[FROZEN]
        self.about["test_mAP"] = {c.name: c.test["mAP"] for c in self.candidates.values() if c.test}
        if is_main_process():
            self._write(kept, self.folder)
            for name in beside:
                self._write(self.candidates[name], folder_of(self.folder, name))
        self.record("finished")
        barrier()
        tidy_up(self.checkpoints)
        self._say_the_end(kept, frozen)
        return Run(self.folder, self.candidates, kept, self.journal.alarms, self.seconds())

    def _with_test(self, candidate: Candidate) -> Candidate:
        classifier, batches = self.material.classifier(candidate), self.material.source.plain("test")
        if isinstance(classifier, Probe):
            return self._with_test_and_retrieval(candidate, classifier, batches)
        scores = self._predicted(f"scoring {candidate.name} on test", classifier, batches)
        test = self._evaluated("test", scores, candidate.note)
        return replace(candidate, scores={**candidate.scores, "test": scores}, test=test)

    def _with_test_and_retrieval(self, candidate: Candidate, probe: Probe, batches: Any) -> Candidate:
        """A probe scores features; the same features are asked for images with like labels."""
        with self.console.progress(f"scoring {candidate.name} on test", len(batches)) as bar:
            features = extract(probe.encoder, batches, device=self.settings.device, done=bar.advance)[0]
        on_features = copy.deepcopy(probe.linear).cpu()
        with torch.inference_mode():
            scores = on_features(features).sigmoid()
        test = self._evaluated("test", scores, candidate.note)
        found = retrieval(features, *labels_of(self.records, "test"))
        return replace(candidate, scores={**candidate.scores, "test": scores}, test=test, retrieval=found)

    def _write(self, candidate: Candidate, folder: Path) -> None:
        for split, scores in candidate.scores.items():
            run_folder.write_predictions(folder / "predictions", self.records, split, scores)
        write_json(folder / "evaluation.json", candidate.test)
        if candidate.retrieval is not None:
            write_json(folder / "retrieval.json", candidate.retrieval)

    def _say_the_end(self, kept: Candidate, frozen: Candidate) -> None:
        others = sorted((c for c in self.candidates.values() if c is not kept), key=lambda c: -c.validation_map)
        beside = "".join(f"; {c.name} {c.validation_map:.3f}" for c in others)
        self.console.print(f"kept: {kept.name} (val mAP {kept.validation_map:.3f}{beside})")
        self._say_notes(*others)
        tested = self.about["test_mAP"]
        against = "" if kept is frozen else f" (frozen probe {tested[FROZEN] or 0.0:.3f})"
        took = rough_duration(self.seconds())
        self.console.print(f"test mAP {tested[kept.name] or 0.0:.3f}{against}; {took}; everything is in {self.folder}")
        self._say_notes(kept)
        self.console.print(f"next: probmcl predict {self.folder} IMAGES --out predictions.csv")

    def _say_notes(self, *candidates: Candidate) -> None:
        """What belongs to an mAP that was just said."""
        for candidate in candidates:
            if candidate.note:
                self.console.print(f"  note on {candidate.name}: {candidate.note}")

    def _seed(self, phase: str) -> None:
        """Draws of a phase depend on the seed and on its name, not on what was computed before it."""
        torch.manual_seed(zlib.crc32(f"{self.settings.seed} {phase}".encode()))
