"""Every example of docs/your_data.md prints what the page shows."""

import re
from dataclasses import fields
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from probmcl.api import train
from probmcl.cli import spell_options
from probmcl.cli.evaluate import evaluate
from probmcl.data.options import DataChecks, ReadOptions
from probmcl.data.read import read
from probmcl.data.records import describe
from probmcl.errors import DataError, OptionError

PAGE = (Path(__file__).parent.parent / "docs" / "your_data.md").read_text(encoding="utf-8")
EXAMPLE = re.compile(r"<!-- example: (?P<about>.*?) -->\n(?P<tables>.*?)```console\n(?P<shown>.*?)```", re.DOTALL)
TABLE = re.compile(r"```csv (?P<name>\S+)\n(?P<text>.*?)```", re.DOTALL)
EXAMPLES = {match["about"].split(";")[0]: match for match in EXAMPLE.finditer(PAGE)}


def written(folder: Path, match: re.Match[str]) -> tuple[Path, dict[str, Any]]:
    """The files of an example: what is to be read, and the keywords of its flags."""
    about = dict(part.split(": ", 1) for part in match["about"].split("; ")[1:])
    for image in about.pop("images").split():
        name, _, content = image.partition("=")
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content or name)
    tables = list(TABLE.finditer(match["tables"]))
    for table in tables:
        (folder / table["name"]).write_text(table["text"], encoding="utf-8")
    data = folder / tables[0]["name"] if len(tables) == 1 else folder
    return data, {key: tuple(value.split(", ")) for key, value in about.items()}


def printed(data: Path, flags: dict[str, Any]) -> str:
    """What the command line prints of the data, or the error that it ends with."""
    try:
        return spell_options(describe(read(data, options=ReadOptions(**flags), seed=None)))
    except (DataError, OptionError) as error:
        return spell_options(str(error))


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_prints_what_the_page_shows(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    data, flags = written(folder, EXAMPLES[name])
    assert printed(data, flags).replace(f"{folder}/", "").replace(str(folder), "data") + "\n" == EXAMPLES[name]["shown"]


def test_no_example_is_left_out() -> None:
    assert len(EXAMPLES) == PAGE.count("```console") == PAGE.count("<!-- example") == 10


def test_every_flag_that_the_page_names_is_one_of_a_command() -> None:
    named = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]+)", PAGE)}
    flags = {name for command in (train, evaluate) for name in signature(command).parameters}
    flags |= {field.name for options in (ReadOptions, DataChecks) for field in fields(options)}
    assert named - flags == set()
