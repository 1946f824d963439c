"""Options that take several values, and errors about their place on the command line."""

from pathlib import Path
from typing import Any

import pytest
from cyclopts import CycloptsError

import probmcl
from helpers.commands import main
from probmcl.cli import app
from probmcl.errors import SettingsError
from probmcl.launch.comparison import method_names


def parsed(*words: str) -> dict[str, Any]:
    """Return the options of a command by name, as the command line parses them."""
    _, bound, _ = app().parse_args(list(words), exit_on_error=False, print_error=False)
    return dict(bound.arguments)


@pytest.mark.parametrize(
    "words",
    [
        ["--methods", "bce", "asl"],
        ["--methods", "bce,asl"],
        ["--methods", "bce,", "asl"],
        ["--methods", "bce, asl"],
        ["--methods", "bce", "--methods", "asl"],
        ["--methods=bce,asl"],
    ],
)
def test_methods_are_separated_by_spaces_or_commas(words: list[str]) -> None:
    options = parsed("compare", "photos", *words, "--seeds", "2")
    assert (options["data"], options["methods"], options["seeds"]) == (Path("photos"), ("bce", "asl"), 2)


@pytest.mark.parametrize("option", ["--ignore", "--unknown-label", "--blank", "--minus-one"])
@pytest.mark.parametrize("command", ["check", "train", "compare", "evaluate"])
def test_names_are_separated_by_spaces_and_may_contain_commas(command: str, option: str) -> None:
    values = ("a, b=unknown", "c=unknown", "d=unknown")
    read = parsed(command, "photos", option, *values[:2], option, values[2])["read"]
    assert getattr(read, option.removeprefix("--").replace("-", "_")) == values


def test_paths_are_separated_by_spaces_and_may_contain_commas() -> None:
    assert list(parsed("compare", "photos", "--add", "a,b", "c", "--add", "d")["add"]) == [
        Path("a,b"),
        *map(Path, "cd"),
    ]


@pytest.mark.parametrize("words", [["9", "80"], ["9,80"], ["9,", "80"], ["9", "--classes", "80"]])
def test_numbers_are_separated_by_spaces_or_commas(words: list[str]) -> None:
    options = parsed("cost", "bce", "csra", "--classes", *words, "--encoders", "resnet18", "resnet50,resnet101")
    assert (options["methods"], options["classes"]) == (("bce", "csra"), (9, 80))
    assert options["encoders"] == ("resnet18", "resnet50", "resnet101")


@pytest.mark.parametrize("words", ["compare photos --methods", "train photos --ignore", "cost --classes"])
def test_an_option_without_a_value_is_an_error(words: str) -> None:
    with pytest.raises(CycloptsError, match="at least 1"):
        parsed(*words.split())


@pytest.mark.parametrize("words", ["compare --methods bce asl photos", "train --ignore site photos"])
def test_data_after_several_values_are_an_error_that_names_the_option(words: str, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    answer = main(*words.split(), cwd=tmp_path)
    assert answer.returncode == 1
    assert f"photos was read as a value of {words.split()[1]}" in answer.stderr
    assert "put DATA first" in answer.stderr
    assert parsed(*words.split()[:-1], "--", "photos")["data"] == Path("photos")


def test_missing_data_of_check_are_an_error_with_a_hint(tmp_path: Path) -> None:
    answer = main("check", "--ignore", "site", "photos", cwd=tmp_path)
    assert answer.returncode != 0
    assert "DATA requires an argument" in answer.stderr
    assert "DATA first" in " ".join(answer.stderr.replace("│", " ").split())


def test_a_method_after_the_encoders_is_an_error(tmp_path: Path) -> None:
    answer = main("cost", "--encoders", "resnet18", "bce", cwd=tmp_path)
    assert answer.returncode == 1
    assert "bce is a method; put methods before the options" in answer.stderr


@pytest.mark.parametrize("methods", ["bce,asl", "bce, asl", ["bce", "asl"], ("bce", "asl")])
def test_compare_accepts_methods_as_a_string_or_a_list(methods: Any) -> None:
    assert method_names(methods) == ["bce", "asl"]


def test_a_method_in_a_list_may_contain_a_comma() -> None:
    assert method_names(["a,b.py:loss"]) == ["a,b.py:loss"]


@pytest.mark.parametrize("methods", ["", []])
def test_compare_needs_a_method(methods: Any, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no methods to compare"):
        probmcl.compare(tmp_path, methods=methods, weights="none", encoder="test_resnet")
