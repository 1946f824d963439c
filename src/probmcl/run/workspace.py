"""What the phases of a run work with: data, settings, the divided encoder, and where batches come from."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from probmcl.augment import AUGMENTATIONS
from probmcl.console import Console
from probmcl.data.cache import ImageCache, open_cache
from probmcl.data.images import Preprocessing
from probmcl.data.records import LabelSpace, Records, Split
from probmcl.encoders import Encoder, PrecomputedFeatures, describe_encoder, split_encoder
from probmcl.files import load_tensors
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, LinearClassifier, Method
from probmcl.run.batches import ActivationCache, ImageBatchSource
from probmcl.run.results import Candidate
from probmcl.run_folder import LABELS, METADATA, MODEL, RunFolder
from probmcl.runtime.machine import CPU_PIXELS, GPU_PIXELS
from probmcl.settings import Settings, Tune

MIN_TRAINING_IMAGES = 10_000
"""Below this number of training images, random weights are a bad start."""

MIN_EVAL_IMAGES = 200
"""Below this number of images in val or test, its mAP is mostly noise."""


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
        """Return the state of a method on the whole encoder, on the CPU: a GPU may not have room for all candidates."""
        frozen = {f"encoder.{key}": value for key, value in self.encoder.state_dict().items()}
        return {key: value.cpu() for key, value in (frozen | method.state_dict()).items()}


@dataclass(frozen=True, eq=False)
class Workspace:
    """Data, settings, encoder and batches of a run.

    Attributes:
        batches: what the learning part of the encoder is fed: the images, or the cached outputs of the frozen trunk.
        cache_folder: where features and activations are cached while the run is unfinished.
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
        """Divide the encoder and prepare the batches; nothing is decoded yet."""
        # Channels-last kernels are a fifth to a half faster on a CPU.
        encoder = encoder.to(settings.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        backbone = Backbone.divide(encoder, settings.tune)
        images = ImageBatchSource(
            records,
            Preprocessing(encoder.image_size, encoder.mean, encoder.std, encoder.interpolation, settings.intensity),
            AUGMENTATIONS[settings.augment](encoder.image_size),
            settings.seed,
            settings.workers,
            CPU_PIXELS if settings.device == "cpu" else GPU_PIXELS,
            _open_image_cache(records, settings, console),
        )
        workspace = cls(records, settings, backbone, images, images, cache_folder, console)
        if backbone.trunk is None:
            return workspace
        dtype = torch.float32 if settings.tune == "none" else torch.float16
        others = [find_method(job.method).n_views - 1 for job in settings.jobs]
        views = max(settings.stored_views, settings.probe.views, *others)
        return replace(workspace, batches=workspace.cache("activations", backbone.trunk, dtype, views))

    def cache(self, name: str, network: nn.Module, dtype: torch.dtype, n_augmented: int) -> ActivationCache:
        """Return a cache of what a network computes from the views of every image."""
        folder, device = self.cache_folder / name, self.settings.device
        return ActivationCache(self.images, network, folder, n_augmented, dtype, device, self.console.progress)

    def feature_source(
        self, key: str, part: Encoder | PrecomputedFeatures
    ) -> tuple[ActivationCache, Encoder | PrecomputedFeatures]:
        """Return the cache that leads to the features of a part, and the network that remains to be applied."""
        if isinstance(self.batches, ActivationCache):
            return self.batches, part
        cache = self.cache(f"{key}.features", part, torch.float32, self.settings.probe.views)
        return cache, PrecomputedFeatures(self.backbone.encoder.features)

    def describe(self) -> None:
        """Print weights, preprocessing, learning rates, and how much of the encoder learns."""
        s, e = self.settings, self.backbone.encoder
        tensors = len(e.state_dict())
        source = f"matched {tensors} of {tensors} tensors from {s.encoder.weights}" if s.encoder.weights else "random"
        mean, std = (" ".join(f"{x:g}" for x in numbers) for numbers in (e.mean, e.std))
        self.console.print(f"weights {source}; {e.image_size} px, mean {mean}, std {std}; {s.device}")
        training = [(job.title, job.training) for job in s.jobs]
        rates = [f"{title} {t.learning_rate:g} (head {t.learning_rate * t.head_factor:g})" for title, t in training]
        if rates:
            self.console.print(f"learning rates: {', '.join(rates)}; views: {s.augment}, shown in views.png")
        self._describe_data()
        self._describe_tuning()

    def _describe_data(self) -> None:
        images = len(self.records.rows("train"))
        if self.settings.encoder.weights is None and images < MIN_TRAINING_IMAGES:
            remedy = "expect little, pretrained weights are worth far more than any method"
            self.console.print(f"  note: random weights and {images:,} training images; {remedy}")
        purposes: dict[Split, str] = {"val": "chooses", "test": "judges"}
        for split, purpose in purposes.items():
            images = len(self.records.rows(split))
            if images < MIN_EVAL_IMAGES:
                self.console.print(f"  note: {split} {purpose} by {images} images; gaps of several points are noise")

    def _describe_tuning(self) -> None:
        backbone, cache = self.backbone, self.batches
        if isinstance(cache, ActivationCache):
            tuned, total = (sum(p.numel() for p in m.parameters()) / 1e6 for m in (backbone.tail, backbone.encoder))
            self.console.print(
                f"tune {backbone.tune}: {tuned:.1f} of {total:.1f} million parameters learn; the activations of the "
                f"others are cached during the run, {cache.bytes() / 1e6:,.0f} MB in {cache.folder}"
            )
        elif self.settings.tune == "last":
            name = backbone.encoder.name
            self.console.print(f"  note: {name} cannot be split before its last stage; all of it learns")


def _open_image_cache(records: Records, settings: Settings, console: Console) -> ImageCache | None:
    """Open the cache of decoded images, outside the user's image folders."""
    if settings.cache is None:
        return None
    folders = {path.parent for path in records.paths}
    if records.origin is not None:
        folders.add(records.origin.path if records.origin.path.is_dir() else records.origin.path.parent)
    cache = open_cache(Path(settings.cache), apart_from=sorted(folders))
    if not cache.has_room():
        console.print(f"  note: {cache.folder}: the disk is nearly full; no more decoded images are cached there")
    return cache


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
