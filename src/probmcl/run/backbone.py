"""What a run works with: its images and its encoder, which part of that learns, and where batches come from."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.augment import AUGMENTATIONS
from probmcl.console import Console
from probmcl.cost.speed import seconds_per_row, seconds_per_step
from probmcl.data.cache import ImageCache, open_cache
from probmcl.data.images import Preprocessing
from probmcl.data.records import SPLITS, LabelSpace, Records, Split
from probmcl.encoders import Encoder, PrecomputedFeatures, describe_encoder, split_encoder
from probmcl.files import load_tensors, read_json
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, LinearClassifier, Method
from probmcl.run.activation_cache import ActivationCache
from probmcl.run.budget import Cost
from probmcl.run.image_batches import CPU_PIXELS, GPU_PIXELS, ImageBatchSource
from probmcl.run.results import Candidate
from probmcl.runtime.distributed import world_size
from probmcl.settings import Settings, TrainingJob, Tune
from probmcl.training.features import ROWS_AT_ONCE

SMALL = 10_000
"""Training images below which random weights are a bad start."""

FEW = 200
"""Images of val or test below which its mAP says little."""


def build_encoder(settings: Settings, console: Console) -> Encoder:
    """The encoder that a run starts from; what it is is said before anything is fetched."""
    s = settings.encoder
    console.print(f"encoder: {describe_encoder(s.name)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        encoder = Encoder(s.name, weights=s.weights, image_size=s.image_size)
    encoder.fixed_statistics = (s.statistics or ("fixed" if s.weights else "moving")) == "fixed"
    return encoder


def refuse_what_cannot_run(settings: Settings, encoder: Encoder, label_space: LabelSpace) -> None:
    """An error for a contender that cannot be built on this encoder, before anything is computed or written."""
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # they are said when it is trained
        for job in settings.jobs:
            part = PrecomputedFeatures(encoder.features) if settings.tune == "none" else copy.deepcopy(encoder)
            find_method(job.method)(part, label_space, job.settings)


def _cache(records: Records, settings: Settings, console: Console) -> ImageCache | None:
    """Where decoded images are kept, apart from the user's own."""
    if settings.cache is None:
        return None
    places = {path.parent for path in records.paths}
    if records.origin is not None:
        places.add(records.origin.place if records.origin.place.is_dir() else records.origin.place.parent)
    cache = open_cache(Path(settings.cache), apart_from=sorted(places))
    if not cache.has_room():
        console.print(f"  note: {cache.folder}: the disk is nearly full; no more decoded images are kept there")
    return cache


class Material:
    """The images, the whole `encoder`, the `part` of it that learns, and the `source` of what that part is given.

    With `tune` all, the part is the encoder and its source are the images. Otherwise the part is the last stage, or
    nothing, and its source is a store of what the rest made of the images.
    """

    def __init__(self, records: Records, settings: Settings, encoder: Encoder, folder: Path, console: Console) -> None:
        self.records, self.settings, self.folder, self.console = records, settings, folder, console
        # Kernels in the order in which processors like to read them: a fifth to a half faster on a CPU.
        self.encoder = encoder.to(settings.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        size = encoder.image_size
        preprocessing = Preprocessing(size, encoder.mean, encoder.std, encoder.interpolation, settings.intensity)
        augmentation = AUGMENTATIONS[settings.augment](size)
        pixels = CPU_PIXELS if settings.device == "cpu" else GPU_PIXELS
        self.feed = ImageBatchSource(
            records,
            preprocessing,
            augmentation,
            settings.seed,
            settings.workers,
            pixels,
            _cache(records, settings, console),
        )
        self.part, self.source = self._cut()

    def _cut(self) -> tuple[Encoder | PrecomputedFeatures, ImageBatchSource | ActivationCache]:
        """Divide the encoder into what is frozen, whose outputs are stored, and the part that learns."""
        if self.settings.tune == "none":
            return PrecomputedFeatures(self.encoder.features), self._store(
                "activations", self.encoder, torch.float32, self._views()
            )
        cut = split_encoder(self.encoder) if self.settings.tune == "last" else None
        if cut is None:
            return self.encoder, self.feed
        return cut.tail, self._store("activations", cut.trunk, torch.float16, self._views())

    def _views(self) -> int:
        """Augmented views that somebody will want, training or probe."""
        s = self.settings
        return max([s.stored_views, s.probe.views] + [find_method(c.method).n_views - 1 for c in s.jobs])

    def _store(self, name: str, network: nn.Module, dtype: torch.dtype, n_augmented: int) -> ActivationCache:
        place, device, stage = self.folder / name, self.settings.device, self.console.progress
        return ActivationCache(
            self.feed, network, place, n_augmented=n_augmented, dtype=dtype, device=device, stage=stage
        )

    @property
    def tune(self) -> Tune:
        """How much of the encoder learns: what was asked for, or all where it cannot be cut."""
        return self.settings.tune if isinstance(self.source, ActivationCache) else "all"

    def features(
        self, name: str, part: Encoder | PrecomputedFeatures
    ) -> tuple[ActivationCache, Encoder | PrecomputedFeatures]:
        """Where what leads to a part's features is stored, and what is still to be done to it."""
        if isinstance(self.source, ActivationCache):
            return self.source, part
        store = self._store(f"features for {name}", part, torch.float32, self.settings.probe.views)
        return store, PrecomputedFeatures(self.encoder.features)

    def method(self, job: TrainingJob) -> Method:
        """A contender on a fresh copy of the part that learns."""
        return find_method(job.method)(copy.deepcopy(self.part), self.records.label_space, job.settings)

    def classifier(self, candidate: Candidate) -> Classifier:
        """A candidate on the part that its source feeds."""
        classifier = find_method(candidate.method)(
            copy.deepcopy(self.part), self.records.label_space, candidate.settings
        )
        assert isinstance(classifier, Classifier)
        classifier.load_state_dict({key: candidate.state[key] for key in classifier.state_dict()})
        return classifier

    def whole(self, method: Method) -> dict[str, Tensor]:
        """A method's state on the whole encoder: what was frozen, and what was learned in place of the rest."""
        frozen = {f"encoder.{key}": value for key, value in self.encoder.state_dict().items()}
        return frozen | method.state_dict()

    # What is said of it, and what it costs.

    def describe(self) -> None:
        """Say what runs: weights, preprocessing, learning rates, what learns and what is kept on disk meanwhile."""
        s, e = self.settings, self.encoder
        tensors = len(e.state_dict())
        source = f"matched {tensors} of {tensors} tensors from {s.encoder.weights}" if s.encoder.weights else "random"
        mean, std = (" ".join(f"{x:g}" for x in numbers) for numbers in (e.mean, e.std))
        self.console.print(f"weights {source}; {e.image_size} px, mean {mean}, std {std}; {s.device}")
        rates = [
            f"{c.name} {c.training.learning_rate:g} (head {c.training.learning_rate * c.training.head_factor:g})"
            for c in s.jobs
        ]
        if rates:
            self.console.print(f"learning rates: {', '.join(rates)}; views: {s.augment}, shown in views.png")
        self._warn_of_random_weights()
        self._warn_of_few_judges()
        self._describe_the_cut()

    def _warn_of_random_weights(self) -> None:
        images = len(self.records.rows("train"))
        if self.settings.encoder.weights is None and images < SMALL:
            self.console.print(
                f"  note: random weights and {images:,} training images; expect little, "
                "pretrained weights are worth far more than any method"
            )

    def _warn_of_few_judges(self) -> None:
        tasks: dict[Split, str] = {"val": "chooses", "test": "judges"}
        for split, what in tasks.items():
            images = len(self.records.rows(split))
            if images < FEW:
                self.console.print(f"  note: {split} {what} by {images} images; gaps of several points are noise")

    def _describe_the_cut(self) -> None:
        if isinstance(self.source, ActivationCache):
            learn, there = (sum(p.numel() for p in m.parameters()) / 1e6 for m in (self.part, self.encoder))
            self.console.print(
                f"tune {self.tune}: {learn:.1f} of {there:.1f} million parameters learn; what the others make of the "
                f"images is kept while it runs, {self.source.bytes() / 1e6:,.0f} MB in {self.source.folder}"
            )
        elif self.settings.tune == "last":
            self.console.print(f"  note: {self.encoder.name} cannot be cut before its last stage; all of it learns")

    def costs(self, probe_seconds: float) -> tuple[float, list[Cost]]:
        """Seconds that come once, whatever is trained, and what each contender costs; fitting a probe takes so long."""
        s, device = self.settings, self.settings.device
        train, val, test = (len(self.records.rows(split)) for split in SPLITS)
        size, at_once = self.encoder.image_size, self.feed.pixels_at_once
        rows = torch.rand(max(1, at_once // self.encoder.image_size**2), 3, size, size, device=device)
        look, probed = seconds_per_row(self.encoder, rows), (1 + s.probe.views) * train + val
        if isinstance(self.source, ActivationCache):
            look = max(look, self.source.seconds_per_view)  # with decoding, if that was measured
            rows = torch.rand(ROWS_AT_ONCE, *self.source.shape, device=device)
            # Augmented views are there already where the frozen probe has had some.
            to_fill = 0 if s.probe.frozen_views else self.source.n_augmented
            shared, again = look * (to_fill * train + test), seconds_per_row(self.part, rows)
        else:
            shared, again = look * 2 * test, look
        once = again * (probed + val) / world_size() + probe_seconds
        tested = again * 2 * test / world_size()
        return shared / world_size(), [self._cost(job, once, tested) for job in s.jobs]

    def _cost(self, job: TrainingJob, once: float, tested: float) -> Cost:
        method, views, labels = self.example(job)
        steps = max(1, len(self.records.rows("train")) // (len(labels) * world_size()))
        epoch = seconds_per_step(method, views, labels, job.training) * steps
        return Cost(job.name, epoch, once, method.n_views, job.training.epochs, tested)

    def example(self, job: TrainingJob) -> tuple[Method, Float[Tensor, "V N *image"], Float[Tensor, "N C"]]:
        """A contender, and a batch of random numbers of the size that it trains on; every image has one label."""
        method, images, size = self.method(job), len(self.records.rows("train")), self.encoder.image_size
        shown = max(1, min(job.training.batch_size, images) // world_size())
        shape = self.source.shape if isinstance(self.source, ActivationCache) else (3, size, size)
        views = torch.rand(method.n_views, shown, *shape, device=self.settings.device)
        classes = len(self.records.label_space)
        labels = torch.eye(classes, device=views.device)[torch.arange(shown, device=views.device) % classes]
        return method.to(views.device), views, labels

    def prepare(self, method: Method, frozen: Candidate) -> None:
        """Give a method that is one linear layer on the encoder a better start than random numbers.

        Where all of a pretrained encoder learns, that is the probe on the untouched encoder: a random layer would spoil
        what the encoder knows before it has learned anything itself. Else it is the layer of the run that the weights
        come from, for the classes that this run knows by name.
        """
        common = self._classes_in_common()
        if not isinstance(method, LinearClassifier):
            return
        weights, layer = self.settings.encoder.weights, method.linear
        if self.tune == "all" and weights is not None:
            # Deviation (decision 0004): the published methods start it from random numbers.
            layer.load_state_dict({key: frozen.state[f"linear.{key}"] for key in ("weight", "bias")})
        elif common:
            tensors, _ = load_tensors(Path(str(weights)) / "model.safetensors")
            here, there = map(list, zip(*common, strict=True))
            with torch.no_grad():
                for name, values in layer.named_parameters():
                    if f"linear.{name}" in tensors:
                        values[here] = tensors[f"linear.{name}"][there].to(values.device)

    def _classes_in_common(self) -> list[tuple[int, int]]:
        """Numbers of the classes that the run knows which the weights come from, here and there; all of it is said."""
        weights = self.settings.encoder.weights
        if weights in (None, "pretrained") or not (Path(weights) / "run.json").is_file():
            return []
        mine, theirs = self.records.label_space.names, read_json(Path(weights) / "labels.json")["names"]
        common = [name for name in mine if name in theirs]
        new = ", ".join(name for name in mine if name not in theirs) or "none"
        unused = ", ".join(name for name in theirs if name not in mine) or "none"
        self.console.print(
            f"  classes that {weights} knows: {len(common)} of {len(mine)}; new: {new}; not used: {unused}"
        )
        return [(mine.index(name), theirs.index(name)) for name in common]
