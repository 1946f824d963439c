"""The content of evaluation.json and retrieval.json: how well a classifier does on one split of the data."""

import copy
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from helpers.scores import simulated_rows
from probmcl.console import Console
from probmcl.errors import RunError
from probmcl.evaluation.evaluate import EvaluatedModel
from probmcl.evaluation.intervals import EvaluationOptions, evaluate_rows
from probmcl.runtime.conversion import convert
from probmcl.runtime.files import convert_file, json_bytes
from probmcl.store.evaluation import Evaluation, KeyedStruct, ModelEvaluation, Retrieval, SplitMetrics, UnscoredImage

NAMES = ["cat", "dog", "fox"]
OPTIONAL = {"ap_changes", "levels", "note", "abstention", "by"}


class Inner(KeyedStruct, frozen=True, kw_only=True):
    half: float = msgspec.field(name="0.5")


class Outer(KeyedStruct, frozen=True, kw_only=True):
    mean: float | None
    at: Inner
    by: dict[str, Inner] | None = None
    note: str | None = None


OUTER = Outer(mean=None, at=Inner(half=0.25))


def test_values_can_be_read_by_their_keys() -> None:
    assert OUTER["at"]["0.5"] == OUTER.at.half == 0.25
    assert OUTER["mean"] is None
    assert dict(OUTER) == {"mean": None, "at": Inner(half=0.25)}


def test_a_value_that_does_not_apply_has_no_key() -> None:
    assert OUTER.keys() == list(OUTER) == ["mean", "at"]
    assert "mean" in OUTER
    assert "note" not in OUTER
    noted = msgspec.structs.replace(OUTER, by={"north": Inner(half=0.5)}, note="mind this")
    assert noted.keys() == ["mean", "at", "by", "note"]
    assert noted["by"]["north"]["0.5"] == 0.5


@pytest.mark.parametrize("key", ["note", "half", "elsewhere"])
def test_an_unknown_key_and_that_of_a_missing_value_are_errors(key: str) -> None:
    with pytest.raises(KeyError, match=key):
        OUTER[key]


def test_the_name_of_an_attribute_with_another_key_is_not_a_key() -> None:
    with pytest.raises(KeyError):
        OUTER.at["half"]


def test_structs_are_written_as_objects_and_read_again() -> None:
    content = json.loads(json_bytes(OUTER))
    assert content == OUTER.to_dict() == {"mean": None, "at": {"0.5": 0.25}}
    assert list(content) == OUTER.keys()
    assert convert(content, Outer) == OUTER


def test_structs_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        OUTER.mean = 0.5  # type: ignore[misc]


def full_evaluation() -> ModelEvaluation:
    """Return an evaluation with all optional parts."""
    rows = simulated_rows(40, 3)
    ranked_differently = rows.scores.astype(np.float64).round(1)
    rows = replace(rows, scores=ranked_differently, raw=rows.scores, group=tuple("abcdefgh" * 5))
    limits = (np.full(3, 0.2), np.full(3, 0.6))
    model = EvaluatedModel(NAMES, [1, 2, 2], "a note", thresholds=np.full(3, 0.4), limits=limits)
    options = EvaluationOptions(by="site", draws=20)
    evaluation = evaluate_rows(rows, model, options, ["north", "south"] * 20, Console.quiet())
    return ModelEvaluation(
        **msgspec.structs.asdict(evaluation),
        classes_only_in_model=["emu"],
        classes_only_in_data=[],
        renamed={"puppy": "dog"},
        trained_on=0,
        calibrated_on=None,
        thresholds="balanced",
        not_promised=[],
        skipped=[UnscoredImage(path="a.jpg", reason="the file is empty")],
    )


@pytest.fixture(scope="module")
def content() -> dict[str, Any]:
    return full_evaluation().to_dict()


def paths_of_numbers(content: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each number."""
    if isinstance(content, dict | list):
        for key, value in content.items() if isinstance(content, dict) else enumerate(content):
            yield from ((key, *path) for path in paths_of_numbers(value))
    elif isinstance(content, int | float):
        yield ()


def changed(content: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    content = copy.deepcopy(content)
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return content


def test_content_is_read_as_it_was_written(content: dict[str, Any]) -> None:
    assert content.keys() >= OPTIONAL
    assert convert(json.loads(json.dumps(content, allow_nan=False)), ModelEvaluation) == full_evaluation()


def test_keys_of_an_evaluation_come_first_in_that_of_a_model(content: dict[str, Any]) -> None:
    metrics, evaluation = (kind.__struct_encode_fields__ for kind in (SplitMetrics, Evaluation))
    assert list(content)[: len(metrics)] == list(metrics)
    assert list(content)[: len(evaluation)] == list(evaluation)
    assert list(content["at"]) == ["0.5", "0.8", "chosen"]


def test_parts_that_do_not_apply_are_left_out() -> None:
    evaluation = full_evaluation()
    plain = msgspec.structs.replace(evaluation, **dict.fromkeys(OPTIONAL))
    assert set(evaluation) - set(plain) == OPTIONAL
    assert convert(plain.to_dict(), ModelEvaluation) == plain


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**1000, "x"], ids=str)
def test_every_number_must_be_a_number_in_its_range(content: dict[str, Any], value: Any) -> None:
    paths = list(paths_of_numbers(content))
    assert len(paths) > 200
    unbounded = {"log_loss", "base_rate_log_loss", "labels_predicted", "labels_true"}
    for path in paths:
        if value == 2.0**1000 and path[-1] in unbounded:
            continue
        with pytest.raises(ValueError, match="expected "):
            convert(changed(content, path, value), ModelEvaluation)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        (("mAP",), "x", "mAP: expected float | null, got str"),
        (("mAP_interval",), [0.5], "mAP_interval: expected array of length >= 2"),
        (("at", "0.5", "CF1"), 2, "at.0.5.CF1: expected float <= 1.0"),
        (("at",), {}, "at: missing key '0.5'"),
        (("images",), 0, "images: expected int >= 1"),
        (("risk_coverage", "risk"), [0.5], "risk_coverage: coverage and risk have different lengths"),
        (("resampled",), "rows", "resampled: invalid value 'rows'"),
        (("evil",), 1, "unknown key 'evil'"),
    ],
)
def test_errors_name_the_file_and_the_place_in_it(
    content: dict[str, Any], path: tuple[str, ...], value: Any, problem: str
) -> None:
    with pytest.raises(RunError) as caught:
        convert_file(changed(content, path, value), ModelEvaluation, Path("evaluation.json"))
    assert str(caught.value) == f"evaluation.json: {problem}; the file is damaged or was edited"


def test_content_of_the_retrieval_of_a_probe() -> None:
    assert convert({"jaccard_at_10": None, "mAP": 0.5}, Retrieval).mAP == 0.5
    with pytest.raises(ValueError, match="missing key"):
        convert({"mAP": 0.5}, Retrieval)
