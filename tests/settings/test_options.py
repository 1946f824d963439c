"""Contracts over all declared options: their texts, settings, origins, recipes, and place on the command line."""

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from probmcl.calibration.maps import Kind
from probmcl.cli import app
from probmcl.launch.run import refuse_with_resume, run_settings
from probmcl.settings import CONFIG_FILE, EncoderSettings, ProbeSettings, Settings, make_settings, read_settings
from probmcl.settings.declaration import Argument, Declared, Options, declared_options, options_of
from probmcl.settings.model_options import (
    CalibrateOptions,
    EvaluateOptions,
    ExplainOptions,
    ReportOptions,
    StreamOptions,
)
from probmcl.settings.options import CheckOptions, CompareOptions, StoredSettings, TrainOptions
from probmcl.store.run_folder import RunFolder
from probmcl.training.optimizer import Training

COMMANDS: dict[str, type[Options]] = {
    "train": TrainOptions,
    "compare": CompareOptions,
    "check": CheckOptions,
    "predict": StreamOptions,
    "explain": ExplainOptions,
    "evaluate": EvaluateOptions,
    "calibrate": CalibrateOptions,
    "report": ReportOptions,
}
ONLY_IN_PYTHON = {("report", "runs")}  # RUN and OTHERS
SPELLING = {"settings": "--set"}
TABLES: dict[str, type[Any]] = {"training": Training, "encoder": EncoderSettings, "probe": ProbeSettings}

STORED = list(declared_options(StoredSettings))
TEXTS = {"thresholds": "f1"}
"""Valid values of options whose type is text."""

every_option = pytest.mark.parametrize(
    ("command", "option"),
    [
        pytest.param(command, option, id=f"{command}-{option.name}")
        for command, declaration in COMMANDS.items()
        for option in declared_options(declaration)
    ],
)
each_stored = pytest.mark.parametrize("option", STORED, ids=lambda option: option.name)


def other_value(option: Declared) -> Any:
    """Return a valid value of an option that is not its default."""
    if typing.get_origin(option.type) is typing.Literal:
        return next(value for value in get_args(option.type) if value != option.default)
    if isinstance(option.default, bool):
        return not option.default
    return option.default + 1 if isinstance(option.default, int | float) else TEXTS.get(option.name, "other")


def settings_of(given: dict[str, Any]) -> Settings:
    return run_settings(options_of(TrainOptions, given))


@every_option
def test_a_help_text_is_one_phrase(command: str, option: Declared) -> None:
    text = option.option.help
    assert text
    assert not text.endswith(".")
    assert "  " not in text


@every_option
def test_the_command_has_every_option_of_its_function(command: str, option: Declared) -> None:
    if (
        option.option.only_in_python
        or (command, option.name) in ONLY_IN_PYTHON
        or dataclasses.is_dataclass(option.type)
    ):
        return
    arguments = app()[command].assemble_argument_collection()
    names = {name for argument in arguments for name in argument.names}
    spelled = SPELLING.get(option.name, f"--{option.name.replace('_', '-')}")
    assert (option.name.upper() if isinstance(option.option, Argument) else spelled) in names


@every_option
def test_what_an_option_sets_is_a_setting(command: str, option: Declared) -> None:
    path = option.option.sets
    if path in ("", "preset", "settings"):  # the last two are keys of a recipe
        return
    table, _, key = path.rpartition(".")
    assert key in {field.name for field in dataclasses.fields(TABLES[table] if table else Settings)}


@each_stored
def test_a_stored_option_is_a_setting_with_an_origin(option: Declared) -> None:
    value = other_value(option)
    settings = settings_of({option.name: value})
    assert (getattr(settings, option.name), settings.origins[option.name]) == (value, "user")
    assert settings_of({}).origins[option.name] == "default"
    assert getattr(settings_of({}), option.name) == option.default != value


@each_stored
def test_a_stored_option_can_be_set_by_a_recipe_that_options_override(option: Declared, tmp_path: Path) -> None:
    value = other_value(option)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(f"{option.name} = {msgspec.json.encode(value).decode()}\n")
    settings = settings_of({"recipe": str(recipe)})
    assert (getattr(settings, option.name), settings.origins[option.name]) == (value, "recipe")
    overridden = settings_of({"recipe": str(recipe), option.name: option.default})
    assert (getattr(overridden, option.name), overridden.origins[option.name]) == (option.default, "user")


@each_stored
def test_a_stored_option_is_in_the_file_of_the_run(option: Declared, tmp_path: Path) -> None:
    settings = make_settings({option.name: other_value(option)})
    run = RunFolder(tmp_path)
    run.write(CONFIG_FILE, settings)
    config = json.loads((tmp_path / CONFIG_FILE.name).read_text())
    assert config[option.name] == other_value(option)
    assert read_settings(run) == settings


@pytest.mark.parametrize("declaration", [TrainOptions, CompareOptions])
def test_exactly_the_marked_options_can_be_combined_with_resume(declaration: type[Any]) -> None:
    refused = set()
    for option in declared_options(declaration):
        try:
            refuse_with_resume(options_of(declaration, {"resume": "runs/x", option.name: option.default}))
        except ValueError:
            refused.add(option.name)
    marked = {option.name for option in declared_options(declaration) if option.option.with_resume == "refused"}
    assert refused == marked - {"read", "checks"}  # their defaults are not options that were given


def test_the_kinds_of_calibration_are_those_of_the_package() -> None:
    types = [typing.get_type_hints(declaration)["calibration"] for declaration in (StoredSettings, CalibrateOptions)]
    kinds = set(get_args(Kind))
    assert set(get_args(types[0])) == kinds
    assert {kind for kind in kinds if kind in repr(types[1])} == kinds
