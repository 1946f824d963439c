"""ProbMCL, stage 2: a linear classifier on frozen features, with the weight decay chosen on validation."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import PrecomputedFeatures
from probmcl.evaluation.metrics import average_precision
from probmcl.methods.probe import Config, Probe
from probmcl.settings import ProbeSettings
from probmcl.training.features import FeatureBatches
from probmcl.training.fit import Callback, fit


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
    callbacks: Callable[[float], Sequence[Callback]] = lambda weight_decay: (),
) -> FittedProbe:
    """Fit a probe for each weight decay and return the best on validation; on a tie, the one with the larger decay."""
    # Deviation (decision 0001, point 20): decoupled decay, chosen on validation; it changed results by two points.
    batches = FeatureBatches(
        train.features,
        train.labels,
        train.known,
        batch_size=settings.batch_size,
        epochs=settings.epochs,
        seed=seed,
        weights=train.weights,
    )
    fitted = []
    for weight_decay in settings.weight_decays:
        probe = Probe(PrecomputedFeatures(train.features.shape[2]), label_space, Config(loss=settings.loss))
        probe.standardize(train.features.flatten(0, 1))
        fit(probe, batches, settings.training(weight_decay), callbacks=callbacks(weight_decay))
        fitted.append(FittedProbe(probe, weight_decay, validation_map(probe, validation)))
    return max(fitted, key=lambda f: (f.validation, f.weight_decay))


@torch.inference_mode()
def validation_map(probe: Probe, data: LabeledFeatures) -> float:
    """Return the mean average precision over the classes with a positive; 0 if no class has one."""
    scores = probe.logits(data.features[0])
    return average_precision(scores, data.labels, data.known).nanmean().nan_to_num().item()
