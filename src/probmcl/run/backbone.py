"""The encoder of a run, divided into a frozen trunk and the part that learns."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probmcl.console import Console
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures, describe_encoder, split_encoder
from probmcl.files import load_tensors
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, LinearClassifier, Method
from probmcl.run.results import Candidate
from probmcl.run_folder import LABELS, METADATA, MODEL, RunFolder
from probmcl.settings import Settings, Tune


@dataclass(frozen=True, eq=False)
class Backbone:
    """An encoder and the part of it that learns.

    Attributes:
        encoder: the whole encoder.
        trunk: the frozen part, whose outputs are cached; None if the whole encoder learns.
        tail: the part that learns; with `tune` none it only passes cached features on.
        tune: how much of the encoder learns; `all` if it cannot be split.
    """

    encoder: Encoder
    trunk: nn.Module | None
    tail: Encoder | PrecomputedFeatures
    tune: Tune

    @classmethod
    def divide(cls, encoder: Encoder, tune: Tune) -> Backbone:
        """Divide an encoder as `tune` asks."""
        if tune == "none":
            return cls(encoder, encoder, PrecomputedFeatures(encoder.features), tune)
        parts = split_encoder(encoder) if tune == "last" else None
        return cls(encoder, None, encoder, "all") if parts is None else cls(encoder, parts.trunk, parts.tail, tune)

    def build(self, method: str, settings: Any, label_space: LabelSpace) -> Method:
        """Build a method on a copy of the part that learns."""
        return find_method(method)(copy.deepcopy(self.tail), label_space, settings)

    def classifier(self, candidate: Candidate, label_space: LabelSpace) -> Classifier:
        """Build a candidate on a copy of the part that learns, with its trained parameters."""
        classifier = self.build(candidate.method, candidate.settings, label_space)
        assert isinstance(classifier, Classifier)
        classifier.load_state_dict({key: candidate.state[key] for key in classifier.state_dict()})
        return classifier

    def full_state(self, method: Method) -> dict[str, Tensor]:
        """Return the state of a method on the whole encoder: the frozen parameters and the trained ones."""
        frozen = {f"encoder.{key}": value for key, value in self.encoder.state_dict().items()}
        return frozen | method.state_dict()


def build_encoder(settings: Settings, console: Console) -> Encoder:
    """Build the encoder that a run starts from, announcing it before anything is downloaded."""
    s = settings.encoder
    console.print(f"encoder: {describe_encoder(s.name)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        encoder = Encoder(s.name, weights=s.weights, image_size=s.image_size)
    encoder.fixed_statistics = (s.statistics or ("fixed" if s.weights else "moving")) == "fixed"
    return encoder


def refuse_unbuildable(settings: Settings, encoder: Encoder, label_space: LabelSpace) -> None:
    """Raise an error for a method that cannot be built on this encoder, before anything is computed or written."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # they are printed when it is trained
        for job in settings.jobs:
            part = PrecomputedFeatures(encoder.features) if settings.tune == "none" else copy.deepcopy(encoder)
            find_method(job.method)(part, label_space, job.settings)


def warm_start(
    method: Method, backbone: Backbone, frozen: Candidate, weights: str | None, names: tuple[str, ...], console: Console
) -> None:
    """Initialize the linear layer of a method that is one linear layer on the encoder.

    If all of a pretrained encoder learns, it starts as the probe on the frozen encoder: a random layer would destroy
    what the encoder knows before it has learned anything itself. Otherwise, if the weights come from an earlier run, it
    starts as the layer of that run for the classes that both have.
    """
    common = _common_classes(weights, names, console)
    if not isinstance(method, LinearClassifier):
        return
    if backbone.tune == "all" and weights is not None:
        # Deviation (decision 0004): the published methods start from random numbers.
        method.linear.load_state_dict({key: frozen.state[f"linear.{key}"] for key in ("weight", "bias")})
    elif common:
        tensors, _ = load_tensors(Path(str(weights)) / MODEL)
        here, there = list(common), list(common.values())
        with torch.no_grad():
            for name, values in method.linear.named_parameters():
                if f"linear.{name}" in tensors:
                    values[here] = tensors[f"linear.{name}"][there].to(values.device)


def _common_classes(weights: str | None, names: tuple[str, ...], console: Console) -> Mapping[int, int]:
    """Return the indices of classes here and in the run that the weights come from, by name."""
    if weights in (None, "pretrained") or not RunFolder(Path(weights)).has(METADATA):
        return {}
    earlier: list[str] = RunFolder(Path(weights)).read(LABELS)["names"]
    common = [name for name in names if name in earlier]
    new = ", ".join(name for name in names if name not in earlier) or "none"
    unused = ", ".join(name for name in earlier if name not in names) or "none"
    console.print(f"  classes that {weights} knows: {len(common)} of {len(names)}; new: {new}; not used: {unused}")
    return {names.index(name): earlier.index(name) for name in common}
