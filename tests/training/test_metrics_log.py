import csv
import json
from pathlib import Path

import pytest
import torch

from probmcl.errors import RunWarning
from probmcl.training import MetricsLog, StepEvent

HEALTHY = {"similarity_positive": 0.8, "similarity_negative": 0.3, "effective_components": 5.0}
COLLAPSED = {"similarity_positive": 1.0, "similarity_negative": 0.999, "effective_components": 1.0}


def event(step: int, terms: dict[str, float] | None = None, *, loss: float = 1.0, steps: int = 20) -> StepEvent:
    return StepEvent(
        step, steps, 0, 32, torch.tensor(loss), {key: torch.tensor(value) for key, value in (terms or {}).items()}
    )


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_rows_are_means_and_the_last_steps_are_written(tmp_path: Path) -> None:
    stage = MetricsLog(tmp_path / "metrics.jsonl", every=4).stage("contrast")
    for step in range(1, 11):
        stage(event(step, loss=float(step), steps=10))
    written = rows(tmp_path)
    assert [row["step"] for row in written] == [4, 8, 10]
    assert [row["loss"] for row in written] == [2.5, 6.5, 9.5]
    assert all(row["stage"] == "contrast" for row in written)


def test_csv_has_the_columns_of_all_stages(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", every=1)
    log.stage("one")(event(1, {"a": 1.0}))
    log.stage("two")(event(1, {"b": 2.0}))
    log.close()
    with (tmp_path / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["stage"], row["a"], row["b"]) for row in table] == [("one", "1.0", ""), ("two", "", "2.0")]


def test_collapse_is_reported_once_after_half_of_the_stage(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", every=1)
    stage = log.stage("contrast")
    for step in range(1, 11):
        stage(event(step, COLLAPSED))
    assert log.warnings == []
    for step in range(11, 21):
        stage(event(step, COLLAPSED))
    assert len(log.warnings) == 1
    assert "collapsed" in log.warnings[0].message
    assert "0.999" in log.warnings[0].message


def test_healthy_and_other_runs_have_no_warning(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", every=1)
    for terms in (HEALTHY, {}):
        stage = log.stage("stage")
        for step in range(1, 21):
            stage(event(step, terms))
    assert log.warnings == []


def test_warnings_reach_the_callback_and_nan_is_left_out(tmp_path: Path) -> None:
    warnings: list[RunWarning] = []
    stage = MetricsLog(tmp_path / "metrics.jsonl", every=2, on_warning=warnings.append).stage("contrast")
    stage(event(11, {**COLLAPSED, "similarity_negative": float("nan")}))
    stage(event(12, COLLAPSED))
    assert [warning.kind for warning in warnings] == ["collapse"]
    stage(event(13, {"lonely": float("nan")}))
    stage(event(14, {"lonely": float("nan")}))
    first, second = rows(tmp_path)
    assert first["similarity_negative"] == pytest.approx(0.999)
    assert second["lonely"] is None


def test_truncated_row_is_removed_on_resume(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl", every=1)
    for step in (1, 2):
        log.stage("one")(event(step))
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + '{"stage": "one", "st')
    again = MetricsLog(tmp_path / "metrics.jsonl", every=1).stage("one")
    again(event(2))
    again(event(3))
    assert [row["step"] for row in rows(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("killed", range(1, 20))
def test_a_restored_stage_has_the_rows_and_warnings_of_an_uninterrupted_one(tmp_path: Path, killed: int) -> None:
    def events() -> list[StepEvent]:
        changing = [COLLAPSED | {"lonely": float("nan")} if step > 12 else HEALTHY for step in range(1, 21)]
        return [event(step, terms, loss=0.1 * step) for step, terms in enumerate(changing, start=1)]

    full = MetricsLog(tmp_path / "full.jsonl", every=3)
    stage = full.stage("contrast")
    for one in events():
        stage(one)
    path = tmp_path / "metrics.jsonl"
    before = MetricsLog(path, every=3).stage("contrast")
    for one in events()[:killed]:
        before(one)
    tensors, header = before.state()
    for one in events()[killed : killed + 4]:  # after the checkpoint
        before(one)
    path.write_text(path.read_text()[:-7])  # a damaged log is also restored
    resumed = MetricsLog(path, every=3)
    stage = resumed.stage("contrast")
    stage.restore(tensors, json.loads(json.dumps(header, allow_nan=False)))
    for one in events()[killed:]:
        stage(one)
    assert without_speed(resumed.rows()) == without_speed(full.rows())
    assert resumed.warnings == full.warnings != []


def without_speed(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [{key: value for key, value in row.items() if key != "images_per_second"} for row in rows]


def test_skipped_batches_are_not_averaged(tmp_path: Path) -> None:
    stage = MetricsLog(tmp_path / "metrics.jsonl", every=2).stage("one")
    stage(event(1, loss=float("inf"))._replace(skipped=torch.tensor([3, 4])))
    stage(event(2, loss=2.0))
    assert [(row["step"], row["loss"]) for row in rows(tmp_path)] == [(2, 2.0)]
