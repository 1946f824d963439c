"""Options and calls in messages: right in Python, and respelled on the command line."""

import ast
import shlex
from pathlib import Path

import pytest

import probmcl
from probmcl.cli import app
from probmcl.cli.options import spell_options
from probmcl.errors import ProbmclError, Question, Reading, call, counted, keyword
from probmcl.readers.options import ReadOptions


@pytest.mark.parametrize("value", ["patient", "Patient ID", "", "-", "a\"b'c", "a,b", "ä\n"])
def test_a_text_is_quoted_as_in_python_and_for_the_shell(value: str) -> None:
    message = keyword("group", value)
    assert ast.literal_eval(message.strip("`").partition("=")[2]) == value
    words = shlex.split(spell_options(message))
    _, bound, _ = app().parse_args(["train", "photos", *words], exit_on_error=False, print_error=False)
    assert bound.arguments["read"] == ReadOptions(group=value)


@pytest.mark.parametrize(
    ("message", "spelled"),
    [
        ("`images=FOLDER`", "--images FOLDER"),
        ('`range="LOW,HIGH"`', "--range LOW,HIGH"),
        ("`skip_bad=0.05`", "--skip-bad 0.05"),
        ("`seed=-1`", "--seed -1"),
        ("`raw=True`", "--raw"),
        ("`allow_leaks`", "--allow-leaks"),
        ('`methods=["bce", "asl"]`', "--methods bce asl"),
        ('`split_column=""`', "--split-column ''"),
        ("`data`", "DATA"),
        ('`probmcl.train("my photos")`', "probmcl train 'my photos'"),
        ("`probmcl.train()`", "probmcl train"),
        ("`classes.txt`", "`classes.txt`"),
    ],
)
def test_messages_are_respelled_on_the_command_line(message: str, spelled: str) -> None:
    assert spell_options(f"use {message}, or not") == f"use {spelled}, or not"


@pytest.mark.parametrize("folder", ["runs/photos", "my runs/it's"])
def test_a_call_can_be_copied_in_python_and_in_the_shell(folder: str) -> None:
    message = call("train", {"resume": Path(folder)})
    expression = ast.parse(message.strip("`"), mode="eval").body
    assert isinstance(expression, ast.Call)
    assert ast.literal_eval(expression.keywords[0].value) == folder
    assert shlex.split(spell_options(message)) == ["probmcl", "train", "--resume", folder]


@pytest.mark.usefixtures("without_type_checks")
def test_a_question_shows_the_options_that_answer_it() -> None:
    text = str(Question("which?", [Reading("a list", {"separator": ";", "ignore": "note 1"})]))
    options = text.partition("read=")[2]
    answer = eval(options, {"ReadOptions": ReadOptions})
    assert answer == ReadOptions(separator=";", ignore=("note 1",))


@pytest.mark.usefixtures("without_type_checks")
def test_several_values_may_be_a_string_or_a_list() -> None:
    assert ReadOptions(ignore="site").ignore == ("site",)  # type: ignore[arg-type]
    assert ReadOptions(ignore=["site", "date"]).ignore == ("site", "date")  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [probmcl.train, probmcl.compare])
def test_missing_data_are_an_error_with_a_call(function: object) -> None:
    assert callable(function)
    with pytest.raises(ProbmclError, match=r'`data` is missing: .*`probmcl\.(train|compare)\("photos/labels\.csv"\)`'):
        function()


@pytest.mark.parametrize(
    ("number", "forms", "text"),
    [
        (0, ["image"], "0 images"),
        (1, ["image"], "1 image"),
        (2, ["image"], "2 images"),
        (1234, ["test image"], "1,234 test images"),
        (1, ["class", "classes"], "1 class"),
        (3, ["copy", "copies"], "3 copies"),
        (1, ["more is", "more are"], "1 more is"),
    ],
)
def test_a_number_agrees_with_its_noun(number: int, forms: list[str], text: str) -> None:
    assert counted(number, *forms) == text
