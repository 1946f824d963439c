"""Candidates of a run: linear probes on frozen features (ProbMCL, stage 2), and trained methods."""

import copy
import functools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import AdamW, Optimizer

from probmcl.data.records import Split
from probmcl.encoders import AnyEncoder, PrecomputedFeatures
from probmcl.errors import RunError, RunWarning, counted
from probmcl.evaluation.embedding import retrieval_at_10
from probmcl.evaluation.evaluate import evaluate_split, predict
from probmcl.evaluation.metrics import average_precision
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.contrast import STATISTICS
from probmcl.methods.custom_loss import CustomLoss
from probmcl.methods.probe import Config as ProbeConfig
from probmcl.methods.probe import Probe, ProbeGrid
from probmcl.neighbors.training_images import TrainingImages, common_image_folder, relative_path
from probmcl.run.activation_cache import labels_of, targets_of, weights_of
from probmcl.run.results import FROZEN_PROBE, Candidate, CandidateId
from probmcl.run.state import RunState, ScoredTest, json_format, seed_phase
from probmcl.run.workspace import Workspace, warm_start
from probmcl.runtime.distributed import is_main_process
from probmcl.runtime.tensor_files import load_tensors, save_tensors
from probmcl.settings import ProbeSettings, TrainingJob
from probmcl.store.files import CONTRASTIVE, MODEL, TRAINED, TRAINING
from probmcl.training import Checkpoint, StepEvent
from probmcl.training.features import FeatureBatches, LabeledFeatures, StoredFeatures, StoredViews, extract
from probmcl.training.fit import Batches, Callback, DivergedError, check_weights, fit
from probmcl.training.metrics_log import StageLog
from probmcl.training.optimizer import Training


class FittedProbe(NamedTuple):
    """A probe on extracted features, with its weight decay and validation mAP."""

    probe: Probe
    weight_decay: float
    validation: float


def fit_probe(
    train: LabeledFeatures,
    validation: LabeledFeatures,
    settings: ProbeSettings,
    *,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
) -> FittedProbe:
    """Fit a probe for each weight decay and return the best on validation; on a tie, the one with the larger decay."""
    # Deviation (decision 0001, point 20): decoupled decay, chosen on validation; it changed results by two points.
    probes = fit_grid(train, settings, seed=seed, callbacks=callbacks)
    fitted = [FittedProbe(probe, decay, validation_map(probe, validation)) for decay, probe in probes.items()]
    return max(fitted, key=lambda result: (result.validation, result.weight_decay))


def fit_grid(
    train: LabeledFeatures, settings: ProbeSettings, *, seed: int = 0, callbacks: Sequence[Callback] = ()
) -> dict[float, Probe]:
    """Fit the probes of all weight decays together and return them by weight decay."""
    stored = StoredFeatures(train.features, train.labels, train.known, weights=train.weights)
    batches = FeatureBatches(stored, batch_size=settings.batch_size, epochs=settings.epochs, seed=seed)
    encoder = PrecomputedFeatures(train.features.shape[2])
    probe = Probe(encoder, train.label_space, ProbeConfig(loss=settings.loss))
    probe.standardize(train.features.flatten(0, 1))  # (V N, D)
    decays = settings.weight_decays
    grid = ProbeGrid(probe, len(decays))
    make_optimizer = functools.partial(_optimizer, decays=decays)
    fit(grid, batches, settings.training(), callbacks=callbacks, make_optimizer=make_optimizer)
    return {decay: grid.member(index) for index, decay in enumerate(decays)}


def _optimizer(grid: Method, training: Training, *, decays: Sequence[float]) -> Optimizer:
    """Return AdamW with a weight decay of its own for the weights of each probe, and none for the biases."""
    assert isinstance(grid, ProbeGrid)
    # All probes share one tensor of weights, for which AdamW has only one decay. So a hook applies their decays.
    optimizer = AdamW([grid.weight, grid.bias], lr=training.learning_rate, weight_decay=0.0)
    decay_of_probe = torch.tensor(decays).view(-1, 1, 1)  # (K, 1, 1), for weights of shape (K, C, D)

    @torch.no_grad()
    def decay_weights(optimizer: Optimizer, args: object, kwargs: object) -> None:
        learning_rate = optimizer.param_groups[0]["lr"]
        grid.weight.mul_(1 - learning_rate * decay_of_probe)

    optimizer.register_step_pre_hook(decay_weights)  # AdamW also decays before it takes a step
    return optimizer


@torch.inference_mode()
def validation_map(probe: Probe, data: LabeledFeatures) -> float:
    """Return the mean average precision over the classes with a positive; 0 if no class has one.

    The images are scored by their first view, which is the plain one.
    """
    scores = probe.logits(data.features[0])
    precisions = average_precision(scores, data.labels, data.known)  # (C,); NaN for a class without a positive
    return precisions.nanmean().nan_to_num().item()


def candidate_ids(job: TrainingJob) -> list[CandidateId]:
    """Return the candidates of a training job: the method's own head, if it has one, and a probe on its encoder."""
    probe = CandidateId(job.name, "re-probed", job.trial)
    if not find_method(job.method).has_own_head(job.settings):
        return [probe]
    return [CandidateId(job.name, "own head", job.trial), probe]


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
    training.checkpoint().delete()  # the outcome, which is stored now, has taken its place
    for warning in outcome.warnings:
        state.warn(warning)
    if outcome.error is not None:
        state.warn(RunWarning("diverged", f"{job.title} is left out: {outcome.error}"))
        return
    for identity in candidate_ids(job):
        compute = functools.partial(training.candidate, identity, outcome.seconds)
        try:
            state.candidate(identity, compute)
        except FloatingPointError as error:
            state.warn(RunWarning("diverged", f"{identity.name} is left out: {error}"))


class _JobTraining:
    """One training job. Its method is trained here, or loaded if an interrupted process has already trained it."""

    def __init__(self, state: RunState, workspace: Workspace, job: TrainingJob) -> None:
        self.state = state
        self.workspace = workspace
        self.job = job
        self.trained = state.folder.path / TRAINED.named(job.key)

    @functools.cached_property
    def method(self) -> Method:
        """The trained method, on the device of the run and in eval mode.

        `run` sets it. Without a call of `run`, an interrupted process has trained the method, and it is loaded.
        """
        method = self._build()
        try:
            tensors, _ = load_tensors(self.trained, root=self.state.folder.path)
            method.load_state_dict(tensors)
        except (OSError, RunError) as error:
            return self._train_again(error)
        return method.to(self.workspace.settings.device).eval()

    def _train_again(self, unreadable: OSError | RunError) -> Method:
        """Train the method although its job is complete, since the file of the trained method cannot be read."""
        problem = f"{self.trained} cannot be read ({unreadable})"
        self.state.console.print(f"note: {problem}; {self.job.title} is trained again")
        outcome = self.run()
        if outcome.error is not None:
            raise FloatingPointError(outcome.error) from unreadable
        return self.method  # `run` has set it

    def checkpoint(self, stage: StageLog | None = None) -> Checkpoint:
        """Return the checkpoint of the training, with the state of the stage's log, if there is one."""
        run = self.state.folder
        return Checkpoint(run.path / TRAINING.named(self.job.key), stage, run.path)

    def _build(self) -> Method:
        """Build the method with the initial weights that its random stream determines."""
        seed_phase(self.state.settings.seed, self.job.random_stream)
        return self.workspace.backbone.build(self.job.method, self.job.settings, self.workspace.records.label_space)

    def run(self) -> Outcome:
        """Train the method, continuing from its last checkpoint if there is one, and save it."""
        method = self._build()
        warm_start(method, self.workspace, self.state.candidates[FROZEN_PROBE])
        batches = self._batches(method)
        stage = self.state.run_record.log.stage(self.job.title) if is_main_process() else None
        checkpoint = self.checkpoint(stage)
        try:
            skip_message = self._fit(method, batches, stage, checkpoint)
            check_weights(method)
        except FloatingPointError as error:
            return Outcome(checkpoint.seconds(), str(error))
        seconds = checkpoint.seconds()
        if is_main_process():
            self._save(method)
        self.method = method
        warnings = []
        if stage is not None and stage.warning:  # the log of a stage watches for a collapse
            warnings.append(RunWarning("collapse", stage.warning))
        if skip_message:
            warnings.append(RunWarning("skipped", skip_message))
        return Outcome(seconds, warnings=tuple(warnings))

    def _batches(self, method: Method) -> Batches:
        """Return the training batches. If the job has a limit of views per image, they end when it is reached."""
        training = self.job.training
        images = None
        if training.views is not None:
            images = training.views // method.n_views
        return self.workspace.batches.training(
            n_views=method.n_views, batch_size=training.batch_size, epochs=training.epochs, images=images
        )

    def _fit(self, method: Method, batches: Batches, stage: StageLog | None, checkpoint: Checkpoint) -> str:
        """Train the method and return a message about skipped batches, which is empty if there are none.

        Raise `DivergedError` if not a single batch could be applied.
        """
        job = self.job
        device = self.workspace.settings.device
        with self.workspace.console.progress(f"training {job.title}", len(batches), hidden_terms=STATISTICS) as bar:
            callbacks: list[Callback] = []
            if stage is not None:  # only rank 0 has one, and only rank 0 prints
                callbacks = [stage, bar, self._print_skipped]
            try:
                skipped = fit(method, batches, job.training, device=device, callbacks=callbacks, checkpoint=checkpoint)
            except DivergedError as error:
                if error.steps == 0:
                    raise
                return f"{job.title} stopped early with its last weights before that: {error}"
        if not skipped:
            return ""
        count = counted(len(skipped), "batch was", "batches were")
        return f"{job.title}: {count} skipped because the loss or the gradient is NaN or inf"

    def _print_skipped(self, event: StepEvent) -> None:
        """Print the images of a batch that was skipped, and why it was."""
        if event.skipped is None:
            return
        loss = float(event.loss)
        problem = "the gradient is NaN or inf" if math.isfinite(loss) else f"the loss is {loss}"
        paths = self.workspace.records.paths
        root = common_image_folder(paths)
        names = ", ".join(relative_path(paths[row], root) for row in event.skipped.tolist())
        self.state.console.print(f"warning: {self.job.title}, step {event.step}: {problem}; skipped {names}")

    def _save(self, method: Method) -> None:
        """Save the trained method as a checkpoint and, if no candidate contains it completely, as a file to keep."""
        run = self.state.folder
        has_own_head = len(candidate_ids(self.job)) > 1
        if not has_own_head:  # its only candidate, the probe, has nothing but the encoder of the method
            # Several jobs of one method have keys that differ from the method, and need a file each.
            name = MODEL.name if self.job.key == self.job.method else f"{self.job.key}.safetensors"
            state = self.workspace.backbone.full_state(method)
            save_tensors(run.path / CONTRASTIVE / name, state, root=run.path)
        save_tensors(self.trained, method.state_dict(), root=run.path)

    def candidate(self, identity: CandidateId, seconds: float) -> Candidate:
        """Return a candidate of the job, given the duration of the training."""
        if identity.head == "own head":
            return self._own_head(identity, seconds)
        return self._probe(identity, seconds)

    def _own_head(self, identity: CandidateId, seconds: float) -> Candidate:
        """Score the method's own head on validation and return it as a candidate."""
        workspace = self.workspace
        method = self.method
        assert isinstance(method, Classifier)
        scores = _predict(workspace, f"scoring {identity.name} on val", method, "val")
        if not scores.isfinite().all():
            raise FloatingPointError("its scores are NaN or inf; try a lower learning rate")
        saved_as = self.job.method
        settings = self.job.settings
        if isinstance(method, CustomLoss):  # saved as a plain linear layer: loading a run must not need the loss file
            saved_as = "probe"
            settings = ProbeConfig()
        return Candidate(
            identity,
            saved_as,
            settings,
            state=workspace.backbone.full_state(method),
            scores={"val": scores},
            validation=evaluate_split(workspace.records, "val", scores, method.note),
            seconds=seconds,
        )

    def _probe(self, identity: CandidateId, seconds: float) -> Candidate:
        """Fit a linear probe on the trained encoder and return it as a candidate."""
        n_augmented = self.workspace.settings.probe.views
        probed = _ProbedEncoder(self.method.encoder, n_augmented, seconds, self.method.probe_note)
        return _fit_probe(self.state, self.workspace, identity, probed)


@dataclass(frozen=True, eq=False)
class _ProbedEncoder:
    """An encoder on which a probe is fitted.

    Attributes:
        encoder: the encoder; the candidate gets a copy of it.
        n_augmented: augmented views of each training image that the probe is fitted on, besides the plain one.
        seconds: duration of the training of the encoder, which is part of the duration of the candidate.
        note: note on the mAP of the probe; may be empty.
    """

    encoder: AnyEncoder
    n_augmented: int
    seconds: float = 0.0
    note: str = ""


def fit_frozen_probe(state: RunState, workspace: Workspace) -> Candidate:
    """Fit the linear probe on the frozen encoder."""
    frozen = _ProbedEncoder(workspace.backbone.tail, workspace.settings.probe.frozen_views)
    return _fit_probe(state, workspace, FROZEN_PROBE, frozen)


def _fit_probe(state: RunState, workspace: Workspace, identity: CandidateId, probed: _ProbedEncoder) -> Candidate:
    """Fit a linear probe to the features of an encoder, score it on validation, and return it as a candidate.

    The seconds of the candidate include the training of the encoder and the computation of its features.
    """
    records = workspace.records
    started = time.perf_counter()
    # The network computes the features from the cached tensors.
    cache, network = workspace.feature_source(identity.key, probed.encoder)
    train_views = cache.probing(n_augmented=probed.n_augmented)
    val_views = cache.plain("val")
    if cache is workspace.batches:
        started = time.perf_counter()  # cached activations are shared, so no candidate is charged for them

    train, val = _extract_features(workspace, f"features for {identity.name}", network, train_views, val_views)
    fitted, fit_seconds = _fit_timed(state, workspace, identity, train, val)
    with torch.inference_mode():
        scores = fitted.probe.logits(val.features[0]).sigmoid()
    encoder = copy.deepcopy(probed.encoder)  # a copy, since a probe freezes its encoder
    probe = fitted.probe.on(encoder, records.label_space)
    seconds = probed.seconds + (time.perf_counter() - started)
    return Candidate(
        identity,
        "probe",
        probe.config,
        state=workspace.backbone.full_state(probe),
        scores={"val": scores},
        validation=evaluate_split(records, "val", scores, probed.note),
        seconds=seconds,
        fit_seconds=fit_seconds,
        weight_decay=fitted.weight_decay,
    )


def _extract_features(
    workspace: Workspace, title: str, network: AnyEncoder, train_views: StoredViews, val_views: StoredViews
) -> tuple[LabeledFeatures, LabeledFeatures]:
    """Extract the features of the training and the validation images, and add the labels of these images."""
    records = workspace.records
    device = workspace.settings.device
    with workspace.console.progress(title, len(train_views) + len(val_views)) as bar:
        train_features = extract(network, train_views, device=device, done=bar.advance)
        val_features = extract(network, val_views, device=device, done=bar.advance)
    if not (train_features.isfinite().all() and val_features.isfinite().all()):
        raise FloatingPointError("its features are NaN or inf; try a lower learning rate")
    targets, known_targets = targets_of(records, "train")  # a target may be a probability, unlike a label
    weights = weights_of(records, "train")
    train = LabeledFeatures(train_features, targets, known_targets, records.label_space, weights)
    labels, known_labels = labels_of(records, "val")
    val = LabeledFeatures(val_features, labels, known_labels, records.label_space)
    return train, val


def _fit_timed(
    state: RunState, workspace: Workspace, identity: CandidateId, train: LabeledFeatures, val: LabeledFeatures
) -> tuple[FittedProbe, float]:
    """Fit a probe with the random stream of a candidate; return it with the duration of the fit in seconds."""
    settings = workspace.settings
    steps = settings.probe.steps(len(train.labels))
    with workspace.console.progress(f"fitting {identity.name}", steps) as bar:
        callbacks: list[Callback] = []
        if is_main_process():
            callbacks = [state.run_record.log.stage(identity.name), bar]
        seed_phase(settings.seed, identity.random_stream)
        started = time.perf_counter()
        fitted = fit_probe(train, val, settings.probe, seed=settings.seed, callbacks=callbacks)
        return fitted, time.perf_counter() - started


def evaluate_on_test(workspace: Workspace, candidate: Candidate) -> ScoredTest:
    """Score a candidate on the test split; for a probe, also evaluate retrieval with its features."""
    records = workspace.records
    title = f"scoring {candidate.name} on test"
    classifier = workspace.backbone.classifier(candidate, records.label_space)
    if not isinstance(classifier, Probe):
        scores = _predict(workspace, title, classifier, "test")
        return ScoredTest(scores, evaluate_split(records, "test", scores, candidate.note))
    batches = workspace.batches.plain("test")
    with workspace.console.progress(title, len(batches)) as bar:
        views = extract(classifier.encoder, batches, device=workspace.settings.device, done=bar.advance)
    features = views[0]  # (N, D), on the CPU
    linear = copy.deepcopy(classifier.linear).cpu()
    with torch.inference_mode():
        scores = linear(features).sigmoid()
    evaluation = evaluate_split(records, "test", scores, candidate.note)
    labels, known = labels_of(records, "test")
    return ScoredTest(scores, evaluation, retrieval_at_10(features, labels, known))


def training_images(workspace: Workspace, candidate: Candidate) -> TrainingImages:
    """Return the features that a candidate's encoder computes from the plain views of the training images."""
    records = workspace.records
    classifier = workspace.backbone.classifier(candidate, records.label_space)
    cache, network = workspace.feature_source(candidate.id.key, classifier.encoder)
    views = extract(network, cache.plain("train"), device=workspace.settings.device)
    features = views[0]  # (N, D)
    labels, known = labels_of(records, "train")
    root = common_image_folder(records.paths)
    paths = tuple(relative_path(records.paths[row], root) for row in records.rows("train"))
    return TrainingImages(paths, features.half(), labels == 1, known)


def _predict(workspace: Workspace, title: str, classifier: Classifier, split: Split) -> Float[Tensor, "N C"]:
    """Return the probabilities that a classifier predicts for the images of a split, with a progress bar."""
    batches: Any = workspace.batches.plain(split)
    with workspace.console.progress(title, len(batches)) as bar:
        return predict(classifier, batches, device=workspace.settings.device, done=bar.advance)
