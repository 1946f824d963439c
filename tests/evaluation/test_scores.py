import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.scores import simulated_rows
from probmcl.errors import RunError
from probmcl.evaluation.scores import ScoredRows, read_scores, scores_file, write_scores

PATHS = [Path("photos") / f"Übersicht {number}.jpg" for number in range(20)]


def stored(folder: Path, **change: Any) -> Path:
    """Write scores with groups, then replace or remove (None) some of the arrays."""
    path = scores_file(folder, "val")
    write_scores(path, PATHS, made_rows())
    if change:
        with np.load(path) as file:
            arrays = {key: value for key, value in (dict(file) | change).items() if value is not None}
        np.savez_compressed(path, **arrays)
    return path


def made_rows() -> ScoredRows:
    return replace(simulated_rows(20, 3), group=tuple(f"slide {number % 3}" for number in range(20)))


@pytest.mark.parametrize("grouped", [False, True])
def test_scores_do_not_change_when_they_are_written_and_read(grouped: bool, tmp_path: Path) -> None:
    rows = made_rows() if grouped else replace(made_rows(), group=None)
    path = scores_file(tmp_path, "val")
    assert path == tmp_path / "predictions" / "val.npz"
    write_scores(path, PATHS, rows)
    result = read_scores(path)
    assert result.paths == tuple(map(str, PATHS))
    assert result.rows.group == rows.group
    for name in ("scores", "labels", "known"):
        expected = getattr(rows, name)
        np.testing.assert_array_equal(getattr(result.rows, name), expected)
        assert getattr(result.rows, name).dtype == expected.dtype


def test_labels_are_read_as_float32(tmp_path: Path) -> None:
    path = stored(tmp_path, labels=made_rows().labels.astype(np.bool_))
    assert read_scores(path).rows.labels.dtype == np.float32


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "almost complete": lambda content: content[:-1],
    "other bytes": lambda content: b"0123456789" * 30,
    "flipped bytes": lambda content: content[:200] + bytes(255 - byte for byte in content[200:260]) + content[260:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_named(damage: str, tmp_path: Path) -> None:
    path = stored(tmp_path)
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    with pytest.raises(RunError, match=f"^{re.escape(str(path))} cannot be read"):
        read_scores(path)  # a file that stays open would cause a ResourceWarning


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"test\.npz cannot be read"):
        read_scores(scores_file(tmp_path, "test"))


@pytest.mark.parametrize(
    "change",
    [
        {"paths": np.array(["a.jpg"] * 19)},
        {"scores": np.zeros((19, 3), dtype=np.float32)},
        {"labels": np.zeros((20, 2), dtype=np.float32)},
        {"known": np.ones((21, 3), dtype=np.bool_)},
        {"group": np.array(["slide"] * 5)},
    ],
)
def test_arrays_of_different_lengths_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = stored(tmp_path, **change)
    with pytest.raises(RunError, match=r"val\.npz cannot be read \(its arrays have different lengths\)"):
        read_scores(path)


@pytest.mark.parametrize("name", ["paths", "scores", "labels", "known"])
def test_missing_arrays_are_named(name: str, tmp_path: Path) -> None:
    path = stored(tmp_path, **{name: None})
    with pytest.raises(RunError, match=rf"val\.npz cannot be read \(it has no array '{name}'\)"):
        read_scores(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.1, 1.1])
def test_scores_outside_0_to_1_are_refused(value: float, tmp_path: Path) -> None:
    path = stored(tmp_path, scores=np.full((20, 3), value, dtype=np.float32))
    with pytest.raises(RunError, match="scores are not between 0 and 1"):
        read_scores(path)


def test_known_labels_are_0_or_1(tmp_path: Path) -> None:
    labels, known = np.full((20, 3), 7, dtype=np.float32), np.zeros((20, 3), dtype=np.bool_)
    read_scores(stored(tmp_path, labels=labels, known=known))
    known[0, 0] = True
    path = stored(tmp_path, labels=labels, known=known)
    with pytest.raises(RunError, match="known labels are not 0 and 1"):
        read_scores(path)


def test_files_without_rows_are_refused(tmp_path: Path) -> None:
    with np.load(stored(tmp_path)) as file:
        empty = {key: file[key][:0] for key in file}
    path = stored(tmp_path, **empty)
    with pytest.raises(RunError, match=r"val\.npz cannot be read \(.* the shape \(0,"):
        read_scores(path)


def test_another_number_of_classes_is_refused(tmp_path: Path) -> None:
    path = stored(tmp_path)
    read_scores(path, classes=3)
    with pytest.raises(RunError, match=r"val\.npz cannot be read \(it has 3 classes; the run has 2\)"):
        read_scores(path, classes=2)


def test_an_error_without_a_message_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: Any) -> None:
        raise EOFError

    monkeypatch.setattr(np, "load", fail)
    with pytest.raises(RunError, match=r"cannot be read \(EOFError\)"):
        read_scores(stored(tmp_path))
