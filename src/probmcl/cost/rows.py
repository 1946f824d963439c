"""The cost of a method for a given encoder, image size and number of classes, computed from shapes."""

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
from probmcl.encoders.encoder import MODEL_ERRORS, refuse_size
from probmcl.errors import OptionError, SettingsError
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.settings import MethodSpec

STEP_IMAGES = 8  # images in the counted step; comparing them costs almost nothing relative to the encoder


def parse_cost_methods(names: Sequence[str], preset: str | None = None) -> tuple[MethodSpec, ...]:
    """Parse method names: `all`, or any form of `MethodSpec.parse`. `preset` applies to names without a preset.

    >>> [spec.name for spec in parse_cost_methods(["csra", "probmcl:paper", "csra"])]
    ['csra', 'probmcl:paper']
    """
    expanded: list[str] = []
    for name in names:
        expanded += METHODS if name == "all" else [name]
    specs: dict[str, MethodSpec] = {}
    for text in expanded:
        spec = MethodSpec.parse(text, preset or "default")
        has_preset = not preset or spec.preset == preset
        if spec.method in METHODS and not has_preset:
            raise OptionError("preset", preset, f"cannot be combined with {text}; pass only one preset")
        other = specs.setdefault(spec.name, spec)
        if other != spec:  # two files with the same name, in different folders
            raise SettingsError(f"{other.method} and {spec.method} have the same name, {spec.name}; rename one of them")
    return tuple(specs.values())


@dataclass(frozen=True)
class CostRow:
    """The cost of a method on an encoder."""

    method: str  # name, with the preset unless it is the default
    encoder: str  # name of the timm model
    image_size: int | None  # side of the square image; None if the encoder cannot be built at its default size
    classes: int
    views: int  # views of each image in a step
    own_head: bool  # whether the method predicts with its own head or through a linear probe
    training_parameters: int | None = None  # all parameters in training
    prediction_parameters: int | None = None  # parameters that a prediction depends on
    gmac: float | None = None  # matrix products and convolutions to predict one image, in 1e9 multiply-adds
    gmac_ptflops: float | None = None  # the same in the convention of ptflops
    training_gmac: float | None = None  # products in the forward pass of a training step, per image with all views
    problem: str | None = None  # reason why the cost cannot be counted; all counts are None
    speed: Speed | None = None  # measurement, if requested
    unmeasured: str | None = None  # reason why the measurement failed


class MetaEncoder(NamedTuple):
    """An encoder on the meta device, which has shapes but no data, and the operation count for encoding one image."""

    encoder: Encoder
    operations: Operations


@functools.lru_cache(maxsize=8)
def meta_encoder(name: str, image_size: int | None = None) -> MetaEncoder:
    """Build an encoder on the meta device, by default at its default image size.

    >>> meta_encoder("resnet18", 224).operations.products
    1813561344
    """
    refuse_size(name, image_size)
    with torch.device("meta"), torch.random.fork_rng(devices=[]), torch.no_grad():
        encoder = Encoder(name, image_size=image_size).eval()
        image = torch.empty(1, 3, encoder.image_size, encoder.image_size)
        try:
            return MetaEncoder(encoder, count_operations(lambda: encoder(image)))
        except MODEL_ERRORS as error:
            raise ValueError(f"encoder {name} cannot run on the meta device ({error}); choose another") from error


def cost_rows(
    specs: Sequence[MethodSpec],
    encoders: Sequence[str],
    image_sizes: Sequence[int | None],
    classes: Sequence[int],
    measure: MeasureOptions | None = None,
) -> Iterator[CostRow]:
    """Yield the cost of every combination. If an encoder does not support an image size, its rows have a `problem`."""
    for encoder_name, image_size in itertools.product(encoders, image_sizes):
        try:
            meta = meta_encoder(encoder_name, image_size)
        except ValueError as error:
            for number_of_classes, spec in itertools.product(classes, specs):
                row = _empty_row(spec, encoder_name, image_size, number_of_classes)
                yield replace(row, problem=str(error))
            continue
        for number_of_classes, spec in itertools.product(classes, specs):
            row = cost_row(spec, meta, number_of_classes)
            if measure is not None and row.problem is None:
                row = _measure(row, spec, measure)
            yield row


def cost_row(spec: MethodSpec, meta: MetaEncoder, classes: int, settings: Any = None) -> CostRow:
    """Return the cost of a method on an encoder; `settings` replace those of the preset.

    >>> cost_row(MethodSpec("bce"), meta_encoder("resnet18", 224), 9).prediction_parameters
    11181129
    """
    row = _empty_row(spec, meta.encoder.name, meta.encoder.image_size, classes)
    method_class = find_method(spec.method)
    settings = settings or spec.settings
    names = label_space(classes)
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")  # they concern training
            if method_class.needs_maps:
                method = method_class(copy.deepcopy(meta.encoder), names, settings)
                return _count_on_maps(row, method)
            method = method_class(PrecomputedFeatures(meta.encoder.features), names, settings)
            return _count_on_features(row, method, meta)
    except MODEL_ERRORS as error:
        return replace(row, problem=str(error) or type(error).__name__)


def _empty_row(spec: MethodSpec, encoder: str, image_size: int | None, classes: int) -> CostRow:
    """Return a row without any count."""
    method_class = find_method(spec.method)
    return CostRow(
        method=spec.name,
        encoder=encoder,
        image_size=image_size,
        classes=classes,
        views=method_class.n_views,
        own_head=method_class.has_own_head(spec.settings),
    )


def _measure(row: CostRow, spec: MethodSpec, options: MeasureOptions) -> CostRow:
    """Add the measured speed to a row, or the reason why the measurement failed."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # they concern training
        encoder = Encoder(row.encoder, image_size=row.image_size)
        try:
            speed = measure_speed(spec, encoder, label_space(row.classes), options)
        except torch.OutOfMemoryError:  # other methods may need less memory
            return replace(row, unmeasured="not measured: out of memory; try a smaller batch size")
    return replace(row, speed=speed)


def label_space(classes: int) -> LabelSpace:
    """Return a label space with generic class names and no co-occurrences.

    >>> label_space(2).names
    ('class 1', 'class 2')
    """
    names = tuple(f"class {number}" for number in range(1, classes + 1))
    counts = np.ones(classes, dtype=np.int64)
    no_cooccurrence = np.zeros((classes, classes), dtype=np.int64)
    return LabelSpace(names, counts, no_cooccurrence)


def _count_on_features(row: CostRow, method: Method, meta: MetaEncoder) -> CostRow:
    """Count the encoder and the method separately, and add the counts."""
    features = meta.encoder.features
    views, labels = random_batch(method.n_views, STEP_IMAGES, (features,), row.classes)
    method.train()
    step = count_operations(lambda: method(views, labels))
    classifier = method
    if not row.own_head:
        classifier = Probe(PrecomputedFeatures(features), label_space(row.classes))
    prediction = _count_prediction(classifier, torch.rand(1, features))  # without the encoder
    operations = meta.operations + prediction.operations
    encoder_parameters = count_parameters(meta.encoder)
    return replace(
        row,
        training_parameters=encoder_parameters + count_parameters(method),
        prediction_parameters=encoder_parameters + prediction.parameters,
        gmac=operations.gmac,
        gmac_ptflops=operations.gmac_ptflops,
        training_gmac=method.n_views * meta.operations.gmac + step.gmac / STEP_IMAGES,
    )


def _count_on_maps(row: CostRow, method: Method) -> CostRow:
    """Count the encoder and the method together. A training step costs one prediction per view."""
    if not row.own_head:
        raise ValueError("the cost of a method that needs feature maps but has no head cannot be counted")
    assert row.image_size is not None
    image = torch.empty(1, 3, row.image_size, row.image_size, device="meta")
    prediction = _count_prediction(method.to("meta"), image)
    gmac = prediction.operations.gmac
    return replace(
        row,
        training_parameters=count_parameters(method),
        prediction_parameters=prediction.parameters,
        gmac=gmac,
        gmac_ptflops=prediction.operations.gmac_ptflops,
        training_gmac=method.n_views * gmac,
    )


class _PredictionCost(NamedTuple):
    """The operations to predict one image, and the number of parameters that the logits depend on."""

    operations: Operations
    parameters: int


def _count_prediction(classifier: Method, image: Tensor) -> _PredictionCost:
    """Count the operations for one image and the parameters that its logits depend on."""
    assert isinstance(classifier, Classifier)
    classifier.eval().requires_grad_(True)
    logits: list[Tensor] = []
    with torch.enable_grad():
        operations = count_operations(lambda: logits.append(classifier.logits(image)))
    used_parameters = leaves(logits[0])  # the others are only used in training
    return _PredictionCost(operations, sum(parameter.numel() for parameter in used_parameters))


def leaves(result: Tensor) -> set[Tensor]:
    """Return the set of parameters that a tensor was computed from.

    >>> layer, other = torch.nn.Linear(4, 3), torch.nn.Linear(3, 3)
    >>> leaves(layer(torch.rand(1, 4))) == {layer.weight, layer.bias}
    True
    """
    parameters: set[Tensor] = set()
    visited: set[Any] = set()
    queue: list[Any] = [result.grad_fn]
    while queue:
        node = queue.pop()
        if node is None or node in visited:  # None is an input without gradient
            continue
        visited.add(node)
        queue += [previous for previous, _ in node.next_functions]
        if node.name() == "torch::autograd::AccumulateGrad":  # the node of a parameter
            parameters.add(node.variable)
    return parameters
