"""Batches of views: decoded, augmented and made into tensors, in as many processes as one likes."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from probmcl.data.images import Preprocessing, read_image
from probmcl.data.records import Records

MakeView = Callable[[Image.Image, int, int, int], Image.Image]
"""From an image, the epoch, the image's number and the view's number to the view."""

ROOM = 1.5
"""How much larger than the encoder's input an image is decoded, so that a crop of half its area stays sharp."""


class Batch(NamedTuple):
    """V views of N images, with their labels; `rows` are the images' numbers in the records."""

    views: Float[Tensor, "V N *image"]
    labels: Float[Tensor, "N C"]
    known: Bool[Tensor, "N C"]
    rows: Int[Tensor, "N"]


class Order:
    """The images of every epoch in batches, as pairs (epoch, image): shuffled, seeded, without a last, smaller batch.

    >>> list(Order(np.arange(4), batch_size=2, epochs=1, seed=0))
    [[(0, 2), (0, 0)], [(0, 1), (0, 3)]]
    """

    def __init__(self, rows: Int[ndarray, "K"], *, batch_size: int, epochs: int, seed: int) -> None:
        if len(rows) == 0:
            raise ValueError("there are no images to train on")
        self.rows, self.epochs, self.seed = rows, epochs, seed
        self.batch_size = min(batch_size, len(rows))
        self.steps_per_epoch = len(rows) // self.batch_size

    def __len__(self) -> int:
        return self.epochs * self.steps_per_epoch

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for epoch in range(self.epochs):
            order = np.random.default_rng((self.seed, epoch)).permutation(self.rows).tolist()
            for step in range(self.steps_per_epoch):
                batch = order[step * self.batch_size : (step + 1) * self.batch_size]
                yield [(epoch, row) for row in batch]


class ImageBatches:
    """Batches of views in a given order.

    Args:
        records: where the images are and what is in them.
        order: an `Order`, or any list of batches of (epoch, image).
        preprocessing: from a view to a tensor.
        make_view: how to change the image into each view; None takes it as it is.
        n_views: how many views of each image.
        workers: processes that decode and augment; 0 does it in this one.
    """

    def __init__(
        self,
        records: Records,
        order: Order | Sequence[Sequence[tuple[int, int]]],
        preprocessing: Preprocessing,
        *,
        make_view: MakeView | None = None,
        n_views: int = 1,
        workers: int = 0,
    ) -> None:
        self.steps_per_epoch = order.steps_per_epoch if isinstance(order, Order) else len(order)
        self.loader = DataLoader(
            _Views(records, preprocessing, make_view, n_views),
            batch_sampler=order,  # type: ignore[arg-type]  # it yields pairs, which our dataset takes
            collate_fn=_collate,
            num_workers=workers,
            worker_init_fn=_leave_interrupts_to_the_parent,
            pin_memory=torch.cuda.is_available(),
        )

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.loader)


def in_order(rows: Int[ndarray, "K"], batch_size: int) -> list[list[tuple[int, int]]]:
    """Every image once, in the order given, all of them.

    >>> in_order(np.array([5, 6, 7]), batch_size=2)
    [[(0, 5), (0, 6)], [(0, 7)]]
    """
    return [
        [(0, row) for row in rows[start : start + batch_size].tolist()] for start in range(0, len(rows), batch_size)
    ]


class _Views(Dataset[Batch]):
    def __init__(
        self, records: Records, preprocessing: Preprocessing, make_view: MakeView | None, n_views: int
    ) -> None:
        self.records, self.preprocessing, self.make_view, self.n_views = records, preprocessing, make_view, n_views
        self.labels = torch.from_numpy(records.labels).float()
        self.known = torch.from_numpy(records.known)

    def __getitem__(self, key: tuple[int, int]) -> Batch:
        epoch, row = key
        size = self.preprocessing.size if self.make_view is None else round(ROOM * self.preprocessing.size)
        image = read_image(self.records.paths[row], size)
        views = [
            self.preprocessing(image if self.make_view is None else self.make_view(image, epoch, row, view))
            for view in range(self.n_views)
        ]
        return Batch(torch.stack(views), self.labels[row], self.known[row], torch.tensor(row))


def _collate(items: list[Batch]) -> Batch:
    views, labels, known, rows = zip(*items, strict=True)
    return Batch(torch.stack(views, dim=1), torch.stack(labels), torch.stack(known), torch.stack(rows))


def _leave_interrupts_to_the_parent(_: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
