"""What the phases of a run work with: data, settings, the divided encoder, and where batches come from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from probmcl.augment import AUGMENTATIONS
from probmcl.console import Console
from probmcl.data.cache import ImageCache, open_cache
from probmcl.data.images import Preprocessing
from probmcl.data.records import Records, Split
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.methods import find_method
from probmcl.run.activation_cache import ActivationCache
from probmcl.run.backbone import Backbone
from probmcl.run.image_batches import ImageBatchSource
from probmcl.runtime.machine import CPU_PIXELS, GPU_PIXELS
from probmcl.settings import Settings

MIN_TRAINING_IMAGES = 10_000
"""Below this number of training images, random weights are a bad start."""

MIN_EVAL_IMAGES = 200
"""Below this number of images in val or test, its mAP is mostly noise."""


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
        views = max([settings.stored_views, settings.probe.views, *(_views(job.method) - 1 for job in settings.jobs)])
        activations = workspace.cache("activations", backbone.trunk, dtype, views)
        return cls(records, settings, backbone, images, activations, cache_folder, console)

    def cache(self, name: str, network: nn.Module, dtype: torch.dtype, n_augmented: int) -> ActivationCache:
        """Return a cache of what a network computes from the views of every image."""
        return ActivationCache(
            self.images,
            network,
            self.cache_folder / name,
            n_augmented=n_augmented,
            dtype=dtype,
            device=self.settings.device,
            progress=self.console.progress,
        )

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
            self.console.print(
                f"  note: random weights and {images:,} training images; expect little, "
                "pretrained weights are worth far more than any method"
            )
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
            self.console.print(
                f"  note: {backbone.encoder.name} cannot be split before its last stage; all of it learns"
            )


def _views(method: str) -> int:
    return find_method(method).n_views


def _open_image_cache(records: Records, settings: Settings, console: Console) -> ImageCache | None:
    """Open the cache of decoded images, outside the user's image folders."""
    if settings.cache is None:
        return None
    folders = {path.parent for path in records.paths}
    if records.origin is not None:
        folders.add(records.origin.place if records.origin.place.is_dir() else records.origin.place.parent)
    cache = open_cache(Path(settings.cache), apart_from=sorted(folders))
    if not cache.has_room():
        console.print(f"  note: {cache.folder}: the disk is nearly full; no more decoded images are cached there")
    return cache
