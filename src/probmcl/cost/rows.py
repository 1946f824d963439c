"""The cost of a method on an encoder, at an image size, with a number of classes, from shapes alone."""

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

from probmcl.cost.operations import Operations, count_operations, count_parameters
from probmcl.cost.speed import MeasureOptions, Speed, measure_speed, random_batch
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.encoders.encoder import MODEL_ERRORS
from probmcl.errors import OptionError, SettingsError
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.settings import MethodSpec

STEP_IMAGES = 8  # of the step whose operations are counted; comparing them costs next to nothing next to an encoder


def parse_methods(names: Sequence[str], preset: str | None = None) -> tuple[MethodSpec, ...]:
    """Parse `all` and the forms of `MethodSpec.parse`; `preset` is for methods named without one.

    >>> [spec.name for spec in parse_methods(["csra", "probmcl:paper", "csra"])]
    ['csra', 'probmcl:paper']
    """
    specs: dict[str, MethodSpec] = {}
    for text in itertools.chain.from_iterable(METHODS if name == "all" else [name] for name in names):
        spec = MethodSpec.parse(text, preset or "default")
        if spec.method in METHODS and spec.preset != (preset or spec.preset):
            raise OptionError("preset", preset, f"contradicts {text}; give one preset")
        other = specs.setdefault(spec.name, spec)
        if other != spec:
            raise SettingsError(f"{other.method} and {spec.method} are both called {spec.name}; rename one")
    return tuple(specs.values())


@dataclass(frozen=True)
class CostRow:
    """The cost of a method on an encoder."""

    method: str  # its name, with the preset unless it is the default
    encoder: str  # the name of the timm model
    image_size: int | None  # side of the square image; None if the encoder cannot be built at its default size
    classes: int
    views: int  # of each image in a step
    own_head: bool  # the method predicts by itself; otherwise a linear probe on its encoder predicts
    training_parameters: int | None = None  # of everything that exists in training
    prediction_parameters: int | None = None  # those that a prediction depends on
    gmac: float | None = None  # matrix products and convolutions of predicting one image, in 1e9 multiply-adds
    gmac_ptflops: float | None = None  # the same by the convention of ptflops
    training_gmac: float | None = None  # products of the forward pass of a step, per image with all its views
    problem: str | None = None  # why the cost cannot be counted; then there are no numbers
    speed: Speed | None = None  # the measurement, if there is one
    unmeasured: str | None = None  # why the measurement failed


class MetaEncoder(NamedTuple):
    """An encoder on the meta device, which has shapes and no numbers, and the operations of encoding one image."""

    encoder: Encoder
    operations: Operations


@functools.lru_cache(maxsize=8)
def meta_encoder(name: str, image_size: int | None = None) -> MetaEncoder:
    """Build an encoder on the meta device, by default at its own image size.

    >>> meta_encoder("resnet18", 224).operations.products
    1813561344
    """
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.no_grad():
        encoder = Encoder(name, image_size=image_size).eval()
        image = torch.empty(1, 3, encoder.image_size, encoder.image_size)
        try:
            return MetaEncoder(encoder, count_operations(lambda: encoder(image)))
        except MODEL_ERRORS as error:
            raise ValueError(f"{name} does not run on the meta device ({error}); choose another model") from error


def cost_rows(
    specs: Sequence[MethodSpec],
    encoders: Sequence[str],
    image_sizes: Sequence[int | None],
    classes: Sequence[int],
    measure: MeasureOptions | None = None,
) -> Iterator[CostRow]:
    """Yield the cost of every combination; if an encoder cannot take a size, its rows have a `problem`."""
    for name, size in itertools.product(encoders, image_sizes):
        try:
            encoder = meta_encoder(name, size)
        except ValueError as error:
            empty = (_empty_row(spec, name, size, number) for number in classes for spec in specs)
            yield from (replace(row, problem=str(error)) for row in empty)
            continue
        for number, spec in itertools.product(classes, specs):
            row = cost_row(spec, encoder, number)
            yield row if row.problem or measure is None else _measure(row, spec, measure)


def cost_row(spec: MethodSpec, meta: MetaEncoder, classes: int, settings: Any = None) -> CostRow:
    """Return the cost of a method on an encoder; `settings` override those of the preset.

    >>> cost_row(MethodSpec("bce"), meta_encoder("resnet18", 224), 9).prediction_parameters
    11181129
    """
    row = _empty_row(spec, meta.encoder.name, meta.encoder.image_size, classes)
    method, settings, names = find_method(spec.method), settings or spec.settings, label_space(classes)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # they are for training
            if method.needs_maps:
                return _count_on_maps(row, method(copy.deepcopy(meta.encoder), names, settings))
            return _count_on_features(row, method(PrecomputedFeatures(meta.encoder.features), names, settings), meta)
    except MODEL_ERRORS as error:
        return replace(row, problem=str(error) or type(error).__name__)


def _empty_row(spec: MethodSpec, encoder: str, image_size: int | None, classes: int) -> CostRow:
    method = find_method(spec.method)
    return CostRow(spec.name, encoder, image_size, classes, method.n_views, method.has_own_head(spec.settings))


def _measure(row: CostRow, spec: MethodSpec, options: MeasureOptions) -> CostRow:
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")
        encoder = Encoder(row.encoder, image_size=row.image_size)
        try:
            return replace(row, speed=measure_speed(spec, encoder, label_space(row.classes), options))
        except torch.OutOfMemoryError:  # other methods may need less
            return replace(row, unmeasured="not measured, out of memory; a smaller batch size helps")


def label_space(classes: int) -> LabelSpace:
    """Return classes with generic names that never occur together.

    >>> label_space(2).names
    ('class 1', 'class 2')
    """
    names = tuple(f"class {number}" for number in range(1, classes + 1))
    return LabelSpace(names, np.ones(classes, dtype=np.int64), np.zeros((classes, classes), dtype=np.int64))


def _count_on_features(row: CostRow, method: Method, meta: MetaEncoder) -> CostRow:
    """Count the encoder and the method on its features separately."""
    encoder, features = count_parameters(meta.encoder), meta.encoder.features
    views, labels = random_batch(method.n_views, STEP_IMAGES, (features,), row.classes)
    method.train()
    step = count_operations(lambda: method(views, labels))
    classifier = method if row.own_head else Probe(PrecomputedFeatures(features), label_space(row.classes))
    row = _count_prediction(row, classifier, torch.rand(1, features), meta.operations, encoder)
    training_gmac = method.n_views * meta.operations.gmac + step.gmac / STEP_IMAGES
    return replace(row, training_parameters=encoder + count_parameters(method), training_gmac=training_gmac)


def _count_on_maps(row: CostRow, method: Method) -> CostRow:
    """Count the encoder and the method together; a step costs one prediction per view."""
    if not row.own_head:
        raise ValueError("it needs more than pooled features and does not predict by itself; this cannot be counted")
    assert row.image_size is not None
    image = torch.empty(1, 3, row.image_size, row.image_size, device="meta")
    row = _count_prediction(row, method.to("meta"), image, Operations(0, 0), 0)
    assert row.gmac is not None
    return replace(row, training_parameters=count_parameters(method), training_gmac=method.n_views * row.gmac)


def _count_prediction(
    row: CostRow, classifier: Method, image: Tensor, operations: Operations, parameters: int
) -> CostRow:
    """Add, to those of the encoder, the operations for one image and the parameters that its logits depend on."""
    assert isinstance(classifier, Classifier)
    classifier.eval().requires_grad_(True)
    logits: list[Tensor] = []
    with torch.enable_grad():
        operations += count_operations(lambda: logits.append(classifier.logits(image)))
    parameters += sum(parameter.numel() for parameter in leaves(logits[0]))  # others are for training only
    gmac, gmac_ptflops = operations.gmac, operations.gmac_ptflops
    return replace(row, prediction_parameters=parameters, gmac=gmac, gmac_ptflops=gmac_ptflops)


def leaves(result: Tensor) -> set[Tensor]:
    """Return the parameters that a tensor was computed from, each once.

    >>> layer, other = torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)
    >>> leaves(layer(torch.rand(1, 4))) == {layer.weight, layer.bias}
    True
    """
    parameters: set[Tensor] = set()
    visited: set[Any] = set()
    queue: list[Any] = [result.grad_fn]
    while queue:
        if (node := queue.pop()) is not None and node not in visited:
            visited.add(node)
            queue += [previous for previous, _ in node.next_functions]
            parameters |= {node.variable} if node.name() == "torch::autograd::AccumulateGrad" else set()
    return parameters
