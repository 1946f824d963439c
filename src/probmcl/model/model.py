"""A trained classifier in use."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from rich.console import Console
from torch import Tensor

from probmcl.data import ImageError, Preprocessing, Split
from probmcl.data.records import SPLITS
from probmcl.data.stream import Decoded, Source, decode
from probmcl.evaluation.evaluate import evaluate
from probmcl.feed import CPU_PIXELS, GPU_PIXELS
from probmcl.methods.base import Classifier
from probmcl.model.predictions import Predictions, joined
from probmcl.model.reading import Reading, match, rows_of
from probmcl.training.progress import Display


@final
class Model:
    """What a run has kept: says of any image which classes are in it.

    Images are given as files, folders, patterns (`photos/**/*.jpg`), `.txt` lists of paths, or images of Pillow, one or
    a list of them. They are decoded in `workers` processes (None: one a core, up to eight; 0: in this one) and pass the
    network `batch_size` at a time (None: as many as are fastest on this device). On Linux a script needs no
    `if __name__ == "__main__"`.

    Attributes:
        classifier: the network.
        names: the classes, in the order of the scores.
        preprocessing: from an image to the network's input, as in training.
        device: where it is computed.
        folder: the run that it comes from.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        names: tuple[str, ...],
        preprocessing: Preprocessing,
        device: torch.device,
        folder: Path,
        reading: Reading | None,
    ) -> None:
        # Images are laid out so too, and convolutions are faster for it.
        there = classifier.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.classifier: Classifier = there.eval()
        self.names, self.preprocessing, self.device = names, preprocessing, device
        self.folder, self._reading = folder, reading

    def __repr__(self) -> str:
        size = self.preprocessing.size
        return f"Model({str(self.folder)!r}, {len(self.names)} classes, {size} px, {self.device})"

    def predict(
        self,
        images: Source | Sequence[Source],
        *,
        threshold: float = 0.5,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Predictions:
        """A probability and a decision for each class of each image; one that cannot be read is in `errors`."""
        blocks = self.stream(images, threshold=threshold, batch_size=batch_size, workers=workers)
        return joined(self.names, threshold, blocks)

    def stream(
        self,
        images: Source | Sequence[Source],
        *,
        threshold: float = 0.5,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Iterator[Predictions]:
        """The same in blocks, as they are computed: a million images need no more memory than a thousand."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold {threshold}: a probability is between 0 and 1")
        batches = self._decoded(images, batch_size, workers)
        return (self._block(batch, threshold) for batch in batches)

    def embed(
        self,
        images: Source | Sequence[Source],
        *,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Float[ndarray, "N D"]:
        """The encoder's features of each image, as they come; one that cannot be read is an error."""
        batches = self._decoded(images, batch_size, workers)
        return np.concatenate([self._features(_all_of(batch)) for batch in batches])

    def evaluate(
        self,
        data: Path | str | None = None,
        split: Split = "test",
        *,
        images: Path | str | None = None,
        format: str | None = None,  # noqa: A002  # the name of the flag
        path_column: str | None = None,
        labels_column: str | None = None,
        split_column: str | None = None,
        group_column: str | None = None,
        batch_size: int | None = None,
        workers: int | None = None,
        display: Display | None = None,
    ) -> dict[str, Any]:
        """How good it is on one split of labelled data: what evaluation.json holds, and the classes not in common.

        Without `data`, on the data it was trained with. Classes are matched by name. An image that the run has had
        keeps the split it had there; a new one, in data without val and test, counts as the split asked for.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
        given = Reading(_text(data), _text(images), format, path_column, labels_column, split_column, group_column)
        records = (given if data is not None else given.over(self._reading or Reading())).records()
        classes = match(self.names, records.label_space.names)
        chosen = records.take(rows_of(split, records, self.folder))
        scores = self._scores(chosen.paths, batch_size, workers, display or Display(Console(quiet=True)))
        result = evaluate(
            torch.from_numpy(scores[:, classes.in_model]),
            torch.from_numpy(chosen.labels[:, classes.in_data]).float(),
            torch.from_numpy(chosen.known[:, classes.in_data]),
            names=classes.common,
            split=split,
            note=self.classifier.note,
        )
        unmatched = {"classes_only_in_model": classes.only_in_model, "classes_only_in_data": classes.only_in_data}
        return {**result, **unmatched}

    def _scores(
        self, paths: Sequence[Path], batch_size: int | None, workers: int | None, display: Display
    ) -> Float[ndarray, "N C"]:
        rows = []
        with display.stage("scoring", len(paths)) as bar:
            for batch in self._decoded(paths, batch_size, workers):
                rows.append(self._probabilities(_all_of(batch)))
                for _ in batch.paths:
                    bar.advance(images=1)
        return np.concatenate(rows)

    def _decoded(
        self, images: Source | Sequence[Source], batch_size: int | None, workers: int | None
    ) -> Iterator[Decoded]:
        pixels = CPU_PIXELS if self.device.type == "cpu" else GPU_PIXELS
        size = batch_size if batch_size is not None else max(1, pixels // self.preprocessing.size**2)
        return decode(images, self.preprocessing, batch_size=size, workers=workers)

    def _block(self, batch: Decoded, threshold: float) -> Predictions:
        scores = np.full((len(batch.paths), len(self.names)), np.nan, dtype=np.float32)
        if batch.rows:
            scores[batch.rows] = self._probabilities(batch.images)
        errors = {error.path: error.reason for error in batch.errors}
        return Predictions(self.names, tuple(batch.paths), scores, threshold, errors)

    @torch.inference_mode()
    def _probabilities(self, images: Float[Tensor, "N 3 S S"]) -> Float[ndarray, "N C"]:
        return _numbers(self.classifier.logits(self._there(images)).float().sigmoid())

    @torch.inference_mode()
    def _features(self, images: Float[Tensor, "N 3 S S"]) -> Float[ndarray, "N D"]:
        return _numbers(self.classifier.encoder(self._there(images)))

    def _there(self, images: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N 3 S S"]:
        return images.to(self.device, memory_format=torch.channels_last)  # as the classifier is


def _numbers(rows: Float[Tensor, "N K"]) -> Float[ndarray, "N K"]:
    array: ndarray[Any, Any] = rows.float().cpu().numpy()
    return array


def _all_of(batch: Decoded) -> Float[Tensor, "N 3 S S"]:
    if batch.errors:
        raise ImageError(batch.errors[0].path, f"{batch.errors[0].reason}; mend it, or leave it out")
    return batch.images


def _text(path: Path | str | None) -> str | None:
    return None if path is None else str(path)
