"""The linear probe: the second stage of ProbMCL, and the baseline that every trained method is compared with."""

import copy
from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder
from probmcl.losses import asymmetric, binary_cross_entropy
from probmcl.methods.base import (
    Known,
    Labels,
    LinearClassifier,
    Logits,
    Method,
    MethodOrigin,
    Step,
    Views,
    rescale_for_ddp,
)


@dataclass(frozen=True)
class Config:
    """Settings of `probe`.

    Attributes:
        loss: `asl` is the asymmetric loss with its published values, as in the paper; `bce` is binary cross-entropy.
    """

    loss: Literal["asl", "bce"] = "asl"


@final
class Probe(LinearClassifier):
    """Linear layer on the standardized features of a frozen encoder, trained with the asymmetric loss.

    The encoder is frozen and stays in eval mode. `standardize` sets the shift and scale of the features; `on` folds
    them into the linear layer, so the final model is an encoder and one linear layer.

    Reference: ProbMCL, section 2.2, last paragraph; decision 0001, point 20.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("standard")
    config: Config
    shift: Float[Tensor, "D"]
    scale: Float[Tensor, "D"]

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Config | None = None) -> None:
        super().__init__(encoder, label_space, config)
        self.encoder.requires_grad_(False)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)
        self.register_buffer("shift", torch.zeros(encoder.features), persistent=False)
        self.register_buffer("scale", torch.ones(encoder.features), persistent=False)

    def train(self, mode: bool = True) -> "Probe":
        """Set the mode of the linear layer; the encoder stays in eval mode."""
        super().train(mode)
        self.encoder.eval()
        return self

    def standardize(self, features: Float[Tensor, "K D"]) -> None:
        """Standardize all features from now on, using the mean and standard deviation of the given features."""
        deviation = features.std(0, correction=0)
        self.shift = features.mean(0)
        self.scale = deviation.where(deviation > 0, 1)  # a constant feature becomes 0

    def logits(self, images: Float[Tensor, "N *image"]) -> Logits:
        """Apply the linear layer to the standardized features."""
        with torch.no_grad():
            features = (self.encoder(images) - self.shift) / self.scale
        logits: Tensor = self.linear(features)
        return logits

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the mean over the known entries, which makes weight decay independent of the number of classes."""
        loss_function = asymmetric if self.config.loss == "asl" else binary_cross_entropy
        return loss_function(logits, labels, known, reduction=self.reduction)

    @torch.no_grad()
    def on(self, encoder: AnyEncoder, label_space: LabelSpace) -> "Probe":
        """Return this probe on another encoder, with the standardization folded into the linear layer.

        W (h − shift) / scale + b = W' h + b' with W' = W / scale and b' = b − W' shift.
        """
        folded = Probe(encoder, label_space, self.config)
        folded.linear.weight.copy_(self.linear.weight / self.scale)
        folded.linear.bias.copy_(self.linear.bias - folded.linear.weight @ self.shift)
        return folded


@final
class ProbeGrid(Method):
    """K probes on the same features, trained together in one matrix product, for example with different weight decays.

    The loss is the sum of their losses, and Adam treats every weight by itself. So each probe takes the same steps as
    if it were trained alone.
    """

    n_views = 1
    presets = Probe.presets

    def __init__(self, probe: Probe, count: int) -> None:
        super().__init__()
        self.probe = probe.requires_grad_(False)
        self.encoder = probe.encoder
        self.weight = nn.Parameter(probe.linear.weight.detach().repeat(count, 1, 1))  # (K, C, D)
        self.bias = nn.Parameter(probe.linear.bias.detach().repeat(count, 1))  # (K, C)

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the sum of the losses of all K probes, which are computed as one classifier with K·C classes."""
        count = len(self.weight)
        features = (views.flatten(0, 1) - self.probe.shift) / self.probe.scale  # (N, D)
        logits = nn.functional.linear(features, self.weight.flatten(0, 1), self.bias.flatten())  # (N, K C)
        grid_labels = labels.repeat(1, count)  # (N, K C)
        grid_known = None if known is None else known.repeat(1, count)
        loss = count * self.probe.loss(logits, grid_labels, grid_known)  # the probe returns the mean over its entries
        return Step(rescale_for_ddp(loss, self.probe.reduction, grid_known), {})

    @torch.no_grad()
    def member(self, index: int) -> Probe:
        """Return one of the probes."""
        probe = copy.deepcopy(self.probe)
        probe.linear.weight.copy_(self.weight[index])
        probe.linear.bias.copy_(self.bias[index])
        return probe
