"""The results of a comparison: one per classifier and run, their summary rows, and the file results.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from probmcl.errors import OptionError
from probmcl.files import json_line, write_text

RESULTS = "results.jsonl"

Head = Literal["frozen", "own head", "re-probed"]  # as in run.results, which loads torch


@dataclass(frozen=True, kw_only=True)
class ComparedClassifier:
    """A classifier of a comparison: what does not depend on the seed."""

    name: str  # method and preset, `probmcl:paper`, or `frozen probe`; both heads of a method share it
    head: Head  # the probe on the untouched encoder, the method's own head, or a probe on the encoder that it trained
    method: str | None  # a key of METHODS, or the place of a method outside this package; None for the frozen probe
    learning_rate: float | None  # None for the frozen probe
    weight_decay: float | None
    images_seen: int  # in training, each view counted
    parameters: int  # of the classifier, encoder included
    gmac: float | None  # multiply-adds for one image, in 10⁹
    training_speed: float | None  # views per second
    prediction_speed: float | None  # images per second
    peak_memory: int | None  # bytes of a training step
    fidelity: str  # what it was checked against, see `probmcl.methods.base.Origin`; `own` for a method from outside
    reference: str  # a key of references.bib, or empty
    note: str = ""  # a remark on its mAP, see `probmcl.methods.base.Classifier`; empty for most
    emits_set: bool = False  # whether it decides without thresholds, see there

    @property
    def title(self) -> str:
        """The name and the head, which no two classifiers of a comparison share."""
        return self.name if self.head == "frozen" else f"{self.name}, {self.head}"


@dataclass(frozen=True, kw_only=True)
class Result(ComparedClassifier):
    """One classifier of one run, a line of results.jsonl; scores are fractions on the test split unless stated."""

    seed: int  # number of the run
    validation: float  # mAP on the validation split
    test: dict[str, Any]  # the content of evaluation.json
    macro_F1: float | None  # noqa: N815  # of the classes, at the best thresholds on validation; at 0.5 if it emits a set
    by_embedding: dict[str, float | None]  # retrieval by the encoder's features
    by_probabilities: dict[str, float | None]  # retrieval by predicted probabilities
    trials: int  # number of learning rates and weight decays that were tried
    seconds: float  # duration of the training, and of fitting the probe
    fingerprint: dict[str, str]  # of each part of the protocol, and of `all`
    predictions: str  # the file of its test scores, relative to `folder`
    folder: Path = field(default_factory=Path)  # the folder of results.jsonl; not stored

    @property
    def test_map(self) -> float:
        """Test mAP; 0 if no class could be scored."""
        return self.test["mAP"] or 0.0


@dataclass(frozen=True, kw_only=True)
class Row(ComparedClassifier):
    """One classifier over all seeds; scores are mean fractions on the test split unless stated."""

    seeds: int  # number of runs
    best_head: bool  # whether it represents its method: it is better on validation than the method's other row
    validation: float  # mAP on the validation split, which decides all choices
    mAP: float  # noqa: N815  # mean average precision
    interval: tuple[float, float] | None  # 95 %, by the bootstrap over test images or groups; None without predictions
    over_seeds: float | None  # standard deviation of mAP over seeds; None for one seed
    # mAP minus that of the frozen probe over the seeds that both have, its interval by the paired bootstrap, and its
    # p-value, adjusted by Holm over methods. None for the frozen probe and without a common seed; the p-value also
    # without an interval, and if `best_head` is false.
    gain: float | None
    gain_interval: tuple[float, float] | None
    gain_p: float | None
    # The same for mAP of the method that is best on validation minus this one; None also for that method.
    behind: float | None
    behind_interval: tuple[float, float] | None
    behind_p: float | None
    # Precision, recall and F1 at a probability of 0.5, averaged over classes (C) and over all decisions (O).
    CP: float | None
    CR: float | None
    CF1: float | None
    OP: float | None
    OR: float | None
    OF1: float | None
    macro_F1: float | None  # noqa: N815  # as in `Result`
    # Mean label overlap with the ten nearest test images by the embedding, and mAP of ranking test images by it; an
    # overlap of at least 0.5 is relevant. Then the same by predicted probabilities.
    jaccard_at_10: float | None
    retrieval_mAP: float | None  # noqa: N815
    probability_jaccard_at_10: float | None
    probability_mAP: float | None  # noqa: N815
    seconds: float  # duration of the training, and of fitting the probe
    fingerprint: str  # of the protocol, 12 hexadecimal digits; only rows that share it are comparable


@dataclass(frozen=True)
class Comparison:
    """All rows of a comparison, in any order, and their common conditions."""

    rows: tuple[Row, ...]
    seeds: int  # number of runs of each method
    trials: int  # number of learning rates and weight decays tried for each method; 1 means untuned
    images_seen: int  # by each method in training, each view counted
    test_images: int
    groups: int | None  # that the bootstrap drew from; None if it drew images
    classes: int
    encoder: str  # its name in timm
    data: str  # the name of the data set
    left_out: tuple[str, ...]  # sentences on methods that diverged or could not run
    draws: int  # of the bootstrap

    @property
    def ordered(self) -> tuple[Row, ...]:
        """The frozen probe, then the rows by validation mAP; among equals the one that others are compared with."""
        rows = sorted(self.rows, key=lambda row: (-row.validation, row.behind is not None, row.title))
        return tuple(sorted(rows, key=lambda row: row.head != "frozen"))

    @property
    def frozen(self) -> Row:
        """The linear probe on the untouched encoder."""
        frozen = [row for row in self.rows if row.head == "frozen"]
        if len(frozen) != 1:
            raise ValueError(f"a comparison needs exactly one frozen probe, got {len(frozen)}")
        return frozen[0]

    @property
    def methods(self) -> tuple[Row, ...]:
        """The better head of each method; the best on validation comes first."""
        return tuple(row for row in self.ordered if row.head != "frozen" and row.best_head)

    @property
    def protocol(self) -> str:
        """The conditions of all rows in one line."""
        drawn = "images" if self.groups is None else f"{self.groups:,} groups"
        conditions = (
            f"{self.data}, test split: {self.test_images:,} images, {self.classes:,} classes",
            self.encoder,
            f"{self.images_seen:,} images seen",
            "1 seed" if self.seeds == 1 else f"{self.seeds:,} seeds",
            "untuned" if self.trials == 1 else f"best of {self.trials:,} trials on validation",
            f"intervals: 95 %, {self.draws:,} draws of {drawn}",
        )
        return " · ".join(conditions)


def write_results(path: Path, results: Sequence[Result]) -> None:
    """Write one line of JSON for each result."""
    lines = ({key: value for key, value in vars(result).items() if key != "folder"} for result in results)
    write_text(path, "".join(f"{json_line(line)}\n" for line in lines))


def read_results(path: Path) -> list[Result]:
    """Read a results.jsonl, or the one in a comparison's folder."""
    path = path / RESULTS if path.is_dir() else path
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot be read ({error}); give the {RESULTS} of a comparison"
        raise OptionError("add", str(path), problem) from error
    results = []
    for number, line in enumerate(lines, start=1):
        try:
            content = {**msgspec.json.decode(line), "folder": path.parent}
            results.append(msgspec.convert(content, Result, dec_hook=lambda kind, value: kind(value)))
        except (msgspec.MsgspecError, TypeError) as error:
            raise ValueError(f"{path}: line {number}: {error}; give the {RESULTS} of a comparison") from error
    return results


def merge_results(results: Sequence[Result], others: Sequence[Result], path: Path) -> list[Result]:
    """Add the results in `path`, of another comparison with the same protocol; a classifier that both have is ours."""
    ours, titles = results[0].fingerprint, {result.title for result in results}
    for theirs in (other.fingerprint for other in others):
        if parts := [part for part in ours if part != "all" and ours[part] != theirs.get(part)]:
            problem = (
                f"has rows that cannot be compared with these: its {' and '.join(parts)} differ from this comparison's"
            )
            raise OptionError("add", str(path), f"{problem} ({theirs.get('all')} and {ours['all']})")
    return [*results, *(other for other in others if other.title not in titles)]
