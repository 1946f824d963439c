"""One row for a method on an encoder, at an image size, with a number of classes: what it costs, by shapes alone."""

from __future__ import annotations

import copy
import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from probmcl.cost.operations import Operations, operations
from probmcl.cost.size import parameters
from probmcl.cost.speed import Measuring, Speed, an_example, measured
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.encoders.encoder import MODEL_ERRORS
from probmcl.errors import SettingsError
from probmcl.methods import METHODS, find_method, full_name
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.settings import method_settings, short_name

IMAGES = 8
"""In the step whose operations are counted: what a contrast compares among them adds next to nothing to an encoder."""


@dataclass(frozen=True)
class Choice:
    """A method with settings, and the name of the preset that they are."""

    method: str
    preset: str
    settings: Any

    @property
    def name(self) -> str:
        """What its rows are called."""
        return short_name(self.method) if self.preset == "default" else f"{short_name(self.method)}:{self.preset}"


def choices(said: Sequence[str], preset: str | None = None) -> tuple[Choice, ...]:
    """The methods that are meant by `all`, NAME, NAME:PRESET or a place elsewhere; a `preset` is of those without one.

    >>> [choice.name for choice in choices(["csra", "probmcl:paper", "csra"])]
    ['csra', 'probmcl:paper']
    """
    names = [name for word in said for name in (METHODS if word == "all" else [word])]
    found: dict[str, Choice] = {}
    for choice in (_choice(name, preset) for name in names):
        if found.setdefault(choice.name, choice).method != choice.method:
            raise SettingsError(
                f"{found[choice.name].method} and {choice.method}: both would be called {choice.name}; rename one"
            )
    return tuple(found.values())


def _choice(said: str, preset: str | None) -> Choice:
    name, _, own = said.partition(":")
    method, chosen = (name, own or preset) if name in METHODS else (full_name(said), preset)
    if own and preset and name in METHODS and own != preset:
        raise SettingsError(f"{said} and --preset {preset}: two presets of {name}; give one")
    return Choice(method, chosen or "default", method_settings(method, chosen or "default"))


class Costs(NamedTuple):
    """The numbers of a row that follow from shapes alone; see `Row`."""

    training_parameters: int
    prediction_parameters: int
    gmac: float
    gmac_ptflops: float
    training_gmac: float


@dataclass(frozen=True)
class Row:
    """What a method costs on an encoder.

    Attributes:
        method: its name, with the preset where that is not the default.
        encoder: the name of timm's model.
        image_size: side of the square image; None where the encoder has none that it can take.
        classes: how many.
        views: of each image in a step.
        own_head: whether it predicts by itself; else an encoder with one linear layer does, the probe.
        training_parameters: of everything that is there in training.
        prediction_parameters: of what predicts.
        gmac: of predicting one image, matrix products and convolutions alone.
        gmac_ptflops: the same by the convention of ptflops.
        training_gmac: products of a step's forward pass, for each image: of all its views, and of what they train.
        problem: why it cannot be; then there are no numbers.
        speed: what was measured, if anything was.
        unmeasured: why nothing could be.
    """

    method: str
    encoder: str
    image_size: int | None
    classes: int
    views: int
    own_head: bool
    training_parameters: int | None = None
    prediction_parameters: int | None = None
    gmac: float | None = None
    gmac_ptflops: float | None = None
    training_gmac: float | None = None
    problem: str | None = None
    speed: Speed | None = None
    unmeasured: str | None = None


@dataclass(frozen=True)
class Empty:
    """An encoder without numbers, and what it takes to encode one image."""

    encoder: Encoder
    image: Operations


@functools.lru_cache(maxsize=8)
def empty_encoder(name: str, image_size: int | None = None) -> Empty:
    """The encoder of a name at a size, by default its own.

    >>> empty_encoder("resnet18", 224).image.products
    1813561344
    """
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.no_grad():
        encoder = Encoder(name, image_size=image_size).eval()
        image = torch.empty(1, 3, encoder.image_size, encoder.image_size)
        try:
            return Empty(encoder, operations(lambda: encoder(image)))
        except MODEL_ERRORS as error:
            raise ValueError(f"{name} cannot be followed by shapes alone ({error}); choose another model") from error


def row(choice: Choice, name: str, empty: Empty, classes: int) -> Row:
    """What a method costs on an encoder; where it cannot be built, why.

    >>> row(choices(["bce"])[0], "resnet18", empty_encoder("resnet18", 224), 9).prediction_parameters
    11181129
    """
    kind = find_method(choice.method)
    about = (choice.name, name, empty.encoder.image_size, classes, kind.n_views, kind.has_own_head(choice.settings))
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # they are for those who train it
            return Row(*about, *_costs(kind, choice.settings, empty, label_space(classes)))
    except MODEL_ERRORS as error:
        return Row(*about, problem=str(error) or type(error).__name__)


def survey(
    chosen: Sequence[Choice],
    encoders: Sequence[str],
    image_sizes: Sequence[int | None],
    classes: Sequence[int],
    measuring: Measuring | None = None,
) -> Iterator[Row]:
    """A row for every combination; an encoder that cannot take a size has rows that say so."""
    for name, size in itertools.product(encoders, image_sizes):
        try:
            empty = empty_encoder(name, size)
        except ValueError as error:
            yield from (_impossible(choice, name, size, c, str(error)) for c in classes for choice in chosen)
            continue
        for c, choice in itertools.product(classes, chosen):
            found = row(choice, name, empty, c)
            yield found if found.problem or measuring is None else _measured(found, choice, empty, measuring)


def _impossible(choice: Choice, name: str, size: int | None, classes: int, problem: str) -> Row:
    kind = find_method(choice.method)
    return Row(choice.name, name, size, classes, kind.n_views, kind.has_own_head(choice.settings), problem=problem)


def _measured(found: Row, choice: Choice, empty: Empty, measuring: Measuring) -> Row:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        encoder = Encoder(empty.encoder.name, image_size=empty.encoder.image_size)
        try:
            speed = measured(choice.method, choice.settings, encoder, label_space(found.classes), measuring)
        except torch.OutOfMemoryError:  # others may need less
            return replace(found, unmeasured="not measured, out of memory; a smaller --batch-size helps")
    return replace(found, speed=speed)


def label_space(classes: int) -> LabelSpace:
    """Classes of no particular names, of which each occurs alone.

    >>> label_space(2).names
    ('class 1', 'class 2')
    """
    names = tuple(f"class {number}" for number in range(1, classes + 1))
    return LabelSpace(names, np.ones(classes, dtype=np.int64), np.zeros((classes, classes), dtype=np.int64))


def _costs(kind: type[Method], settings: Any, empty: Empty, space: LabelSpace) -> Costs:
    """Of an encoder and what sits on its features, each counted alone; where a method needs maps, of both together."""
    if kind.needs_maps:
        return _costs_on_maps(kind(copy.deepcopy(empty.encoder), space, settings), kind.has_own_head(settings))
    encoder, features = parameters(empty.encoder), empty.encoder.features
    on_features = kind(PrecomputedFeatures(features), space, settings)
    step = _step(on_features, features, len(space))
    own_head = kind.has_own_head(settings)
    head = _predicted(on_features if own_head else Probe(PrecomputedFeatures(features), space), torch.rand(1, features))
    prediction = empty.image + head.operations
    return Costs(
        training_parameters=encoder + parameters(on_features),
        prediction_parameters=encoder + head.parameters,
        gmac=prediction.gmac,
        gmac_ptflops=prediction.gmac_ptflops,
        training_gmac=kind.n_views * empty.image.gmac + step.gmac / IMAGES,
    )


def _costs_on_maps(method: Method, own_head: bool) -> Costs:
    """Of a method that needs maps; it trains what predicts, once for each view."""
    assert isinstance(method.encoder, Encoder)
    if not own_head:
        raise ValueError("it needs more than pooled features and does not predict by itself; this cannot be counted")
    size = method.encoder.image_size
    predicted = _predicted(method.to("meta"), torch.empty(1, 3, size, size, device="meta"))
    return Costs(
        training_parameters=parameters(method),
        prediction_parameters=predicted.parameters,
        gmac=predicted.operations.gmac,
        gmac_ptflops=predicted.operations.gmac_ptflops,
        training_gmac=method.n_views * predicted.operations.gmac,
    )


def _step(method: Method, features: int, classes: int) -> Operations:
    views, labels = an_example(method.n_views, IMAGES, (features,), classes)
    method.train()
    return operations(lambda: method(views, labels))


class _Predicted(NamedTuple):
    operations: Operations
    parameters: int


def _predicted(classifier: Method, image: Tensor) -> _Predicted:
    """What one image takes, and how many parameters its logits depend on; the rest is for training, or unused."""
    assert isinstance(classifier, Classifier)
    classifier.eval().requires_grad_(True)
    found: list[Tensor] = []
    with torch.enable_grad():
        taken = operations(lambda: found.append(classifier.logits(image)))
    return _Predicted(taken, sum(parameter.numel() for parameter in leaves(found[0])))


def leaves(result: Tensor) -> set[Tensor]:
    """The parameters that a tensor was computed from, each once.

    >>> layer, other = torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)
    >>> leaves(layer(torch.rand(1, 4))) == {layer.weight, layer.bias}
    True
    """
    found: set[Tensor] = set()
    seen: set[Any] = {None}
    coming: list[Any] = [result.grad_fn]
    while coming:
        node = coming.pop()
        if node in seen:
            continue
        seen.add(node)
        coming += [before for before, _ in node.next_functions]
        found |= {node.variable} if node.name() == "torch::autograd::AccumulateGrad" else set()
    return found
