"""Costs computed from shapes, compared with counts on real methods."""

import itertools
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers.images import label_space
from probmcl.cost import rows
from probmcl.cost.operations import count_operations, count_parameters, prediction_operations
from probmcl.cost.rows import STEP_IMAGES, cost_row, cost_rows, leaves, meta_encoder, parse_cost_methods
from probmcl.cost.speed import MeasureOptions, Speed, measure_speed, random_batch
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures, with_maps
from probmcl.errors import SettingsError
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier, Method, Step
from probmcl.methods.custom_loss import NoSettings
from probmcl.methods.probe import Probe
from probmcl.report.cost_tables import cost_tables
from probmcl.settings import MethodSpec

SIZE = 64
ALL = [f"{name}:{preset}" for name in METHODS for preset in find_method(name).presets]
ON_FEATURES = ["bce", "kmcl", "supcon", "mulsupcon", "probmcl", "probmcl:paper", "probmcl:anchors", "joint"]


def build(name: str, classes: int = 5) -> Method:
    """Build a method on a complete small encoder, with real parameters."""
    (spec,) = parse_cost_methods([name])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_method(spec.method)(Encoder("test_resnet", image_size=SIZE), label_space(classes), spec.settings)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_row_matches_the_real_method(name: str) -> None:
    (spec,) = parse_cost_methods([name])
    row = cost_row(spec, meta_encoder("test_resnet", SIZE), 5)
    method = build(name)
    classifier = method if row.own_head else Probe(Encoder("test_resnet", image_size=SIZE), label_space(5))
    assert isinstance(classifier, Classifier)
    real = prediction_operations(classifier, SIZE)
    assert row.problem is None
    assert row.training_parameters == count_parameters(method)
    assert (row.gmac, row.gmac_ptflops) == pytest.approx((real.gmac, real.gmac_ptflops), rel=1e-12)
    assert row.views == method.n_views


@pytest.mark.parametrize("name", ON_FEATURES)
def test_training_gmac_matches_a_real_step(name: str) -> None:
    method = build(name).train()
    views, labels = random_batch(method.n_views, STEP_IMAGES, (3, SIZE, SIZE), 5)
    step = count_operations(lambda: method(views, labels))
    row = cost_row(parse_cost_methods([name])[0], meta_encoder("test_resnet", SIZE), 5)
    # The paper's similarity chooses its algorithm by the values, which differ.
    assert row.training_gmac == pytest.approx(step.gmac / STEP_IMAGES, rel=1e-2 if name == "probmcl:paper" else 1e-9)


def test_two_views_cost_twice_as_much() -> None:
    one, two = cost_rows(parse_cost_methods(["bce", "joint"]), ["test_resnet"], [SIZE], [5])
    assert one.training_gmac is not None
    assert two.training_gmac == pytest.approx(2 * one.training_gmac, rel=0.01)


@pytest.mark.parametrize("name", ["probmcl:paper", "supcon", "joint"])
def test_training_only_parameters_are_not_counted_for_prediction(name: str) -> None:
    linear, row = cost_rows(parse_cost_methods(["bce", name]), ["test_resnet"], [SIZE], [5])
    assert row.prediction_parameters == linear.prediction_parameters
    assert row.training_parameters is not None
    assert linear.training_parameters is not None
    assert row.training_parameters > linear.training_parameters


def test_known_costs_on_resnet101() -> None:
    """Table 3 of the paper has 42.52 M and 31.39 GMAC for CSRA; the mixture network has 4.46 M on 2048 features."""
    linear, csra, paper = cost_rows(parse_cost_methods(["bce", "csra", "probmcl:paper"]), ["resnet101"], [448], [9])
    assert linear.prediction_parameters == paper.prediction_parameters == 42_500_160 + 9 * 2049
    assert csra.prediction_parameters == csra.training_parameters == 42_518_592
    assert paper.training_parameters == 42_500_160 + 4_462_107
    assert linear.gmac is not None
    assert linear.gmac_ptflops is not None
    assert (round(linear.gmac, 2), round(linear.gmac_ptflops, 2)) == (31.20, 31.39)
    assert csra.gmac_ptflops is not None
    assert round(csra.gmac_ptflops, 3) == 31.393


def test_leaves() -> None:
    one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    assert leaves(one(one(torch.rand(2, 4)))) == {one.weight, one.bias}
    assert leaves(torch.rand(2, 4)) == set()
    both = torch.cat([one(torch.rand(2, 4)).detach(), other(torch.rand(2, 4))])
    assert leaves(both) == {other.weight, other.bias}


def test_one_row_per_combination() -> None:
    counted = list(cost_rows(parse_cost_methods(["bce", "csra"]), ["test_resnet", "resnet10t"], [64, 96], [2, 3]))
    expected = itertools.product(["test_resnet", "resnet10t"], [64, 96], [2, 3], ["bce", "csra"])
    assert [(one.encoder, one.image_size, one.classes, one.method) for one in counted] == list(expected)
    assert all(one.gmac for one in counted)


def test_default_image_size() -> None:
    (row,) = cost_rows(parse_cost_methods(["bce"]), ["test_resnet"], [None], [2])
    assert row.image_size == Encoder("test_resnet").image_size


def test_method_without_maps_has_a_problem() -> None:
    bce, csra = cost_rows(parse_cost_methods(["bce", "csra"]), ["pit_ti_224"], [None], [2])
    assert bce.problem is None
    assert csra.problem is not None
    assert csra.problem.startswith("csra needs feature maps")
    assert csra.gmac is csra.training_parameters is csra.prediction_parameters is csra.training_gmac is None


class Unpooled(Method):
    """A contrastive method on feature maps, without a head."""

    n_views = 2
    needs_maps = True
    presets = {"default": NoSettings()}  # noqa: RUF012

    def __init__(
        self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: NoSettings | None = None
    ) -> None:
        super().__init__()
        self.encoder = with_maps(encoder, "unpooled")

    def forward(self, views: Tensor, labels: Tensor, known: Tensor | None = None) -> Step:
        raise NotImplementedError


class Broken(Unpooled):
    def __init__(
        self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: NoSettings | None = None
    ) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("Unpooled", "cannot be counted"),
        ("Broken", "AssertionError"),  # an error without a message
    ],
)
def test_uncountable_methods_have_a_reason_and_are_not_measured(name: str, problem: str) -> None:
    (row,) = cost_rows(
        parse_cost_methods([f"{__name__}:{name}"]), ["test_resnet"], [SIZE], [2], MeasureOptions("cpu", 2)
    )
    assert row.problem is not None
    assert problem in row.problem
    assert row.gmac is None
    assert row.speed is None


def test_methods_with_the_same_name_raise(tmp_path: Path) -> None:
    paths = [tmp_path / "one.py", tmp_path / "two.py"]
    for path in paths:
        path.write_text("def mine(logits, labels, known):\n    return logits.mean()\n")
    with pytest.raises(SettingsError, match=r"one.py:mine and .*two.py:mine"):
        parse_cost_methods([f"{path}:mine" for path in paths])


def test_unsupported_image_size_is_a_problem() -> None:
    small, large = cost_rows(parse_cost_methods(["bce"]), ["test_vit"], [40, 160], [2])
    assert small.problem is not None
    assert "test_vit" in small.problem
    assert "40" in small.problem
    assert small.image_size == 40
    assert large.problem is None


def test_counting_does_not_change_the_random_state() -> None:
    before = torch.get_rng_state()
    list(cost_rows(parse_cost_methods(["all"]), ["test_resnet"], [SIZE], [2]))
    assert torch.equal(before, torch.get_rng_state())


def test_parse_methods() -> None:
    assert [spec.method for spec in parse_cost_methods(["all"])] == list(METHODS)
    chosen = parse_cost_methods(["csra", "csra:paper", "csra", "probmcl.methods.asl:ASL"])
    assert [spec.name for spec in chosen] == ["csra", "csra:paper", "ASL"]
    assert chosen[1].settings.heads == 6
    assert [spec.name for spec in parse_cost_methods(["csra", "probmcl:anchors"][:1], "paper")] == ["csra:paper"]


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [
        ("probmlc", None, "'probmlc'; did you mean 'probmcl'"),
        ("csra:papre", None, "'csra' .*'papre'; did you mean 'paper'"),
        ("bce", "paper", "'bce' .*'paper'"),
        ("probmcl:anchors", "paper", r'`preset="paper"` .*probmcl:anchors'),
    ],
)
def test_invalid_names_raise(name: str, preset: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_cost_methods([name], preset)


def test_custom_loss_has_a_cost(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def mine(logits, labels, known):\n    return logits.mean()\n")
    (row,) = cost_rows(parse_cost_methods([f"{file}:mine"]), ["test_resnet"], [SIZE], [2])
    assert (row.method, row.problem) == ("mine", None)


@pytest.mark.parametrize("name", ["bce", "probmcl", "ml_gcn"])
def test_measured_speed(name: str) -> None:
    (row,) = cost_rows(parse_cost_methods([name]), ["test_resnet"], [SIZE], [5], MeasureOptions("cpu", 4))
    speed = row.speed
    assert speed is not None
    assert (speed.device, speed.batch_size) == ("cpu", 4)
    assert speed.views_per_second == pytest.approx(row.views / speed.step_seconds)
    assert speed.prediction_seconds > 0
    assert row.training_parameters is not None
    assert speed.peak_memory > 3 * 4 * row.training_parameters  # gradients and Adam's two averages


def test_larger_batches_need_more_memory() -> None:
    few, many = (
        next(cost_rows(parse_cost_methods(["bce"]), ["test_resnet"], [SIZE], [5], MeasureOptions("cpu", batch))).speed
        for batch in (2, 16)
    )
    assert few is not None
    assert many is not None
    assert many.peak_memory > few.peak_memory


def test_batch_size_of_one_raises() -> None:
    with pytest.raises(ValueError, match="`batch_size=1`"):
        MeasureOptions("cpu", 1)


def test_unknown_preset_raises() -> None:
    with pytest.raises(SettingsError):
        parse_cost_methods(["all"], "paper")


def test_out_of_memory_does_not_stop_other_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    def measure_with_limit(spec: MethodSpec, *rest: Any) -> Speed:
        if spec.method == "asl":
            raise torch.OutOfMemoryError("no room")
        return measure_speed(spec, *rest)

    monkeypatch.setattr(rows, "measure_speed", measure_with_limit)
    results = list(
        cost_rows(parse_cost_methods(["bce", "asl"]), ["test_resnet"], [SIZE], [5], MeasureOptions("cpu", 2))
    )
    assert [row.speed is not None for row in results] == [True, False]
    assert all(row.gmac is not None for row in results)
    counted, measured = cost_tables(results)
    (note,) = counted.notes
    assert note.startswith("asl: ")
    assert "out of memory" in note
    assert [cells[0] for cells in measured.rows] == ["bce"]
