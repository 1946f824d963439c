"""The rows of the tables with one row per image: split.csv, folds.csv and images.csv."""

from typing import Annotated, Literal, NamedTuple, get_args

from msgspec import Meta

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ImagePath = Annotated[str, Meta(min_length=1)]


class SplitRow(NamedTuple):
    """The split of an image."""

    path: ImagePath
    split: Split


class FoldRow(NamedTuple):
    """The fold of an image, counted from 1."""

    path: ImagePath
    fold: int


class ImageRow(NamedTuple):
    """The size, modification time and digest of an image file when the run started."""

    path: ImagePath
    size: int
    mtime_ns: int
    digest: str
