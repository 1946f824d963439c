"""The results of a comparison: one per classifier and run, their summary rows, and the file results.jsonl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """A classifier of a comparison: what does not depend on the seed.

    Attributes:
        name: method and preset: `bce`, `probmcl:paper`, `frozen probe`. Both heads of a method share it.
        head: the probe on the untouched encoder, the method's own head, or a probe on the encoder that it trained.
        method: a key of METHODS, or the place of a method outside this package; None for the frozen probe.
        learning_rate: None for the frozen probe.
        weight_decay: None for the frozen probe.
        images_seen: in training, each view counted.
        parameters: of the classifier, encoder included.
        gmac: multiply-adds for one image, in 10⁹.
        training_speed: views per second.
        prediction_speed: images per second.
        peak_memory: bytes of a training step.
        fidelity: what it was checked against, see `probmcl.methods.base.Origin`; `own` for a method from outside.
        reference: a key of references.bib, or empty.
        note: a remark on its mAP, see `probmcl.methods.base.Classifier`; empty for most.
        emits_set: whether it decides without thresholds, see there.
    """

    name: str
    head: Head
    method: str | None
    learning_rate: float | None
    weight_decay: float | None
    images_seen: int
    parameters: int
    gmac: float | None
    training_speed: float | None
    prediction_speed: float | None
    peak_memory: int | None
    fidelity: str
    reference: str
    note: str = ""
    emits_set: bool = False

    @property
    def title(self) -> str:
        """The name and the head, which no two classifiers of a comparison share."""
        return self.name if self.head == "frozen" else f"{self.name}, {self.head}"


@dataclass(frozen=True, kw_only=True)
class Result(ComparedClassifier):
    """One classifier of one run, a line of results.jsonl; scores are fractions on the test split unless stated.

    Attributes:
        seed: number of the run.
        validation: mAP on the validation split.
        test: the content of evaluation.json.
        macro_F1: mean F1 of the classes, each at its best threshold on validation; at 0.5 if it emits a set.
        by_embedding: retrieval by the encoder's features.
        by_probabilities: retrieval by predicted probabilities.
        trials: number of learning rates and weight decays that were tried.
        seconds: duration of the training, and of fitting the probe.
        fingerprint: of each part of the protocol, and of `all`.
        predictions: the file of its test scores, relative to `folder`.
        folder: the folder of results.jsonl; not stored.
    """

    seed: int
    validation: float
    test: dict[str, Any]
    macro_F1: float | None  # noqa: N815  # the usual spelling
    by_embedding: dict[str, float | None]
    by_probabilities: dict[str, float | None]
    trials: int
    seconds: float
    fingerprint: dict[str, str]
    predictions: str
    folder: Path = field(default_factory=Path)

    @property
    def test_map(self) -> float:
        """Test mAP; 0 if no class could be scored."""
        return self.test["mAP"] or 0.0


@dataclass(frozen=True, kw_only=True)
class Row(ComparedClassifier):
    """One classifier over all seeds; scores are mean fractions on the test split unless stated.

    Attributes:
        seeds: number of runs.
        best_head: whether this row represents its method: it is better on validation than the method's other row.
        validation: mAP on the validation split, which decides all choices.
        mAP: mean average precision.
        interval: 95 % interval of mAP by the bootstrap over test images or groups; None without the predictions.
        over_seeds: standard deviation of mAP over seeds; None for one seed.
        gain, gain_interval, gain_p: mAP minus that of the frozen probe over the seeds that both have, its interval by
            the paired bootstrap, and its p-value, adjusted by Holm over methods. None for the frozen probe and without
            a common seed; the p-value also without an interval, and if `best_head` is false.
        behind, behind_interval, behind_p: the same for mAP of the method that is best on validation minus this one;
            None also for that method.
        CP, CR, CF1, OP, OR, OF1: precision, recall and F1 at a probability of 0.5, averaged over classes (C) and over
            all decisions (O).
        macro_F1: mean F1 of the classes, as in `Result`.
        jaccard_at_10, retrieval_mAP: mean label overlap with the ten nearest test images by the embedding, and mAP of
            ranking test images by it; an overlap of at least 0.5 is relevant.
        probability_jaccard_at_10, probability_mAP: the same by predicted probabilities.
        seconds: duration of the training, and of fitting the probe.
        fingerprint: of the protocol, 12 hexadecimal digits; only rows that share it are comparable.
    """

    seeds: int
    best_head: bool
    validation: float
    mAP: float  # noqa: N815
    interval: tuple[float, float] | None
    over_seeds: float | None
    gain: float | None
    gain_interval: tuple[float, float] | None
    gain_p: float | None
    behind: float | None
    behind_interval: tuple[float, float] | None
    behind_p: float | None
    CP: float | None
    CR: float | None
    CF1: float | None
    OP: float | None
    OR: float | None
    OF1: float | None
    macro_F1: float | None  # noqa: N815
    jaccard_at_10: float | None
    retrieval_mAP: float | None  # noqa: N815
    probability_jaccard_at_10: float | None
    probability_mAP: float | None  # noqa: N815
    seconds: float
    fingerprint: str


@dataclass(frozen=True)
class Comparison:
    """All rows of a comparison and their common conditions.

    Attributes:
        rows: in any order; `ordered` is the order of the tables.
        seeds: number of runs of each method.
        trials: number of learning rates and weight decays tried for each method; 1 means untuned.
        images_seen: by each method in training, each view counted.
        test_images: number of images that the scores are from.
        groups: number of groups that the bootstrap drew from; None if it drew images.
        classes: number of classes.
        encoder: its name in timm.
        data: the name of the data set.
        left_out: sentences on methods that diverged or could not run.
        draws: of the bootstrap.
    """

    rows: tuple[Row, ...]
    seeds: int
    trials: int
    images_seen: int
    test_images: int
    groups: int | None
    classes: int
    encoder: str
    data: str
    left_out: tuple[str, ...]
    draws: int

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
            raise ValueError(f"a comparison has one frozen probe, and this one has {len(frozen)}")
        return frozen[0]

    @property
    def methods(self) -> tuple[Row, ...]:
        """The better head of each method; the best on validation comes first."""
        return tuple(row for row in self.ordered if row.head != "frozen" and row.best_head)

    @property
    def protocol(self) -> str:
        """The conditions of all rows in one line."""
        drawn = "images" if self.groups is None else f"{self.groups:,} groups"
        return " · ".join(
            (
                f"{self.data}, test split: {self.test_images:,} images, {self.classes:,} classes",
                self.encoder,
                f"{self.images_seen:,} images seen",
                "1 seed" if self.seeds == 1 else f"{self.seeds:,} seeds",
                "untuned" if self.trials == 1 else f"best of {self.trials:,} trials on validation",
                f"intervals: 95 %, {self.draws:,} draws of {drawn}",
            )
        )


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
        if parts := differing_parts(ours, theirs):
            problem = (
                f"has rows that cannot be compared with these: its {' and '.join(parts)} differ from this comparison's "
                f"({theirs.get('all')} and {ours['all']})"
            )
            raise OptionError("add", str(path), problem)
    return [*results, *(other for other in others if other.title not in titles)]


def differing_parts(a: Mapping[str, str], b: Mapping[str, str]) -> list[str]:
    """Return the parts in which the fingerprints of two protocols differ.

    >>> differing_parts({"data": "a", "split": "b", "all": "c"}, {"data": "a", "split": "x", "all": "y"})
    ['split']
    """
    return [part for part in a if part != "all" and a[part] != b.get(part)]
