"""Measured time of training steps and predictions, and memory of training steps, on random images."""

import copy
import functools
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.errors import OptionError
from probmcl.methods import find_method
from probmcl.methods.base import Classifier, Method
from probmcl.methods.probe import Probe
from probmcl.runtime.distributed import broadcast
from probmcl.settings import MethodSpec, default_training
from probmcl.training.optimizer import Training, build_optimizer

ROUNDS = 2
"""Timed rounds after the warm-up."""

LONG_SECONDS = 3.0
"""Time of a warm-up after which no other round is timed."""


@dataclass(frozen=True)
class MeasureOptions:
    """Options of a measurement: the device and the number of images per step."""

    device: str = "cpu"
    batch_size: int = 8

    def __post_init__(self) -> None:
        if self.batch_size < 2:
            raise OptionError("batch_size", self.batch_size, "must be at least 2")


@dataclass(frozen=True)
class Speed:
    """The result of a measurement."""

    device: str
    batch_size: int  # images per step and per prediction
    step_seconds: float  # time of a training step that updates the whole encoder, per image
    views_per_second: float  # views per second in this step
    prediction_seconds: float  # time of a prediction, per image
    peak_memory: int  # peak bytes of tensors in a training step, excluding the method itself


def measure_speed(spec: MethodSpec, encoder: Encoder, label_space: LabelSpace, options: MeasureOptions) -> Speed:
    """Measure a method's training steps and predictions on a copy of an encoder, which is trained unless frozen."""
    method_class = find_method(spec.method)
    # Runs use this memory format, which is 20 to 50 % faster on a CPU.
    encoder = encoder.to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    method = method_class(copy.deepcopy(encoder), label_space, spec.settings)
    classifier = method
    if not method_class.has_own_head(spec.settings):
        classifier = Probe(copy.deepcopy(encoder), label_space)
    assert isinstance(classifier, Classifier)
    shape = (3, encoder.image_size, encoder.image_size)
    views, labels = random_batch(method.n_views, options.batch_size, shape, len(label_space), options.device)
    images = views[0].contiguous(memory_format=torch.channels_last)
    prediction_seconds = seconds_per_row(classifier.to(images.device).eval().logits, images)
    training = Training(**default_training(spec.method, "all"))
    memory = step_memory(method, views, labels, training)
    batch_seconds = seconds_per_step(method, views, labels, training)
    return Speed(
        device=options.device,
        batch_size=options.batch_size,
        step_seconds=batch_seconds / options.batch_size,
        views_per_second=method.n_views * options.batch_size / batch_seconds,
        prediction_seconds=prediction_seconds,
        peak_memory=memory,
    )


def random_batch(
    n_views: int, images: int, shape: tuple[int, ...], classes: int, device: str = "cpu"
) -> tuple[Float[Tensor, "V N ..."], Float[Tensor, "N C"]]:
    """Return random views, and labels with one class per image.

    >>> views, labels = random_batch(2, 3, (4,), 2)
    >>> views.shape, labels.tolist()
    (torch.Size([2, 3, 4]), [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    """
    class_of_image = torch.arange(images, device=device) % classes
    labels = torch.eye(classes, device=device)[class_of_image]
    views = torch.rand(n_views, images, *shape, device=device)
    return views, labels


def seconds_per_row(forward: Callable[[Tensor], object], rows: Tensor) -> float:
    """Return the time per row of a forward pass without gradients."""

    @torch.inference_mode()
    def work() -> None:
        forward(rows)

    return _seconds(work, rows.device) / len(rows)


def seconds_per_step(method: Method, views: Tensor, labels: Tensor, training: Training) -> float:
    """Return the time of a training step. The step changes the method, so pass a copy."""
    return _seconds(_training_step(method, views, labels, training), views.device)


def step_memory(method: Method, views: Tensor, labels: Tensor, training: Training) -> int:
    """Return the peak bytes of tensors in a training step. The step changes the method, so pass a copy."""
    return peak_memory(_training_step(method, views, labels, training), views.device)


def _training_step(method: Method, views: Tensor, labels: Tensor, training: Training) -> Callable[[], None]:
    """Return a function that makes one training step on these views, with a new optimizer."""
    optimizer = build_optimizer(method.to(views.device).train(), training)

    def step() -> None:
        method(views, labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _seconds(work: Callable[[], None], device: torch.device) -> float:
    """Return the time of the fastest round after a warm-up, or of the warm-up itself if it takes long."""
    warm_up = _seconds_of_round(work, device)
    # All processes must run the same number of rounds, since the work may synchronize them.
    if broadcast(warm_up) >= LONG_SECONDS:
        return warm_up
    return min((_seconds_of_round(work, device) for _ in range(ROUNDS)), default=warm_up)


def _seconds_of_round(work: Callable[[], None], device: torch.device) -> float:
    """Return the time of one call, including the work that it has queued on a GPU."""
    start = time.perf_counter()
    work()
    if device.type != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start


def peak_memory(work: Callable[[], object], device: torch.device | str = "cpu") -> int:
    """Return the peak number of bytes in tensors that `work` creates.

    On CUDA, this is the increase in the allocator's peak, including library workspaces. On other devices, every tensor
    that an operation returns is tracked until it is released, so the result is deterministic but excludes temporary
    memory inside an operation. Memory that was allocated earlier and is released during `work` is not subtracted.

    >>> peak_memory(lambda: torch.zeros(1000) + torch.ones(1000))  # two inputs and one output of 4,000 bytes each
    12000
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
        return int(peak) - int(before)
    tracker = _MemoryTracker()
    with tracker:
        work()
    return tracker.peak


class _MemoryTracker(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types for it
    """Mode that tracks the memory of tensors that operations create: the bytes in use `now`, and their peak."""

    # torch's profiler would include temporary memory, but prints to the terminal when it starts and stops.

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = 0
        self.peak = 0
        self._sizes: dict[int, int | None] = {}  # bytes by the id of a storage; None for memory allocated earlier
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count the memory of its results that did not exist before."""
        kwargs = kwargs or {}
        # `torch.tensor` fills its memory without dispatch; `lift_fresh` is the first operation on the new tensor.
        if func is not torch.ops.aten.lift_fresh.default:
            self._track((args, kwargs), initial_size=None)
        result = func(*args, **kwargs)
        self._track(result, initial_size=0)
        return result

    def _track(self, tree: Any, *, initial_size: int | None) -> None:
        """Count the memory of all tensors in nested arguments or results; see `_count`."""
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                self._count(leaf.untyped_storage(), initial_size)

    def _count(self, storage: torch.UntypedStorage, initial_size: int | None) -> None:
        """Add the growth of some memory since it was last counted.

        If it was never counted, it had `initial_size` bytes: 0 if the operation has created it, None if it is older
        and does not count at all.
        """
        key = id(storage)  # the Python object lives as long as the memory
        size = storage.nbytes()
        if key not in self._sizes:
            self._alive[key] = weakref.ref(storage, functools.partial(self._release, key))
            self._sizes[key] = initial_size
        previous_size = self._sizes[key]
        if previous_size is None:
            return
        self._sizes[key] = size
        self.now += size - previous_size  # an operation may also resize
        self.peak = max(self.peak, self.now)

    def _release(self, key: int, _: object) -> None:
        """Subtract memory that was released; a weak reference calls this."""
        released_size = self._sizes.pop(key)
        self.now -= released_size or 0  # None for memory allocated earlier
        del self._alive[key]
