"""The inputs that all phases of a run share: data, settings, the encoder in two parts, and the source of batches."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probmcl.augment import AUGMENTATIONS
from probmcl.console import Console
from probmcl.data.image_cache import ImageCache, open_cache
from probmcl.data.images import Preprocessing
from probmcl.data.records import LabelSpace, Records, Split
from probmcl.encoders import AnyEncoder, Encoder, PrecomputedFeatures, describe_encoder, split_encoder
from probmcl.errors import counted, one_line
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, LinearClassifier, Method
from probmcl.run.activation_cache import ActivationCache, ImageBatchSource
from probmcl.run.results import Candidate
from probmcl.runtime.machine import CPU_PIXELS, GPU_PIXELS
from probmcl.runtime.tensor_files import load_tensors
from probmcl.settings import Settings, Tune
from probmcl.store.files import LABELS, METADATA, MODEL, VIEWS
from probmcl.store.run_folder import RunFolder

MIN_TRAINING_IMAGES = 10_000
"""With fewer training images, training from random weights prints a note."""

MIN_EVAL_IMAGES = 200
"""With fewer images in val or test, differences in mAP are mostly noise, and the run prints a note."""


@dataclass(frozen=True, eq=False)
class Backbone:
    """An encoder, split into a frozen trunk and a trained tail.

    Attributes:
        encoder: the complete encoder.
        trunk: the frozen part, whose outputs are cached; None if the whole encoder is trained.
        tail: the trained part; with `tune="none"`, a placeholder that returns cached features unchanged.
        tune: the part of the encoder that is trained; `all` if the encoder cannot be split.
    """

    encoder: Encoder
    trunk: nn.Module | None
    tail: AnyEncoder
    tune: Tune

    @classmethod
    def divide(cls, encoder: Encoder, tune: Tune) -> Backbone:
        """Split an encoder as `tune` specifies."""
        if tune == "none":
            return cls(encoder, trunk=encoder, tail=PrecomputedFeatures(encoder.features), tune=tune)
        parts = split_encoder(encoder) if tune == "last" else None
        if parts is None:
            return cls(encoder, trunk=None, tail=encoder, tune="all")
        return cls(encoder, parts.trunk, parts.tail, tune)

    def build(self, method: str, settings: Any, label_space: LabelSpace) -> Method:
        """Build a method on a copy of the tail."""
        method_class = find_method(method)
        return method_class(copy.deepcopy(self.tail), label_space, settings)

    def classifier(self, candidate: Candidate, label_space: LabelSpace) -> Classifier:
        """Build a candidate on a copy of the tail and load its trained parameters."""
        classifier = self.build(candidate.method, candidate.settings, label_space)
        assert isinstance(classifier, Classifier)
        # The state of the candidate also has the frozen trunk, which the classifier on the tail does not have.
        tail_state = {key: candidate.state[key] for key in classifier.state_dict()}
        classifier.load_state_dict(tail_state)
        return classifier

    def full_state(self, method: Method) -> dict[str, Tensor]:
        """Return the state of a method with the complete encoder. It is moved to the CPU to save GPU memory."""
        initial = {f"encoder.{key}": value for key, value in self.encoder.state_dict().items()}
        state = initial | method.state_dict()  # trained parameters replace the initial ones of the same name
        return {key: value.cpu() for key, value in state.items()}


@dataclass(frozen=True, eq=False)
class Workspace:
    """Data, settings, encoder and batches of a run.

    Attributes:
        batches: inputs to the tail, which are the images or cached outputs of the trunk.
        cache_folder: folder for cached features and activations, deleted when the run is finished.
    """

    records: Records
    settings: Settings
    backbone: Backbone
    images: ImageBatchSource
    batches: ImageBatchSource | ActivationCache
    cache_folder: Path
    console: Console

    @classmethod
    def open(
        cls, records: Records, settings: Settings, encoder: Encoder, cache_folder: Path, console: Console
    ) -> Workspace:
        """Split the encoder and prepare the batches. No image is decoded yet."""
        # Channels-last kernels are a fifth to a half faster on a CPU.
        encoder = encoder.to(settings.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        backbone = Backbone.divide(encoder, settings.tune)
        preprocessing = Preprocessing(
            encoder.image_size, encoder.mean, encoder.std, encoder.interpolation, settings.intensity
        )
        images = ImageBatchSource(
            records,
            preprocessing,
            augmentation=AUGMENTATIONS[settings.augment](encoder.image_size),
            seed=settings.seed,
            workers=settings.workers,
            pixels_at_once=CPU_PIXELS if settings.device == "cpu" else GPU_PIXELS,
            cache=_open_image_cache(records, settings, console),
        )
        workspace = cls(records, settings, backbone, images, images, cache_folder, console)
        if backbone.trunk is None:
            return workspace
        # A probe is fitted to cached features as they are. A trained tail gets half precision, which needs less space.
        dtype = torch.float32 if settings.tune == "none" else torch.float16
        # One of the views of a method may be the plain one, which is always cached.
        views_of_methods = [find_method(job.method).n_views - 1 for job in settings.jobs]
        n_augmented = max(settings.stored_views, settings.probe.views, *views_of_methods)
        cache = workspace.cache("activations", backbone.trunk, dtype, n_augmented)
        return replace(workspace, batches=cache)

    def cache(self, name: str, network: nn.Module, dtype: torch.dtype, n_augmented: int) -> ActivationCache:
        """Return a cache of a network's outputs for the views of every image."""
        return ActivationCache(
            self.images,
            network,
            folder=self.cache_folder / name,
            n_augmented=n_augmented,
            dtype=dtype,
            device=self.settings.device,
            progress=self.console.progress,
            root=self.cache_folder.parent,
        )

    def feature_source(self, key: str, encoder: AnyEncoder) -> tuple[ActivationCache, AnyEncoder]:
        """Return a cache, and the network that computes the features of an encoder from the cached tensors.

        Args:
            key: the key of the candidate, which names the cache if it is a new one.
            encoder: the tail of the backbone, or a trained copy of it.
        """
        if isinstance(self.batches, ActivationCache):
            return self.batches, encoder
        # The whole encoder is trained, so nothing can be shared: the features themselves are cached.
        cache = self.cache(f"{key}.features", encoder, torch.float32, self.settings.probe.views)
        return cache, PrecomputedFeatures(self.backbone.encoder.features)

    def describe(self) -> None:
        """Print the weights, the device, the input size, the trained part of the encoder and the learning rates."""
        encoder = self.backbone.encoder
        weights = self.settings.encoder.weights
        source = "random"
        if weights:
            source = f"{weights} (loaded all {len(encoder.state_dict())} tensors)"
        size = f"{encoder.image_size} × {encoder.image_size} pixels"
        device = self.settings.device
        self.console.print(f"weights: {source}; device: {device}; input: {size}, augmented as in {VIEWS}")
        self._describe_tuning()
        self._describe_learning_rates()
        self._describe_data()

    def _describe_tuning(self) -> None:
        """Print how much of the encoder is trained, or that the encoder cannot be split as the settings ask."""
        backbone = self.backbone
        if isinstance(self.batches, ActivationCache):
            tuned = _millions_of_parameters(backbone.tail)
            total = _millions_of_parameters(backbone.encoder)
            megabytes = self.batches.bytes() / 1e6
            self.console.print(
                f"tune {backbone.tune}: trains {tuned:.1f} of {total:.1f} million parameters "
                f"(activation cache: {megabytes:,.0f} MB)"
            )
        elif self.settings.tune == "last":
            name = backbone.encoder.name
            self.console.print(f"note: {name} cannot be split before its last stage; the whole encoder is trained")

    def _describe_learning_rates(self) -> None:
        rates = []
        for job in self.settings.jobs:
            rate = job.training.learning_rate
            head_rate = rate * job.training.head_factor
            rates.append(f"{job.title} {rate:g} (head {head_rate:g})")
        if rates:
            self.console.print(f"learning rates: {', '.join(rates)}")

    def _describe_data(self) -> None:
        """Print notes if there are too few images for random weights, or to tell similar scores apart."""
        images = len(self.records.rows("train"))
        if self.settings.encoder.weights is None and images < MIN_TRAINING_IMAGES:
            self.console.print(
                f"note: random weights and {counted(images, 'training image')}; pretrained weights are better"
            )
        splits: tuple[Split, Split] = ("val", "test")
        counts = {split: len(self.records.rows(split)) for split in splits}
        small = [counted(count, f"{split} image") for split, count in counts.items() if count < MIN_EVAL_IMAGES]
        if small:
            self.console.print(f"note: only {' and '.join(small)}; differences of a few points are noise")


def _millions_of_parameters(network: nn.Module) -> float:
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6


def _open_image_cache(records: Records, settings: Settings, console: Console) -> ImageCache | None:
    """Open the cache of decoded images, which must be outside the image folders."""
    if settings.cache is None:
        return None
    folders = {path.parent for path in records.paths}
    if records.origin is not None:
        data = records.origin.path
        folders.add(data if data.is_dir() else data.parent)
    cache = open_cache(Path(settings.cache), apart_from=sorted(folders))
    if not cache.has_room():
        console.print(f"note: {cache.folder}: the disk is nearly full; no more decoded images will be cached there")
    return cache


def build_encoder(settings: Settings, console: Console) -> Encoder:
    """Build the initial encoder of a run; its name and size are printed before a download starts."""
    requested = settings.encoder
    console.print(f"encoder: {describe_encoder(requested.name)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        encoder = Encoder(requested.name, weights=requested.weights, image_size=requested.image_size)
    # The statistics of random weights mean nothing yet, so they must move.
    statistics = requested.statistics or ("fixed" if requested.weights else "moving")
    encoder.fixed_statistics = statistics == "fixed"
    return encoder


def refuse_unbuildable(settings: Settings, encoder: Encoder, label_space: LabelSpace) -> None:
    """Raise an error if a method cannot be built on this encoder, before anything is computed or written."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # printed later, when the method is trained
        for job in settings.jobs:
            if settings.tune == "none":
                tail: AnyEncoder = PrecomputedFeatures(encoder.features)
            else:
                tail = copy.deepcopy(encoder)
            method_class = find_method(job.method)
            method_class(tail, label_space, job.settings)


def warm_start(method: Method, workspace: Workspace, frozen: Candidate) -> None:
    """Initialize the linear layer of a method whose head is one linear layer.

    If a pretrained encoder is trained as a whole, the layer is copied from the probe on the frozen encoder, since the
    gradients of a random layer would destroy pretrained features in the first steps. Otherwise, if the weights come
    from an earlier run, the rows of the classes that both runs share are copied from that run's layer.

    Args:
        method: the method to train, with its random weights.
        workspace: the workspace of the run.
        frozen: the probe on the frozen encoder.
    """
    weights = workspace.settings.encoder.weights
    if weights is None:
        return
    earlier_row_of = _common_classes(weights, workspace.records.label_space.names, workspace.console)
    if not isinstance(method, LinearClassifier):
        return
    if workspace.backbone.tune == "all":
        # Deviation (decision 0004): the published methods start from random weights.
        layer = {name: frozen.state[f"linear.{name}"] for name in ("weight", "bias")}
        method.linear.load_state_dict(layer)
    elif earlier_row_of:
        _copy_rows(method.linear, Path(weights), earlier_row_of)


def _common_classes(weights: str, names: Sequence[str], console: Console) -> Mapping[int, int]:
    """Map the index of each common class to its index in the run that the weights come from, and print their number.

    The mapping is empty if the weights do not come from a run.
    """
    if weights == "pretrained" or not RunFolder(Path(weights)).has(METADATA):
        return {}
    labels = RunFolder(Path(weights)).read(LABELS)
    earlier_row_of_name = {name: row for row, name in enumerate(labels.names)}
    common = {row: earlier_row_of_name[name] for row, name in enumerate(names) if name in earlier_row_of_name}
    new = ", ".join(one_line(name) for name in names if name not in earlier_row_of_name) or "none"
    unused = ", ".join(one_line(name) for name in earlier_row_of_name if name not in names) or "none"
    console.print(f"classes also in {weights}: {len(common)} of {len(names)}; new: {new}; not used: {unused}")
    return common


@torch.no_grad()
def _copy_rows(linear: nn.Linear, run: Path, earlier_row_of: Mapping[int, int]) -> None:
    """Copy rows of the linear layer of an earlier run, if it has one, to the rows that the mapping assigns to them."""
    tensors, _ = load_tensors(run / MODEL)
    rows = list(earlier_row_of)
    earlier_rows = list(earlier_row_of.values())
    for name, values in linear.named_parameters():
        earlier = tensors.get(f"linear.{name}")
        if earlier is not None:
            values[rows] = earlier[earlier_rows].to(values.device)
