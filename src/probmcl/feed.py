"""From records to the batches that each purpose needs: training, probing, scoring."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from probmcl.augment import Augmentation, draw
from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches, MakeView, Order, in_order
from probmcl.data.records import Records, Split

BATCH = 128
"""Images in a batch where nothing is learned."""


@dataclass(frozen=True, eq=False)
class Feed:
    """The images of a run, and what is done to them before an encoder sees them."""

    records: Records
    preprocessing: Preprocessing
    augmentation: Augmentation
    seed: int = 0
    workers: int = 0

    def training(self, *, n_views: int, batch_size: int, epochs: int) -> ImageBatches:
        """Augmented views of the training split, shuffled anew in every epoch."""
        order = Order(self.records.rows("train"), batch_size=batch_size, epochs=epochs, seed=self.seed)
        return self._batches(order, self._augmented, n_views)

    def probing(self, *, n_augmented: int) -> ImageBatches:
        """The training split in order: of each image the plain view first, then augmented ones."""
        return self._batches(in_order(self.records.rows("train"), BATCH), self._plain_first, 1 + n_augmented)

    def plain(self, split: Split) -> ImageBatches:
        """The plain view of every image of a split, in order."""
        return self._batches(in_order(self.records.rows(split), BATCH), None, 1)

    def _batches(
        self, order: Order | list[list[tuple[int, int]]], make_view: MakeView | None, n_views: int
    ) -> ImageBatches:
        return ImageBatches(
            self.records, order, self.preprocessing, make_view=make_view, n_views=n_views, workers=self.workers
        )

    def _augmented(self, image: Image.Image, epoch: int, row: int, view: int) -> Image.Image:
        return draw(self.augmentation, image, seed=self.seed, epoch=epoch, index=row, view=view)

    def _plain_first(self, image: Image.Image, epoch: int, row: int, view: int) -> Image.Image:
        return image if view == 0 else self._augmented(image, epoch, row, view)
