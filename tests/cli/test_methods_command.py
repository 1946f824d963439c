"""`probmcl methods`: every setting of every method is described and shown."""

import dataclasses
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal, Optional

import pytest

from probmcl.cli import methods
from probmcl.methods import METHODS, find_method

RUN = "import sys; sys.argv[0] = 'probmcl'; from probmcl.cli import main; main()"


def probmcl(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=False)


def printed(capsys: pytest.CaptureFixture[str], name: str | None = None) -> str:
    """Return the output of the command without line breaks."""
    methods.command(name)
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_of_every_method_is_described(name: str) -> None:
    config = type(find_method(name).presets["default"])
    meanings = methods.meanings(config)
    assert list(meanings) == [field.name for field in dataclasses.fields(config)]
    assert all(meanings.values())


@pytest.mark.parametrize("name", METHODS)
def test_settings_are_shown_with_value_meaning_and_choices(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, name)
    assert text.startswith(f"{name}: ")
    for setting in methods.settings(find_method(name)):
        assert f"{setting.name} = {setting.values['default']}" in text
        assert f"{setting.meaning} values: {setting.choices}" in text


def test_a_preset_is_shown_only_for_values_that_differ(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "probmcl")
    assert "hidden = [] (paper: [2048, 128])" in text
    assert "mean_size = 16 (paper: none)" in text
    assert re.search(r"floor = variance whether", text)


def test_a_method_without_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no settings" in printed(capsys, "bce")


@pytest.mark.parametrize("width", [80, 120])
def test_the_overview_lists_kind_views_and_presets_of_every_method(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    methods.command()
    lines = capsys.readouterr().out.splitlines()[:-1]
    assert max(map(len, lines)) <= width
    rows = dict(line.split(": ", 1) for line in lines if not line.startswith(" "))
    assert list(rows) == list(METHODS)
    assert rows["bce"] == "classifier, 1 view"
    assert rows["csra"] == "classifier, 1 view; presets: default, paper"
    assert rows["supcon"] == "contrastive, 2 views"
    assert rows["probmcl"].startswith("contrastive, 2 views; presets: default, paper")
    assert len(lines) <= 3 * len(METHODS)  # a description takes one or two lines


def test_an_unknown_name_suggests_a_similar_one() -> None:
    answer = probmcl("methods", "probmlc")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "did you mean 'probmcl'?" in answer.stderr
    assert "Traceback" not in answer.stderr


def test_a_method_can_be_given_by_its_import_path(capsys: pytest.CaptureFixture[str]) -> None:
    assert "gamma_negative = 4.0" in printed(capsys, "probmcl.methods.asl:ASL")


@pytest.mark.parametrize(
    ("hint", "description"),
    [
        (Literal["a", "b"], "a, b"),
        (Literal["sum"] | float, "sum, number"),
        (Optional[int], "integer, none"),  # noqa: UP045  # methods outside the package may use it
        (tuple[float, ...], "[number, …]"),
        (bool, "true, false"),
        (str, "text"),
        (complex, "complex"),
    ],
)
def test_types_are_described(hint: object, description: str) -> None:
    assert methods.choices(hint) == description


@dataclass(frozen=True)
class Described:
    """Settings.

    Attributes:
        one: continues
            in the next line: with a colon.
        two: `x: y`, or 2.

    Reference: none.
        three: is not an attribute.
    """

    one: int = 1
    two: int = 2


def test_meanings_are_read_from_the_attributes_section() -> None:
    assert methods.meanings(Described) == {"one": "continues in the next line: with a colon.", "two": "`x: y`, or 2."}


def test_a_class_without_a_docstring_has_no_meanings() -> None:
    assert methods.meanings(type("Bare", (), {})) == {}
