"""The layouts of docs/your_data.md: labels as expected, `check`, the questions about ambiguous data, and training."""

import csv
import io
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.commands import main
from layouts import LAYOUTS, Layout
from layouts.layout import Expected
from probmcl.cli import app
from probmcl.data.records import SPLITS, Records
from probmcl.errors import Question
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read

PAGE = (Path(__file__).parent.parent / "docs" / "your_data.md").read_text(encoding="utf-8")
TINY = (
    "--epochs 1 --probe-epochs 1 --image-size 32 --weights none --method bce --encoder test_resnet --workers 0"
    " --no-report"
)
TRAINED = ("list-space", "columns-unknown", "test-without-column")
ASKING = [name for name, layout in LAYOUTS.items() if layout.readings]
WITH_COMMAS = [
    name
    for name, layout in LAYOUTS.items()
    if "," in layout.lines[0] and any(path.endswith(".csv") for path in layout.files) and name != "trailing-comma"
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write every layout once; `check` and reading change no file."""
    folders = {}
    for name, layout in LAYOUTS.items():
        folders[name] = tmp_path_factory.mktemp(name)
        layout.write(folders[name])
    return folders


@pytest.fixture
def layout(request: pytest.FixtureRequest, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Return a layout; the working directory is the folder that contains its photos/."""
    monkeypatch.chdir(folders[request.param])
    return LAYOUTS[request.param]


every_layout = pytest.mark.parametrize("layout", LAYOUTS, indirect=True)
every_question = pytest.mark.parametrize("layout", ASKING, indirect=True)


def read_command(command: str, seed: int | None = None) -> Records:
    """Read the data of a command with its options."""
    _, bound, _ = app().parse_args(shlex.split(command)[1:], print_error=False, exit_on_error=False)[:3]
    options = bound.arguments
    return read(bound.args[0], options.get("images"), options.get("read", ReadOptions()), seed=seed)


def photo(path: Path) -> str:
    return path.resolve().relative_to(Path("photos").resolve()).as_posix()


def labels_read(records: Records) -> Expected:
    """Return the labels by path, without images that have no known label, because they are not used."""
    names = records.label_space.names
    marks = np.where(records.known, np.where(records.labels > 0, "+", "-"), "?")
    rows = zip(records.paths, marks, strict=True)
    return {photo(path): dict(zip(names, map(str, row), strict=True)) for path, row in rows if set(row) != {"?"}}


def used(labels: Expected) -> Expected:
    return {path: states for path, states in labels.items() if set(states.values()) != {"?"}}


@every_layout
def test_labels_and_splits_are_read_as_expected(layout: Layout) -> None:
    for command, labels in layout.commands.items():
        records = read_command(command)
        assert labels_read(records) == used(labels)
        splits = dict(zip(map(photo, records.paths), records.split, strict=True))
        assert {path: splits[path] for path in used(labels)} == {
            path: layout.split.get(path, "train") for path in used(labels)
        }


@pytest.mark.parametrize("name", WITH_COMMAS)
def test_the_order_of_rows_and_columns_does_not_matter(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = LAYOUTS[name]
    replace(layout, files={path: reversed_table(path, text) for path, text in layout.files.items()}).write(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command, labels in layout.commands.items():
        assert labels_read(read_command(command)) == used(labels)


def reversed_table(path: str, content: str | bytes) -> str | bytes:
    """Return a CSV table with the rows and columns in reverse order; other files are unchanged."""
    if not path.endswith(".csv") or isinstance(content, bytes):
        return content
    header, *rows = csv.reader(content.splitlines(), skipinitialspace=True)
    file = io.StringIO()
    csv.writer(file).writerows(row[::-1] for row in (header, *rows[::-1]))
    return file.getvalue()


@every_layout
def test_every_split_has_images_with_known_labels(layout: Layout) -> None:
    records = read_command(next(iter(layout.commands)), seed=0)
    for split in SPLITS:
        assert records.known[records.rows(split)].any(), split


@every_layout
def test_check_accepts_the_data_or_asks(layout: Layout, tmp_path: Path) -> None:
    for command in [*layout.commands, *[layout.command] * bool(layout.readings)]:
        arguments = shlex.split(command)[2:]
        answer = main("check", *arguments, "--workers", "0", "--out", tmp_path / "check.json")
        asks = layout.readings and command == layout.command
        assert answer.returncode in ([4] if asks else [0, 3]), answer.stdout + answer.stderr


@every_question
def test_ambiguous_data_ask_and_print_the_commands(layout: Layout) -> None:
    with pytest.raises(Question) as question:
        read_command(layout.command)
    assert len(question.value.readings) == len(layout.readings)
    assert all(len(reading.rows) >= 2 for reading in question.value.readings)
    answer = main(*shlex.split(layout.command)[1:])
    assert answer.returncode != 0
    printed = [line.strip() for line in answer.stderr.splitlines() if line.strip().startswith("probmcl train")]
    assert {command: labels_read(read_command(command)) for command in printed} == {
        command: used(labels) for command, labels in layout.commands.items()
    }


def test_a_question_about_a_list_and_columns_shows_three_rows(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folders["columns-or-list"])
    with pytest.raises(Question) as question:
        read_command(LAYOUTS["columns-or-list"].command)
    assert [len(reading.rows) for reading in question.value.readings] == [3, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    "layout",
    [pytest.param(name, marks=[] if name in TRAINED else pytest.mark.exhaustive) for name in LAYOUTS],
    indirect=True,
)
def test_the_command_trains(layout: Layout, tmp_path: Path) -> None:
    for command in layout.commands:
        answer = main(*shlex.split(f"{command} {TINY}")[1:], "--out", tmp_path / f"run {len(list(tmp_path.iterdir()))}")
        assert answer.returncode == 0, answer.stderr
        if any(path.startswith("test/") for path in layout.unlabeled):
            assert [line for line in answer.stdout.splitlines() if "predict" in line and "photos/test" in line]


def test_the_page_has_a_row_for_every_layout() -> None:
    header = "| what you have | first lines | command |\n|---|---|---|\n"
    rows = PAGE.partition(header)[2].partition("\n\n")[0].splitlines()
    assert rows == [layout.documented for layout in LAYOUTS.values()]


def test_few_layouts_ask() -> None:
    assert len(LAYOUTS) >= 30
    assert len(ASKING) <= 6
