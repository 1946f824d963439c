"""A trained classifier in use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor

from probmcl.console import Console
from probmcl.data import Preprocessing, Records, Split
from probmcl.data.hierarchy import below_parents as below_parents_of
from probmcl.data.hierarchy import parents_of
from probmcl.data.options import DataSource, ReadOptions, refuse_share
from probmcl.data.read import read_source
from probmcl.data.records import SPLITS
from probmcl.data.stream import Decoded, Source, decode
from probmcl.errors import DataError, ImageError
from probmcl.evaluation.groups import Aggregate, EvaluationOptions, ScoredRows, evaluate_rows
from probmcl.inference.classes import levels_of_classes, match, truth
from probmcl.inference.predictions import Predictions, joined
from probmcl.inference.reading import images_of, read_split
from probmcl.inference.renaming import read_renames
from probmcl.inference.scoring import Scored, score
from probmcl.inference.trained_on import trained_on
from probmcl.methods.base import Classifier
from probmcl.run.image_batches import CPU_PIXELS, GPU_PIXELS


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
        hierarchy: the parent of each class that has one; None for classes without.
    """

    def __init__(
        self,
        classifier: Classifier,
        *,
        names: tuple[str, ...],
        preprocessing: Preprocessing,
        device: torch.device,
        folder: Path,
        source: DataSource | None,
        hierarchy: Mapping[str, str] | None = None,
    ) -> None:
        # Images are laid out so too, and convolutions are faster for it.
        there = classifier.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.classifier: Classifier = there.eval()
        self.names, self.preprocessing, self.device = names, preprocessing, device
        self.folder, self.hierarchy, self._source = folder, hierarchy, source

    def __repr__(self) -> str:
        size = self.preprocessing.size
        return f"Model({str(self.folder)!r}, {len(self.names)} classes, {size} px, {self.device})"

    def predict(
        self,
        images: Source | Sequence[Source],
        *,
        threshold: float = 0.5,
        below_parents: bool = False,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Predictions:
        """A probability and a decision for each class of each image; one that cannot be read is in `errors`.

        `below_parents` lowers the score of a class to that of its parent where it is higher.
        """
        blocks = self.stream(
            images, threshold=threshold, below_parents=below_parents, batch_size=batch_size, workers=workers
        )
        return joined(self.names, threshold, blocks)

    def stream(
        self,
        images: Source | Sequence[Source],
        *,
        threshold: float = 0.5,
        below_parents: bool = False,
        batch_size: int | None = None,
        workers: int | None = None,
    ) -> Iterator[Predictions]:
        """The same in blocks, as they are computed: a million images need no more memory than a thousand."""
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold {threshold}: a probability is between 0 and 1")
        caps = self._caps(below_parents)
        batches = self._decoded(images, batch_size, workers)
        return (self._block(batch, threshold, caps) for batch in batches)

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
        read: ReadOptions = ReadOptions(),
        rename: Path | str | Mapping[str, str] | None = None,
        by: str | None = None,
        aggregate: Aggregate | None = None,
        below_parents: bool = False,
        skip_bad: float | None = None,
        draws: int = 1000,
        seed: int = 0,
        batch_size: int | None = None,
        workers: int | None = None,
        console: Console | None = None,
    ) -> dict[str, Any]:
        """How good it is on one split of labeled data: what evaluation.json holds, intervals, classes not in common.

        Without `data`, on the data it was trained with. An image that the run has had keeps the split it had there; a
        new one, in data without val and test, counts as the split asked for. `images` and `read` are those of
        `probmcl.data.read`; without `data` they change how the data of the run are read. Classes are matched by name,
        and `rename`, a file or a mapping, says which class of the data is which of the model.

        `by` names a column, each value of which is also judged by itself. `aggregate` judges groups instead of images,
        each by the mean or the maximum of its images' scores. With `below_parents` no class scores above its parent.
        Images that cannot be read are all named in one error, or left out where they are no larger share of those that
        are scored than `skip_bad`; the result then lists them as `skipped`. It counts as `trained_on` the images that
        the run was trained on, and warns of copies of such under other paths.
        Intervals come from so many `draws` of groups, where the data has them, or of images.
        """
        if split not in SPLITS:
            raise ValueError(f"split {split!r} is none of {', '.join(SPLITS)}")
        refuse_share(skip_bad)
        options = EvaluationOptions(by=by, aggregate=aggregate, draws=draws, seed=seed)
        caps = self._caps(below_parents)
        records = read_source(self._evaluation_source(data, images, read), keep=() if by is None else (by,))
        renames = read_renames(rename, model=self.names, data=records.label_space.names)
        classes = match(self.names, records.label_space.names, renames)
        had = read_split(self.folder / "split.csv")
        chosen = images_of(split, records, had)
        options.values(chosen)  # any problem is an error before anything is scored
        console = console or Console.quiet()
        trained = trained_on(chosen.paths, had, split)
        kept, scores, bad = self._scores(chosen, skip_bad, batch_size, workers, console)
        scores = below_parents_of(scores, caps)
        scored = ScoredRows.of_images(scores[:, classes.in_model], *truth(kept.states, classes.in_data), kept.group)
        result = evaluate_rows(
            scored,
            options,
            options.values(kept),
            console,
            names=classes.common,
            split=split,
            note=self.classifier.note,
            levels=levels_of_classes(classes.in_model, self.names, self.hierarchy),
        )
        return {
            **result,
            "classes_only_in_model": classes.only_in_model,
            "classes_only_in_data": classes.only_in_data,
            "renamed": renames,
            "trained_on": trained,
            "skipped": [{"path": str(image.path), "reason": image.reason} for image in bad],
        }

    def _evaluation_source(self, data: Path | str | None, images: Path | str | None, read: ReadOptions) -> DataSource:
        if data is not None:
            return DataSource(Path(data), None if images is None else Path(images), read)
        if self._source is None:
            raise DataError("this run was trained on records that no file holds; name the data to evaluate on")
        return self._source.with_changes(images, read)

    def _scores(
        self, records: Records, skip_bad: float | None, batch_size: int | None, workers: int | None, console: Console
    ) -> Scored:
        with console.progress("scoring", len(records)) as bar:
            return score(
                records,
                lambda paths: self._decoded(paths, batch_size, workers),
                self._probabilities,
                skip_bad=skip_bad,
                advance=lambda images: bar.advance(images, steps=images),
            )

    def _caps(self, below_parents: bool) -> Int[ndarray, "C"]:
        """The parent above which each class must not score, −1 for none."""
        if below_parents and not self.hierarchy:
            raise ValueError(f"{self.folder}: its classes have no parents, below which they could be kept")
        return parents_of(self.names, self.hierarchy if below_parents else None)

    def _decoded(
        self, images: Source | Sequence[Source], batch_size: int | None, workers: int | None
    ) -> Iterator[Decoded]:
        pixels = CPU_PIXELS if self.device.type == "cpu" else GPU_PIXELS
        size = batch_size if batch_size is not None else max(1, pixels // self.preprocessing.size**2)
        return decode(images, self.preprocessing, batch_size=size, workers=workers)

    def _block(self, batch: Decoded, threshold: float, caps: Int[ndarray, "C"]) -> Predictions:
        scores = np.full((len(batch.paths), len(self.names)), np.nan, dtype=np.float32)
        if batch.rows:
            scores[batch.rows] = below_parents_of(self._probabilities(batch.images), caps)
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
