"""Candidates of a run: linear probes on frozen features (ProbMCL, stage 2), and trained methods."""

import copy
import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor
from torch.optim import AdamW, Optimizer

from probmcl.data.records import LabelSpace, Split
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.errors import RunError, RunWarning, counted
from probmcl.evaluation.embedding import retrieval_at_10
from probmcl.evaluation.evaluate import evaluate_split, predict
from probmcl.evaluation.metrics import average_precision
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.contrast import STATISTICS
from probmcl.methods.custom_loss import CustomLoss
from probmcl.methods.probe import Config, Probe, ProbeGrid
from probmcl.methods.probe import Config as ProbeConfig
from probmcl.neighbors.training_images import TrainingImages, common_image_folder, relative_path
from probmcl.run.batches import labels_of, targets_of, weights_of
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId
from probmcl.run.state import RunState, ScoredTest, json_format, seed_phase
from probmcl.run.workspace import Workspace, warm_start
from probmcl.runtime.distributed import is_main_process
from probmcl.runtime.tensor_files import load_tensors, save_tensors
from probmcl.settings import ProbeSettings, TrainingJob
from probmcl.store.files import CONTRASTIVE, MODEL, TRAINED, TRAINING
from probmcl.training import Checkpoint, StepEvent
from probmcl.training.features import FeatureBatches, StoredFeatures, StoredViews, extract
from probmcl.training.fit import Batches, Callback, DivergedError, check_weights, fit
from probmcl.training.metrics_log import StageLog
from probmcl.training.optimizer import Training


class LabeledFeatures(NamedTuple):
    """Features of V views of N images, with labels, the mask of known labels and, for training, sampling weights."""

    features: Float[Tensor, "V N D"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]
    weights: Float[ndarray, "N"] | None = None


class FittedProbe(NamedTuple):
    """A probe on extracted features, with its weight decay and validation mAP."""

    probe: Probe
    weight_decay: float
    validation: float


def fit_probe(
    train: LabeledFeatures,
    validation: LabeledFeatures,
    label_space: LabelSpace,
    settings: ProbeSettings,
    *,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FittedProbe:
    """Fit a probe for each weight decay and return the best on validation; on a tie, the one with the larger decay."""
    # Deviation (decision 0001, point 20): decoupled decay, chosen on validation; it changed results by two points.
    probes = fit_grid(train, label_space, settings, seed=seed, callbacks=callbacks)
    fitted = (FittedProbe(probe, decay, validation_map(probe, validation)) for decay, probe in probes.items())
    return max(fitted, key=lambda f: (f.validation, f.weight_decay))


def fit_grid(
    train: LabeledFeatures,
    label_space: LabelSpace,
    settings: ProbeSettings,
    *,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> dict[float, Probe]:
    """Fit the probes of all weight decays together and return them by weight decay."""
    stored = StoredFeatures(train.features, train.labels, train.known, weights=train.weights)
    batches = FeatureBatches(stored, batch_size=settings.batch_size, epochs=settings.epochs, seed=seed)
    probe = Probe(PrecomputedFeatures(train.features.shape[2]), label_space, Config(loss=settings.loss))
    probe.standardize(train.features.flatten(0, 1))
    grid, decays = ProbeGrid(probe, len(settings.weight_decays)), settings.weight_decays
    fit(grid, batches, settings.training(), callbacks=callbacks, make_optimizer=partial(_optimizer, decays=decays))
    return {decay: grid.member(index) for index, decay in enumerate(decays)}


def _optimizer(grid: Method, training: Training, *, decays: Sequence[float]) -> Optimizer:
    """Return AdamW with a weight decay of its own for the weights of each probe, and none for the biases."""
    assert isinstance(grid, ProbeGrid)
    optimizer = AdamW([grid.weight, grid.bias], lr=training.learning_rate, weight_decay=0.0)
    decay_of = torch.tensor(decays).view(-1, 1, 1)

    @torch.no_grad()
    def decay(optimizer: Optimizer, args: object, kwargs: object) -> None:
        grid.weight.mul_(1 - optimizer.param_groups[0]["lr"] * decay_of)

    optimizer.register_step_pre_hook(decay)
    return optimizer


@torch.inference_mode()
def validation_map(probe: Probe, data: LabeledFeatures) -> float:
    """Return the mean average precision over the classes with a positive; 0 if no class has one."""
    scores = probe.logits(data.features[0])
    return average_precision(scores, data.labels, data.known).nanmean().nan_to_num().item()


def candidate_ids(job: TrainingJob) -> list[CandidateId]:
    """Return the candidates of a training job: the method's own head, if it has one, and a probe on its encoder."""
    has_head = find_method(job.method).has_own_head(job.settings)
    own = [CandidateId(job.name, "own head", job.trial)] if has_head else []
    return [*own, CandidateId(job.name, "re-probed", job.trial)]


def fit_frozen_probe(state: RunState, workspace: Workspace) -> Candidate:
    """Fit the linear probe on the frozen encoder."""
    n_views = workspace.settings.probe.frozen_views
    return _fit_probe(state, workspace, FROZEN_PROBE, workspace.backbone.tail, n_views, seconds=0.0)


@dataclass(frozen=True)
class Outcome:
    """The duration of a training job, its warnings, and the error if it diverged and has no usable weights."""

    seconds: float
    error: str | None = None
    warnings: tuple[RunWarning, ...] = ()


def train_job(state: RunState, workspace: Workspace, job: TrainingJob) -> None:
    """Train a method and add its candidates. A method or candidate that diverges is left out with a warning."""
    training = _JobTraining(state, workspace, job)
    outcome = state.once(f"{job.key}.outcome", training.run, json_format(Outcome))
    training.checkpoint().delete()
    for warning in outcome.warnings:
        state.warn(warning)
    if outcome.error is not None:
        state.warn(RunWarning("diverged", f"{job.title} is left out: {outcome.error}"))
        return
    for identity in candidate_ids(job):
        compute = training.own_head if identity.head == "own head" else training.probe
        try:
            state.candidate(identity, functools.partial(compute, identity, outcome.seconds))
        except FloatingPointError as error:
            state.warn(RunWarning("diverged", f"{identity.name} is left out: {error}"))


class _JobTraining:
    """One training job. Its method is trained here, or loaded if an interrupted process has already trained it."""

    def __init__(self, state: RunState, workspace: Workspace, job: TrainingJob) -> None:
        self.state, self.workspace, self.job = state, workspace, job
        self.trained = state.folder.path / TRAINED.named(job.key)

    @functools.cached_property
    def method(self) -> Method:
        method = self._build()
        try:
            method.load_state_dict(load_tensors(self.trained, root=self.state.folder.path)[0])
        except (OSError, RunError) as error:
            problem = f"{self.trained} cannot be read ({error})"
            self.state.console.print(f"note: {problem}; {self.job.title} is trained again")
            outcome = self.run()
            if outcome.error is not None:
                raise FloatingPointError(outcome.error) from error
            return self.method
        return method.to(self.workspace.settings.device).eval()

    def checkpoint(self, stage: StageLog | None = None) -> Checkpoint:
        """Return the checkpoint of the training, which is deleted after the outcome is stored."""
        run = self.state.folder
        return Checkpoint(run.path / TRAINING.named(self.job.key), stage, run.path)

    def _build(self) -> Method:
        seed_phase(self.state.settings.seed, self.job.random_stream)
        return self.workspace.backbone.build(self.job.method, self.job.settings, self.workspace.records.label_space)

    def run(self) -> Outcome:
        """Train the method, continuing from its last checkpoint if there is one, and save it."""
        w, job = self.workspace, self.job
        method = self._build()
        names, weights = w.records.label_space.names, w.settings.encoder.weights
        warm_start(method, w.backbone, self.state.candidates[FROZEN_PROBE], weights, names, w.console)
        images = None if job.training.views is None else job.training.views // method.n_views
        batches = w.batches.training(
            n_views=method.n_views, batch_size=job.training.batch_size, epochs=job.training.epochs, images=images
        )
        stage = self.state.run_record.log.stage(job.title) if is_main_process() else None
        checkpoint = self.checkpoint(stage)
        try:
            problem = self._fit(method, batches, stage, checkpoint)
            check_weights(method)
        except FloatingPointError as error:
            return Outcome(checkpoint.seconds(), str(error))
        seconds = checkpoint.seconds()
        if is_main_process():
            self._save(method)
        self.method = method
        collapse = RunWarning("collapse", (stage and stage.warning) or "")
        return Outcome(seconds, warnings=tuple(w for w in (collapse, RunWarning("skipped", problem)) if w.message))

    def _fit(self, method: Method, batches: Batches, stage: StageLog | None, checkpoint: Checkpoint) -> str:
        """Train the method and return a message about skipped batches, which is empty if there are none."""
        job, device = self.job, self.workspace.settings.device
        with self.workspace.console.progress(f"training {job.title}", len(batches), hidden_terms=STATISTICS) as bar:
            callbacks: list[Callback] = [stage, bar, self._name_skipped] if stage else []
            try:
                skipped = fit(method, batches, job.training, device=device, callbacks=callbacks, checkpoint=checkpoint)
            except DivergedError as error:
                if not error.steps:
                    raise
                return f"{job.title} stopped early with its last weights before that: {error}"
        count = counted(len(skipped), "batch was", "batches were")
        return f"{job.title}: {count} skipped because the loss or the gradient is NaN or inf" if skipped else ""

    def _name_skipped(self, event: StepEvent) -> None:
        if event.skipped is not None:
            paths, loss = self.workspace.records.paths, float(event.loss)
            problem = "the gradient is NaN or inf" if math.isfinite(loss) else f"the loss is {loss}"
            root = common_image_folder(paths)
            names = ", ".join(relative_path(paths[row], root) for row in event.skipped.tolist())
            self.state.console.print(f"warning: {self.job.title}, step {event.step}: {problem}; skipped {names}")

    def _save(self, method: Method) -> None:
        run = self.state.folder
        if len(candidate_ids(self.job)) == 1:  # no head of its own, so no candidate contains the complete method
            name = MODEL.name if self.job.key == self.job.method else f"{self.job.key}.safetensors"
            state = self.workspace.backbone.full_state(method)
            save_tensors(run.path / CONTRASTIVE / name, state, root=run.path)
        save_tensors(self.trained, method.state_dict(), root=run.path)

    def own_head(self, identity: CandidateId, seconds: float) -> Candidate:
        """Score the method's own head on validation and return it as a candidate."""
        w, method = self.workspace, self.method
        assert isinstance(method, Classifier)
        scores = _predict(w, f"scoring {identity.name} on val", method, "val")
        if not scores.isfinite().all():
            raise FloatingPointError("its scores are NaN or inf; try a lower learning rate")
        name, settings = self.job.method, self.job.settings
        if isinstance(method, CustomLoss):  # saved as a plain linear layer: loading a run must not need the loss file
            name, settings = "probe", ProbeConfig()
        state, result = w.backbone.full_state(method), evaluate_split(w.records, "val", scores, method.note)
        return Candidate(identity, name, settings, state, {"val": scores}, result, seconds)

    def probe(self, identity: CandidateId, seconds: float) -> Candidate:
        """Fit a linear probe on the trained encoder and return it as a candidate."""
        n_views, note = self.workspace.settings.probe.views, self.method.probe_note
        return _fit_probe(self.state, self.workspace, identity, self.method.encoder, n_views, seconds, note)


def _fit_probe(
    state: RunState,
    workspace: Workspace,
    identity: CandidateId,
    part: Encoder | PrecomputedFeatures,
    n_augmented: int,
    seconds: float,
    note: str = "",
) -> Candidate:
    w, s, started = workspace, workspace.settings, time.perf_counter()
    cache, network = w.feature_source(identity.key, part)
    splits: dict[Split, StoredViews] = {"train": cache.probing(n_augmented=n_augmented), "val": cache.plain("val")}
    if cache is w.batches:
        started = time.perf_counter()  # cached activations are shared, so no candidate is charged for them
    with w.console.progress(f"features for {identity.name}", sum(map(len, splits.values()))) as bar:
        features = {
            split: extract(network, batches, device=s.device, done=bar.advance) for split, batches in splits.items()
        }
    if not all(bool(values.isfinite().all()) for values in features.values()):
        raise FloatingPointError("its features are NaN or inf; try a lower learning rate")
    train = LabeledFeatures(features["train"], *targets_of(w.records, "train"), weights_of(w.records, "train"))
    val = LabeledFeatures(features["val"], *labels_of(w.records, "val"))
    with w.console.progress(f"fitting {identity.name}", s.probe.steps(len(train.labels))) as bar:
        callbacks: list[Callback] = [state.run_record.log.stage(identity.name), bar] if is_main_process() else []
        seed_phase(state.settings.seed, identity.random_stream)
        fit_started = time.perf_counter()
        fitted = fit_probe(train, val, w.records.label_space, s.probe, seed=s.seed, callbacks=callbacks)
        fit_seconds = time.perf_counter() - fit_started
    with torch.inference_mode():
        scores = fitted.probe.logits(val.features[0]).sigmoid()
    probe = fitted.probe.on(copy.deepcopy(part), w.records.label_space)  # a copy, since a probe freezes its encoder
    seconds += time.perf_counter() - started
    parameters, result = w.backbone.full_state(probe), evaluate_split(w.records, "val", scores, note)
    return Candidate(
        identity, "probe", probe.config, parameters, {"val": scores}, result, seconds, fit_seconds, fitted.weight_decay
    )


def evaluate_on_test(workspace: Workspace, candidate: Candidate) -> ScoredTest:
    """Score a candidate on the test split; for a probe, also evaluate retrieval with its features."""
    w = workspace
    title = f"scoring {candidate.name} on test"
    classifier = w.backbone.classifier(candidate, w.records.label_space)
    if not isinstance(classifier, Probe):
        scores = _predict(w, title, classifier, "test")
        return ScoredTest(scores, evaluate_split(w.records, "test", scores, candidate.note))
    batches = w.batches.plain("test")
    with w.console.progress(title, len(batches)) as bar:
        features = extract(classifier.encoder, batches, device=w.settings.device, done=bar.advance)[0]
    with torch.inference_mode():
        scores = copy.deepcopy(classifier.linear).cpu()(features).sigmoid()
    evaluation = evaluate_split(w.records, "test", scores, candidate.note)
    return ScoredTest(scores, evaluation, retrieval_at_10(features, *labels_of(w.records, "test")))


def training_images(workspace: Workspace, candidate: Candidate) -> TrainingImages:
    """Return the features that a candidate's encoder computes from the plain views of the training images."""
    w, rows = workspace, workspace.records.rows("train")
    classifier = w.backbone.classifier(candidate, w.records.label_space)
    cache, network = w.feature_source(candidate.id.key, classifier.encoder)
    features = extract(network, cache.plain("train"), device=w.settings.device)[0]
    labels, known = labels_of(w.records, "train")
    root = common_image_folder(w.records.paths)
    paths = tuple(relative_path(w.records.paths[row], root) for row in rows)
    return TrainingImages(paths, features.half(), labels == 1, known)


def _predict(workspace: Workspace, title: str, classifier: Classifier, split: Split) -> Float[Tensor, "N C"]:
    batches: Any = workspace.batches.plain(split)
    with workspace.console.progress(title, len(batches)) as bar:
        return predict(classifier, batches, device=workspace.settings.device, done=bar.advance)
