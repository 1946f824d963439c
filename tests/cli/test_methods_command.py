"""`probmcl methods`: every setting of every method has a meaning, and all of it is shown."""

import dataclasses
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal, Optional

import pytest

from probmcl.cli import methods as command
from probmcl.methods import METHODS, find_method

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


def probmcl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=False)


def said(capsys: pytest.CaptureFixture[str], name: str | None = None) -> str:
    """What the command prints, in one line."""
    command.methods(name)
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_has_a_meaning_and_nothing_else_has(name: str) -> None:
    config = type(find_method(name).presets["default"])
    meanings = command.meanings(config)
    assert list(meanings) == [field.name for field in dataclasses.fields(config)]
    assert all(meanings.values())


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_shown_with_each_setting_its_value_and_its_meaning(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = said(capsys, name)
    assert text.startswith(f"{name}: ")
    for setting in command.settings(find_method(name)):
        assert f"{setting.name} = {setting.values['default']}" in text
        assert f"{setting.meaning} → {setting.choices}" in text


def test_another_preset_is_shown_where_it_differs_and_only_there(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "probmcl")
    assert "hidden = [] (paper: [2048, 128])" in text
    assert "mean_size = 16 (paper: none)" in text
    assert re.search(r"floor = variance whether", text)


def test_a_method_without_settings_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no settings of its own" in said(capsys, "bce")


@pytest.mark.parametrize("width", [80, 120])
def test_the_overview_names_every_method_its_kind_its_views_and_its_presets(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    command.methods()
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= width
    rows = dict(line.split(": ", 1) for line in lines if not line.startswith(" "))
    assert list(rows) == list(METHODS)
    assert rows["bce"] == "classifier, 1 view"
    assert rows["csra"] == "classifier, 1 view; presets: default, paper"
    assert rows["supcon"] == "contrastive, 2 views"
    assert rows["probmcl"].startswith("contrastive, 2 views; presets: default, paper")
    assert len(lines) <= 3 * len(METHODS)  # a description takes one or two lines


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    answer = probmcl("methods", "probmlc")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "probmcl: no method 'probmlc'; did you mean 'probmcl'?\n"


def test_a_method_from_elsewhere_is_shown_by_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gamma_negative = 4.0" in said(capsys, "probmcl.methods.asl:ASL")


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Literal["a", "b"], "a, b"),
        (Literal["sum"] | float, "sum, a number"),
        (Optional[int], "a whole number, none"),  # noqa: UP045  # the old spelling, which others use
        (tuple[float, ...], "a list, each a number"),
        (bool, "true, false"),
        (str, "a text"),
        (complex, "complex"),
    ],
)
def test_a_type_is_said_in_words(hint: object, words: str) -> None:
    assert command.choices(hint) == words


@dataclass(frozen=True)
class Described:
    """Settings.

    Attributes:
        one: goes on
            in the next line: with a colon.
        two: `x: y`, or 2.

    Reference: nothing.
        three: is no attribute.
    """

    one: int = 1
    two: int = 2


def test_meanings_end_where_their_section_ends_and_keep_long_lines_together() -> None:
    assert command.meanings(Described) == {"one": "goes on in the next line: with a colon.", "two": "`x: y`, or 2."}


def test_a_class_that_describes_nothing_has_no_meanings() -> None:
    assert command.meanings(type("Bare", (), {})) == {}
