"""Functions and methods whose keywords are declared options."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import probmcl
from probmcl import Model
from probmcl.report.page import write_report
from probmcl.settings.declaration import Options, declared_options, keywords_of
from probmcl.settings.model_options import (
    CalibrateOptions,
    EmbedOptions,
    EvaluateOptions,
    ExplainOptions,
    PredictOptions,
    ReportOptions,
    StreamOptions,
)
from probmcl.settings.options import CheckOptions, CompareOptions, TrainOptions

FUNCTIONS: dict[Callable[..., Any], type[Options]] = {
    probmcl.train: TrainOptions,
    probmcl.compare: CompareOptions,
    probmcl.check: CheckOptions,
    Model.predict: PredictOptions,
    Model.stream: StreamOptions,
    Model.embed: EmbedOptions,
    Model.explain: ExplainOptions,
    Model.evaluate: EvaluateOptions,
    Model.calibrate: CalibrateOptions,
    write_report: ReportOptions,
}
each_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)


@keywords_of(TrainOptions)
def given(options: TrainOptions) -> dict[str, Any]:
    return dict(options.given)


@each_function
def test_the_signature_has_every_option(function: Callable[..., Any]) -> None:
    parameters = inspect.signature(function).parameters
    assert [name for name in parameters if name != "self"] == [o.name for o in declared_options(FUNCTIONS[function])]
    assert function.__annotations__.keys() - {"return"} == parameters.keys() - {"self"}


@each_function
def test_help_has_the_text_of_every_option(function: Callable[..., Any]) -> None:
    text = " ".join((inspect.getdoc(function) or "").split())
    assert [o.name for o in declared_options(FUNCTIONS[function]) if f" {o.name}: {o.option.help}" not in text] == []


@each_function
def test_an_unknown_keyword_is_an_error_that_suggests_a_known_one(function: Callable[..., Any]) -> None:
    known = list(declared_options(FUNCTIONS[function]))[-1].name
    owner = ["a model"] if "self" in inspect.signature(function).parameters else []
    with pytest.raises(TypeError, match=rf"{function.__name__}\(\) .* '{known}s'; did you mean '{known}'"):
        function(*owner, **{f"{known}s": 1})


def test_only_options_with_a_value_are_given() -> None:
    assert given() == given(None, epochs=None) == {}
    assert given("photos", seed=0, epochs=None, report=True) == {"data": "photos", "seed": 0, "report": True}


def test_an_option_that_is_not_given_has_its_default() -> None:
    @keywords_of(TrainOptions)
    def values(options: TrainOptions) -> tuple[object, ...]:
        return options.seed, options.neighbors, options.epochs, options.report

    assert values(report=False) == (0, True, None, False)


def test_too_many_and_missing_arguments_are_errors_of_the_function() -> None:
    with pytest.raises(TypeError, match=r"^given\(\): too many positional arguments"):
        given("photos", "images")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^given\(\): multiple values for argument 'data'"):
        given("photos", data="photos")  # type: ignore[misc]
    with pytest.raises(TypeError, match=r"^check\(\): missing a required argument: 'data'"):
        probmcl.check()  # type: ignore[call-arg]
