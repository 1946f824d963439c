"""Statistics of images and labels, as `probmcl check` reports them."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from probmcl.audit.duplicates.hashing import Fingerprint
from probmcl.audit.duplicates.search import Duplicates, NearPair
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Records

COOCCURRENCES = 20  # number of class pairs in the report, most frequent first


@dataclass(frozen=True)
class SplitCounts:
    """A number for each split."""

    train: int = 0
    val: int = 0
    test: int = 0

    @property
    def total(self) -> int:
        """The number for all splits together."""
        return self.train + self.val + self.test


@dataclass(frozen=True)
class LabelCounts:
    """The number of images of one class by the state of its label, and by split."""

    absent: SplitCounts = SplitCounts()
    present: SplitCounts = SplitCounts()
    unknown: SplitCounts = SplitCounts()
    uncertain: SplitCounts = SplitCounts()


PerClass = Mapping[str, LabelCounts]
"""The label counts of each class."""


@dataclass(frozen=True)
class Imbalance:
    """The most and the least frequent class, their positives, and the ratio of these numbers."""

    most: str
    most_positives: int
    least: str
    least_positives: int

    @property
    def ratio(self) -> float:
        """How many times as many positives the most frequent class has as the least frequent one."""
        return self.most_positives / self.least_positives

    def to_dict(self) -> dict[str, Any]:
        """Return the imbalance in JSON form: each class is a pair of its name and its positives."""
        return {
            "most": [self.most, self.most_positives],
            "least": [self.least, self.least_positives],
            "ratio": self.ratio,
        }


@dataclass(frozen=True)
class ClassPair:
    """Two classes that occur together; `share` is relative to the images of the rarer class."""

    classes: list[str]
    images: int
    share: float


@dataclass(frozen=True)
class SideLengths:
    """The smallest, the median and the largest width or height of the images, in pixels."""

    least: int
    median: int
    most: int


@dataclass(frozen=True)
class ImageSizes:
    """The sizes of the images, and their number by mode, such as RGB. Without an image there are no sides."""

    width: SideLengths | None = None
    height: SideLengths | None = None
    modes: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Conflict:
    """Identical images, and the classes that are positive for some of them and negative for others."""

    images: list[str]
    classes: list[str]


@dataclass(frozen=True)
class SimilarImages:
    """Two images that may show the same, as `NearPair` describes them."""

    images: list[str]
    splits: list[str]
    distance: int
    correlation: float
    confirmed: bool


@dataclass(frozen=True)
class UnreadableImage:
    """An image that cannot be decoded, and the reason."""

    image: str
    reason: str


@dataclass(frozen=True)
class RepeatedRows:
    """Lines of the table that repeat an image, in pairs: with equal cells, and with other cells."""

    duplicated_rows: list[tuple[int, int]]
    conflicting_rows: list[tuple[int, int]]


@dataclass(frozen=True, eq=False, kw_only=True)
class AuditStatistics(Mapping[str, Any]):
    """All numbers and lists of an audit: as attributes, and in JSON form by key.

    If the data cannot be read, all attributes are empty, and the keys are those of `repeated_rows`, if there are any.

    Attributes:
        understood: how the data were read.
        split: how the images were split.
        summary: a few lines about how the data were read, and the number of images, classes and labels.
        levels: the intensity range of 16-bit and float images.
        images: number of readable images.
        classes: number of classes.
        splits: number of images in each split.
        groups: number of groups; None without groups.
        per_class: number of images by class, label state and split.
        images_without_labels: number of images without a positive.
        labels_per_image: mean number of positives.
        not_known: fraction of labels that are not known.
        imbalance: the most and the least frequent class; None without positives.
        together: the pairs of classes that occur together most often.
        sizes: the sizes and modes of the images.
        nearly_constant: images of nearly uniform color.
        exact_duplicates: sets of images whose files have the same content.
        conflicting_labels: identical images with different labels.
        near_duplicates: pairs of similar images; not all of them are confirmed to be copies.
        missing: images whose files do not exist.
        unreadable: images that cannot be decoded.
        repeated_rows: rows that repeat an image, if they are the reason why the data cannot be read.
    """

    understood: str = ""
    split: str = ""
    summary: str = ""
    levels: str | None = None
    images: int = 0
    classes: int = 0
    splits: SplitCounts = SplitCounts()
    groups: int | None = None
    per_class: PerClass = field(default_factory=dict)
    images_without_labels: int = 0
    labels_per_image: float = 0.0
    not_known: float = 0.0
    imbalance: Imbalance | None = None
    together: list[ClassPair] = field(default_factory=list)
    sizes: ImageSizes = ImageSizes()
    nearly_constant: list[str] = field(default_factory=list)
    exact_duplicates: list[list[str]] = field(default_factory=list)
    conflicting_labels: list[Conflict] = field(default_factory=list)
    near_duplicates: list[SimilarImages] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    unreadable: list[UnreadableImage] = field(default_factory=list)
    repeated_rows: RepeatedRows | None = None

    @property
    def is_empty(self) -> bool:
        """True if the data could not be read; otherwise they have a summary."""
        return not self.summary

    @cached_property
    def _json_form(self) -> dict[str, Any]:
        """The content of the mapping, as it is written to JSON."""
        content = asdict(self)
        repeated_rows: dict[str, Any] | None = content.pop("repeated_rows")
        if self.is_empty:
            return repeated_rows or {}
        if self.imbalance is not None:
            content["imbalance"] = self.imbalance.to_dict()
        return content

    def __getitem__(self, key: str) -> Any:
        return self._json_form[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._json_form)

    def __len__(self) -> int:
        return len(self._json_form)


def statistics(records: Records, duplicates: Duplicates) -> AuditStatistics:
    """Return the counts, sizes and duplicates of readable images."""
    images = duplicates.fingerprints
    images_of_split = {split: len(records.rows(split)) for split in SPLITS}
    groups = None if records.group is None else len(set(records.group))
    per_class = _per_class(records)
    present = records.states.present()
    positives_per_image = np.diff(present.indptr)  # a row of the sparse matrix has one entry per positive
    images_without_labels = int((positives_per_image == 0).sum())
    labels_per_image = present.nnz / max(len(records), 1)
    nearly_constant = [row for row, image in enumerate(images) if image.nearly_constant]
    conflicts = [_conflict(records, rows) for rows in duplicates.exact]
    return AuditStatistics(
        images=len(records),
        classes=len(records.label_space),
        splits=SplitCounts(**images_of_split),
        groups=groups,
        per_class=per_class,
        images_without_labels=images_without_labels,
        labels_per_image=labels_per_image,
        not_known=1 - records.states.known_share(),
        imbalance=_imbalance(per_class),
        together=_cooccurrences(records),
        sizes=_sizes(images),
        nearly_constant=_names(records, nearly_constant),
        exact_duplicates=[_names(records, rows) for rows in duplicates.exact],
        conflicting_labels=[conflict for conflict in conflicts if conflict.classes],
        near_duplicates=[_similar_images(records, pair) for pair in duplicates.near],
    )


def _names(records: Records, rows: Sequence[int]) -> list[str]:
    """Return the images of these rows as messages name them: by path, and by table row if there is a table."""
    return [records.where(row) for row in rows]


def _per_class(records: Records) -> PerClass:
    """Return the number of images of each class, by the state of its label and by split."""
    counts_of_split = {split: records.states.take(records.rows(split)).settled_counts() for split in SPLITS}

    def split_counts(state: State, column: int) -> SplitCounts:
        numbers = {split: int(counts[state, column]) for split, counts in counts_of_split.items()}
        return SplitCounts(**numbers)

    per_class = {}
    for column, name in enumerate(records.label_space.names):
        per_class[name] = LabelCounts(
            absent=split_counts(State.ABSENT, column),
            present=split_counts(State.PRESENT, column),
            unknown=split_counts(State.UNKNOWN, column),
            uncertain=split_counts(State.UNCERTAIN, column),
        )
    return per_class


def _imbalance(per_class: PerClass) -> Imbalance | None:
    """Return the most and the least frequent of the classes with at least one positive."""
    positives = {name: counts.present.total for name, counts in per_class.items() if counts.present.total > 0}
    if not positives:
        return None
    most = max(positives, key=lambda name: positives[name])
    least = min(positives, key=lambda name: positives[name])
    return Imbalance(most, positives[most], least, positives[least])


def _cooccurrences(records: Records) -> list[ClassPair]:
    """Return the class pairs that co-occur most often, the most frequent first."""
    from scipy.sparse import triu

    names = records.label_space.names
    present = records.states.present().astype(np.int64)
    images_of_class = present.sum(axis=0)
    images_of_pair = triu(present.T @ present, k=1).tocoo()  # each pair once, without the diagonal
    order = np.argsort(-images_of_pair.data, kind="stable")[:COOCCURRENCES]
    most_frequent = []
    for index in order:
        one, other = images_of_pair.row[index], images_of_pair.col[index]
        images = images_of_pair.data[index]
        images_of_rarer = min(images_of_class[one], images_of_class[other])
        share = float(images / images_of_rarer)
        most_frequent.append(ClassPair([names[one], names[other]], int(images), share))
    return most_frequent


def _sizes(readable: Sequence[Fingerprint]) -> ImageSizes:
    """Return the range of the widths and heights, and the number of images in each mode, the most frequent first."""
    if not readable:
        return ImageSizes()
    sizes = [image.size for image in readable]
    widths = [width for width, _ in sizes]
    heights = [height for _, height in sizes]
    modes = Counter(image.mode for image in readable)
    return ImageSizes(_side_lengths(widths), _side_lengths(heights), dict(modes.most_common()))


def _side_lengths(lengths: Sequence[int]) -> SideLengths:
    """Return the smallest, the median and the largest of these lengths."""
    return SideLengths(min(lengths), int(np.median(lengths)), max(lengths))


def _conflict(records: Records, rows: Sequence[int]) -> Conflict:
    """Return the classes that are positive for some of these identical images and negative for others."""
    labels, known = records.states.labels_and_known(np.array(rows))
    positive = ((labels == 1) & known).any(axis=0)
    negative = ((labels == 0) & known).any(axis=0)
    classes = [records.label_space.names[column] for column in np.flatnonzero(positive & negative)]
    return Conflict(_names(records, rows), classes)


def _similar_images(records: Records, pair: NearPair) -> SimilarImages:
    """Return a pair of rows with the names and splits of its images."""
    rows = (pair.one, pair.other)
    return SimilarImages(
        images=_names(records, rows),
        splits=[records.split[row] for row in rows],
        distance=pair.distance,
        correlation=pair.correlation,
        confirmed=pair.confirmed,
    )
