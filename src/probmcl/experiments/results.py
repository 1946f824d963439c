"""Results of a comparison: one per classifier and run, their summary rows, and the results.jsonl file."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from probmcl.errors import OptionError, RunError, counted, plain
from probmcl.runtime.conversion import convert
from probmcl.runtime.files import json_line, read_text, refuse_special_files, write_text
from probmcl.store.evaluation import Retrieval, SplitMetrics
from probmcl.store.files import RESULTS
from probmcl.store.run_metadata import Head, ProtocolFingerprint
from probmcl.tables import bracketed, percent


@dataclass(frozen=True, kw_only=True)
class ComparedClassifier:
    """The properties of a classifier that do not depend on the seed."""

    name: str  # method and preset, as in `probmcl:paper`, or `frozen probe`; the same for both heads of a method
    head: Head  # the probe on the frozen encoder, the method's own head, or a probe on the encoder that it trained
    method: str | None  # a key of METHODS, or the path of an external method; None for the frozen probe
    learning_rate: float | None  # None for the frozen probe
    weight_decay: float | None
    images_seen: int  # in training, counting every view
    parameters: int  # of the classifier, including the encoder
    gmac: float | None  # multiply-adds for one image, in 10⁹
    training_speed: float | None  # views per second
    prediction_speed: float | None  # images per second
    peak_memory: int | None  # bytes used by a training step
    fidelity: str  # see `probmcl.methods.base.MethodOrigin`; `own` for an external method
    reference: str  # a key of references.bib, or empty
    note: str = ""  # a note on its mAP, usually empty; see `probmcl.methods.base.Classifier`
    emits_set: bool = False  # whether it predicts a set without thresholds; see `probmcl.methods.base.Classifier`

    @property
    def title(self) -> str:
        """The name and the head, unique within a comparison."""
        return self.name if self.head == "frozen" else f"{self.name}, {self.head}"


@dataclass(frozen=True, kw_only=True)
class Result(ComparedClassifier):
    """The result of one classifier in one run, a line of results.jsonl; scores are fractions on the test split."""

    seed: int  # number of the run
    validation: float  # mAP on the validation split
    test: SplitMetrics  # on the test split
    macro_F1: float | None  # noqa: N815  # at thresholds chosen on validation; at 0.5 if it emits a set
    by_embedding: Retrieval  # with the encoder's features
    by_probabilities: Retrieval  # with predicted probabilities
    trials: int  # number of pairs of learning rate and weight decay that were tried
    seconds: float  # duration of training and of fitting the probe
    fingerprint: ProtocolFingerprint
    predictions: str  # the file with its test scores, relative to `folder`
    folder: Path = field(default_factory=Path)  # the folder of results.jsonl; not stored

    def __post_init__(self) -> None:
        predictions = Path(self.predictions)
        if predictions.anchor or ".." in predictions.parts:  # on Windows, C:name has an anchor but is not absolute
            raise ValueError(f"predictions={self.predictions!r} is outside the folder of the comparison")

    @property
    def test_map(self) -> float:
        """Test mAP; 0 if no class could be scored."""
        return self.test.mAP or 0.0


@dataclass(frozen=True, kw_only=True)
class Row(ComparedClassifier):
    """The results of one classifier averaged over all seeds; scores are fractions on the test split."""

    seeds: int  # number of runs
    best_head: bool  # True if it represents its method, because its validation mAP is higher than the other head's
    validation: float  # mAP on the validation split, by which all choices are made
    mAP: float  # noqa: N815  # mean average precision
    macro_auroc: float | None  # mean area under the ROC curve
    interval: tuple[float, float] | None  # 95 % bootstrap interval over test images or groups; None without predictions
    over_seeds: float | None  # standard deviation of mAP over seeds; None with one seed
    # Difference in mAP from the frozen probe over the common seeds, its paired bootstrap interval, and its p-value with
    # Holm's correction over methods. All are None for the frozen probe and without a common seed; the p-value is also
    # None without an interval, and if `best_head` is False.
    gain: float | None
    gain_interval: tuple[float, float] | None
    gain_p: float | None
    # The same for the lead in mAP of the best method on validation over this row; also None for that method.
    behind: float | None
    behind_interval: tuple[float, float] | None
    behind_p: float | None
    # Precision, recall and F1 at a threshold of 0.5, averaged over classes (C) or over all decisions (O).
    CP: float | None
    CR: float | None
    CF1: float | None
    OP: float | None
    OR: float | None
    OF1: float | None
    macro_F1: float | None  # noqa: N815  # as in `Result`
    # Mean label overlap with the ten nearest test images in the embedding, and mAP of retrieving test images with an
    # overlap of at least 0.5. The next two fields use predicted probabilities instead of the embedding.
    jaccard_at_10: float | None
    retrieval_mAP: float | None  # noqa: N815
    probability_jaccard_at_10: float | None
    probability_mAP: float | None  # noqa: N815
    seconds: float  # duration of training and of fitting the probe
    fingerprint: str  # of the protocol, 12 hexadecimal digits; only rows with equal fingerprints are comparable


@dataclass(frozen=True, repr=False)
class Comparison:
    """The rows of a comparison, in any order, and the conditions that they share."""

    rows: tuple[Row, ...]
    seeds: int  # number of runs of each method
    trials: int  # number of learning rates and weight decays tried for each method; 1 means untuned
    images_seen: int  # by each method in training, counting every view
    test_images: int
    groups: int | None  # number of groups that the bootstrap resamples; None if it resamples images
    classes: int
    encoder: str  # its name in timm
    data: str  # the name of the dataset
    left_out: tuple[str, ...]  # messages about methods that diverged or could not run
    draws: int  # number of bootstrap resamples
    chance: float | None = None  # mAP of a model that has learned nothing; None if no class could be scored

    def __repr__(self) -> str:
        lines = [f"Comparison({self.protocol})"]
        for row in self.ordered:
            scores = f"mAP {percent(row.mAP)}{bracketed(row.interval)}, AUROC {percent(row.macro_auroc)}"
            lines.append(f"  {row.title}: {scores}")
        return "\n".join(lines)

    @property
    def ordered(self) -> tuple[Row, ...]:
        """The frozen probe, then the other rows by validation mAP; the best method comes first among ties."""
        by_validation = sorted(self.rows, key=lambda row: (-row.validation, row.behind is not None, row.title))
        frozen_first = sorted(by_validation, key=lambda row: row.head != "frozen")  # keeps the order of the others
        return tuple(frozen_first)

    @property
    def frozen(self) -> Row:
        """The linear probe on the frozen encoder."""
        frozen = [row for row in self.rows if row.head == "frozen"]
        if len(frozen) != 1:
            raise ValueError(f"a comparison needs exactly one frozen probe, got {len(frozen)}")
        return frozen[0]

    @property
    def methods(self) -> tuple[Row, ...]:
        """The better head of each method, by validation mAP; the best method comes first."""
        return tuple(row for row in self.ordered if row.head != "frozen" and row.best_head)

    @property
    def protocol(self) -> str:
        """The conditions of the comparison in one line."""
        images = counted(self.test_images, "image")
        classes = counted(self.classes, "class", "classes")
        data = f"{self.data}, test split: {images}, {classes}"
        if self.chance is not None:
            data += f", chance mAP {percent(self.chance)}"
        tuning = "untuned" if self.trials == 1 else f"best of {self.trials:,} trials on validation"
        resampled = "images" if self.groups is None else counted(self.groups, "group")
        conditions = (
            data,
            self.encoder,
            f"{counted(self.images_seen, 'image')} seen",
            counted(self.seeds, "seed"),
            tuning,
            f"intervals: 95 %, {self.draws:,} resamples of {resampled}",
        )
        return " · ".join(conditions)


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write a file with one line of JSON per result."""
    lines = []
    for result in results:
        content = {name: value for name, value in vars(result).items() if name != "folder"}
        lines.append(f"{json_line(content)}\n")
    write_text(path, "".join(lines))


def read_results(path: Path) -> list[Result]:
    """Read a results.jsonl file, given its path or the folder of the comparison."""
    try:
        if path.is_dir():
            refuse_special_files(path)
            path = path / RESULTS
        lines = read_text(path).splitlines()
    except (OSError, RunError) as error:
        problem = f"cannot be read ({error}); pass the {RESULTS} file of a comparison"
        raise OptionError("add", str(path), problem) from error
    return [_parse_result(line, path, number) for number, line in enumerate(lines, start=1)]


def _parse_result(line: str, path: Path, number: int) -> Result:
    """Return the result in a line of a results.jsonl file; the path and the line number are for messages."""
    try:
        content = msgspec.json.decode(line, type=dict[str, Any])
        return convert(content | {"folder": path.parent}, Result)
    except (ValueError, RecursionError) as error:
        problem = f"{plain(error)}; pass the {RESULTS} file of a comparison"
        raise RunError(f"{path}, line {number}: {problem}") from error


def merge_results(results: Sequence[Result], others: Sequence[Result], path: Path) -> list[Result]:
    """Add the results of another comparison, read from `path`, except classifiers that are already in `results`."""
    fingerprint = results[0].fingerprint
    for other in others:
        parts = fingerprint.differing(other.fingerprint)
        if parts:
            problem = f"cannot be added to this comparison because they differ in {' and '.join(parts)}"
            fingerprints = f"(fingerprints {other.fingerprint.all} and {fingerprint.all})"
            raise OptionError("add", str(path), f"{problem} {fingerprints}")
    titles = {result.title for result in results}
    new = [other for other in others if other.title not in titles]
    return [*results, *new]
