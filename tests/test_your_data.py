"""The examples of docs/your_data.md, run and compared with the page."""

import re
import textwrap
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from probmcl.api import train
from probmcl.cli.evaluate import command as evaluate
from probmcl.cli.options import reading_lines, spell_options
from probmcl.data.records import describe
from probmcl.errors import DataError, OptionError, Question
from probmcl.readers.options import DataChecks, ReadOptions
from probmcl.readers.read import read

PAGE = (Path(__file__).parent.parent / "docs" / "your_data.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"<!-- example: (?P<settings>.*?) -->\n(?P<tables>.*?)```console\n(?P<output>.*?)```", re.DOTALL)
TABLE = re.compile(r"```csv (?P<name>\S+)\n(?P<text>.*?)```", re.DOTALL)
EXAMPLES = {match["settings"].split(";")[0]: match for match in EXAMPLE.finditer(PAGE)}


def write_example(folder: Path, match: re.Match[str]) -> tuple[Path, dict[str, Any]]:
    """Write the files of an example, and return the path to read and the options."""
    settings = dict(part.split(": ", 1) for part in match["settings"].split("; ")[1:])
    for image in settings.pop("images").split():
        name, _, content = image.partition("=")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content or name)
    tables = list(TABLE.finditer(match["tables"]))
    for table in tables:
        (folder / table["name"]).write_text(table["text"], encoding="utf-8")
    data = folder / tables[0]["name"] if len(tables) == 1 else folder
    return data, {key: tuple(value.split(", ")) for key, value in settings.items()}


def command_output(data: Path, options: dict[str, Any]) -> str:
    """Return the description of the data, the question about them or the error message, as `train` prints it."""
    try:
        return spell_options(describe(read(data, options=ReadOptions(**options), seed=None)))
    except Question as question:
        return "\n".join([spell_options(question.problem), *reading_lines(question.readings, ["train", str(data)])])
    except (DataError, OptionError) as error:
        return spell_options(str(error))


def wrapped(line: str) -> list[str]:
    """Return a line in parts that fit the page; further parts of an indented line are indented more."""
    indent = " " * (len(line) - len(line.lstrip()))
    return textwrap.wrap(line, 98, break_on_hyphens=False, subsequent_indent=indent and f"{indent}  ")


@pytest.mark.parametrize("name", EXAMPLES)
def test_output_matches_the_page(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    data, options = write_example(folder, EXAMPLES[name])
    output = command_output(data, options).replace(f"{folder}/", "").replace(str(folder), "data")
    lines = [part for line in output.splitlines() for part in wrapped(line)]
    assert "\n".join(lines) + "\n" == EXAMPLES[name]["output"]


def test_every_console_block_is_an_example() -> None:
    assert len(EXAMPLES) == PAGE.count("```console") == PAGE.count("<!-- example") == 11


def test_options_on_the_page_exist() -> None:
    mentioned = {option.replace("-", "_") for option in re.findall(r"--([a-z][a-z-]+)", PAGE)}
    existing = {name for command in (train, evaluate) for name in signature(command).parameters}
    existing |= {field.name for options in (ReadOptions, DataChecks) for field in fields(options)}
    assert mentioned - existing == set()
