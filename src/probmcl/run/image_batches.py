"""From records to the batches that each purpose needs: training, probing, scoring."""

from __future__ import annotations

from dataclasses import dataclass

from PIL import Image

from probmcl.augment import Augmentation, draw
from probmcl.data.cache import ImageCache
from probmcl.data.images import Preprocessing
from probmcl.data.loader import ImageBatches, Order, in_order
from probmcl.data.records import Records, Split
from probmcl.runtime.distributed import rank, shard, world_size
from probmcl.runtime.machine import CPU_PIXELS


@dataclass(frozen=True, eq=False)
class ImageBatchSource:
    """The images of a run, and what is done to them before an encoder sees them.

    Under several processes, each has its share: of every batch in training, of the batches elsewhere.
    """

    records: Records
    preprocessing: Preprocessing
    augmentation: Augmentation
    seed: int = 0
    workers: int = 0
    pixels_at_once: int = CPU_PIXELS
    cache: ImageCache | None = None

    def training(self, *, n_views: int, batch_size: int, epochs: int, images: int | None = None) -> ImageBatches:
        """Augmented views of the training split, shuffled anew in every epoch, of at most so many `images` in all."""
        rows, processes = self.records.rows("train"), (rank(), world_size())
        weights = None if self.records.weight is None else self.records.weight[rows]
        order = Order(
            rows, batch_size=batch_size, epochs=epochs, seed=self.seed, share=processes, images=images, weights=weights
        )
        return self._batches(order, n_plain=0, n_augmented=n_views)

    def plain(self, split: Split) -> ImageBatches:
        """The plain view of every image of a split, in order."""
        return self._in_order(split, n_plain=1, n_augmented=0)

    def augmented(self, split: Split, *, n_views: int) -> ImageBatches:
        """Augmented views of every image of a split, in order."""
        return self._in_order(split, n_plain=0, n_augmented=n_views)

    def view(self, image: Image.Image, epoch: int, row: int, view: int) -> Image.Image:
        """An augmented view, the same whenever and wherever it is made."""
        return draw(self.augmentation, image, seed=self.seed, epoch=epoch, index=row, view=view)

    def _in_order(self, split: Split, *, n_plain: int, n_augmented: int) -> ImageBatches:
        images = max(1, self.pixels_at_once // self.preprocessing.size**2 // (n_plain + n_augmented))
        order = shard(in_order(self.records.rows(split), images))
        return self._batches(list(order), n_plain=n_plain, n_augmented=n_augmented)

    def _batches(self, order: Order | list[list[tuple[int, int]]], *, n_plain: int, n_augmented: int) -> ImageBatches:
        return ImageBatches(
            self.records,
            order,
            self.preprocessing,
            n_plain=n_plain,
            n_augmented=n_augmented,
            make_view=self.view,
            workers=self.workers,
            cache=self.cache,
        )
