"""Options for reading and checking data, and the source that a run folder stores."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from probmcl.errors import OptionError
from probmcl.readers.options import DataChecks, DataSource, ReadOptions, SkippedImage
from probmcl.runtime.conversion import convert


@pytest.mark.parametrize(
    ("checks", "message"),
    [
        ({"folds": 1, "fold": 1}, "`folds=1` must be at least 2"),
        ({"folds": 5}, "`folds=5` needs `fold`"),
        ({"folds": 5, "fold": 6}, "`folds=5` needs `fold`"),
        ({"fold": 2}, "`fold=2` needs `folds=K`"),
        ({"folds": 5, "fold": 1, "split_file": Path(__file__)}, "cannot be combined with `split_file`"),
        ({"skip_bad": 5.0}, "a share between 0 and 1"),
        ({"range": "9"}, '`range="9"`'),
        ({"split_file": Path("nowhere.csv")}, '`split_file="nowhere.csv"` does not exist'),
    ],
)
def test_invalid_checks_are_refused(checks: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DataChecks(**checks)


def test_source_has_absolute_paths_and_round_trips_through_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ReadOptions(group="patient", blank=("negative", "cat=unknown"), hierarchy=Path("tree.csv"))
    source = DataSource.of("labels.csv", "photos", options)
    assert (source.data, source.images) == (tmp_path / "labels.csv", tmp_path / "photos")
    assert source.options.hierarchy == tmp_path / "tree.csv"
    source = dataclasses.replace(source, skipped=(SkippedImage("7.jpg", "the file is empty"),), leaks_allowed=("a",))
    assert convert(json.loads(json.dumps(msgspec.to_builtins(source, enc_hook=str))), DataSource) == source


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"images": "photos"}, "missing key 'data'"),
        ({"data": "labels.csv", "options": {"blank": "negative"}}, "options.blank: expected array, got str"),
        ({"data": "labels.csv", "reader": "new"}, "unknown key 'reader'"),
        ({"data": "labels.csv", "options": {"group_column": "patient"}}, "options: unknown key 'group_column'"),
        ("labels.csv", "expected object, got str"),
    ],
    ids=str,
)
def test_invalid_source_is_refused(content: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(content, DataSource)


def test_only_options_that_are_set_change_a_source() -> None:
    source = DataSource(Path("labels.csv"), Path("photos"), ReadOptions(group="patient", none_label="none"))
    changed = source.with_changes(None, ReadOptions(none_label="", ignore=("age",)))
    assert changed.images == Path("photos")
    assert changed.options == ReadOptions(group="patient", none_label="", ignore=("age",))


@pytest.mark.usefixtures("without_type_checks")
def test_split_file_may_be_a_string(tmp_path: Path) -> None:
    (tmp_path / "split.csv").touch()
    assert DataChecks(split_file=str(tmp_path / "split.csv")).split_file == tmp_path / "split.csv"  # type: ignore[arg-type]
