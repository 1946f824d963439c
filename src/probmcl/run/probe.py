"""ProbMCL, stage 2: a linear classifier on frozen features, with the weight decay chosen on validation."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor
from torch.optim import AdamW, Optimizer

from probmcl.data.records import LabelSpace
from probmcl.encoders import PrecomputedFeatures
from probmcl.evaluation.metrics import average_precision
from probmcl.methods.base import Method
from probmcl.methods.probe import Config, Probe, ProbeGrid
from probmcl.settings import ProbeSettings
from probmcl.training.features import FeatureBatches
from probmcl.training.fit import Callback, fit
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
    batches = FeatureBatches(
        train.features,
        train.labels,
        train.known,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        seed=seed,
        weights=train.weights,
    )
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
