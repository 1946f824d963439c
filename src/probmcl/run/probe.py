"""ProbMCL, stage 2: a linear classifier on frozen features, its weight decay chosen on validation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import Extracted
from probmcl.evaluation.metrics import average_precision
from probmcl.methods.probe import Config, Probe
from probmcl.training.features import FeatureBatches
from probmcl.training.fit import Watcher, fit
from probmcl.training.optimizer import Training


@dataclass(frozen=True)
class ProbeSettings:
    """How the linear probe is fitted on features that are extracted once.

    Attributes:
        epochs: how often every image is seen, each time in one of its views.
        views: augmented views of each training image beside the plain one.
        frozen_views: the same for the probe on the untouched encoder, which is to be there soon; a comparison gives it
            as many as the others.
        weight_decays: tried one after the other; the best on validation is kept.
        learning_rate: at the top of the cycle.
        batch_size: features in a step.
        loss: what the probe minimises; see `probmcl.methods.probe.Config`.
    """

    epochs: int = 45
    views: int = 2
    frozen_views: int = 0
    weight_decays: tuple[float, ...] = (0.1, 1.0, 10.0, 30.0, 100.0, 300.0)
    learning_rate: float = 2e-3
    batch_size: int = 256
    loss: Literal["asl", "bce"] = "asl"

    def __post_init__(self) -> None:
        if self.views < 0 or not 0 <= self.frozen_views <= self.views or not self.weight_decays:
            raise ValueError(
                f"probe: views={self.views}, frozen_views={self.frozen_views}, weight_decays={self.weight_decays}; "
                "give 0 or more, at most as many, and one or more"
            )
        for weight_decay in self.weight_decays:
            self.training(weight_decay)  # which refuses what is out of range

    def steps(self, images: int) -> int:
        """Steps of all fits together, on so many images."""
        return len(self.weight_decays) * self.epochs * (images // min(self.batch_size, images))

    def training(self, weight_decay: float) -> Training:
        """The settings of one fit."""
        return Training(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=weight_decay,
            decay="decoupled",
        )


class Labelled(NamedTuple):
    """Features of V views of N images, with what is known of the images and, to train on, how often each comes."""

    features: Float[Tensor, "V N D"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]
    weights: Float[ndarray, "N"] | None = None


class FittedProbe(NamedTuple):
    """A probe on extracted features, the decay it was fitted with, and its validation mAP."""

    probe: Probe
    weight_decay: float
    validation: float


def fit_probe(
    train: Labelled,
    validation: Labelled,
    label_space: LabelSpace,
    settings: ProbeSettings,
    *,
    seed: int = 0,
    watchers: Callable[[float], Sequence[Watcher]] = lambda weight_decay: (),
) -> FittedProbe:
    """Fit one probe for each weight decay and return the best on validation, the stronger decay where two are equal.

    `watchers` names who looks at the steps of the fit with a given decay.
    """
    # Deviation (decision 0001, point 20): decoupled decay, chosen on validation; it moved results by two points.
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
        probe = Probe(Extracted(train.features.shape[2]), label_space, Config(loss=settings.loss))
        probe.standardise(train.features.flatten(0, 1))
        fit(probe, batches, settings.training(weight_decay), watchers=watchers(weight_decay))
        fitted.append(FittedProbe(probe, weight_decay, validation_map(probe, validation)))
    return max(fitted, key=lambda f: (f.validation, f.weight_decay))


@torch.inference_mode()
def validation_map(probe: Probe, data: Labelled) -> float:
    """Mean average precision over the classes that have a positive; 0 where none has one."""
    scores = probe.logits(data.features[0])
    return average_precision(scores, data.labels, data.known).nanmean().nan_to_num().item()
