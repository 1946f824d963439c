"""What a method costs by shapes alone, against the whole method with numbers."""

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
from probmcl.cost.rows import STEP_IMAGES, cost_row, cost_rows, leaves, meta_encoder, parse_methods
from probmcl.cost.speed import MeasureOptions, Speed, measure_speed, random_batch
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures, with_maps
from probmcl.errors import SettingsError
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier, Method, Step
from probmcl.methods.custom_loss import Nothing
from probmcl.methods.probe import Probe
from probmcl.report.cost_tables import cost_tables
from probmcl.settings import MethodSpec

SIZE = 64
ALL = [f"{name}:{preset}" for name in METHODS for preset in find_method(name).presets]
ON_FEATURES = ["bce", "kmcl", "supcon", "mulsupcon", "probmcl", "probmcl:paper", "probmcl:anchors", "joint"]


def whole(said: str, classes: int = 5) -> Method:
    """A method with numbers, on all of a small encoder."""
    (spec,) = parse_methods([said])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return find_method(spec.method)(Encoder("test_resnet", image_size=SIZE), label_space(classes), spec.settings)


@pytest.mark.parametrize("said", ALL)
def test_a_row_has_the_cost_of_the_whole_method_with_numbers(said: str) -> None:
    (spec,) = parse_methods([said])
    found = cost_row(spec, meta_encoder("test_resnet", SIZE), 5)
    method = whole(said)
    predicting = method if found.own_head else Probe(Encoder("test_resnet", image_size=SIZE), label_space(5))
    assert isinstance(predicting, Classifier)
    real = prediction_operations(predicting, SIZE)
    assert found.problem is None
    assert found.training_parameters == count_parameters(method)
    assert (found.gmac, found.gmac_ptflops) == pytest.approx((real.gmac, real.gmac_ptflops), rel=1e-12)
    assert found.views == method.n_views


@pytest.mark.parametrize("said", ON_FEATURES)
def test_training_has_the_products_of_a_step_of_the_whole_method(said: str) -> None:
    method = whole(said).train()
    views, labels = random_batch(method.n_views, STEP_IMAGES, (3, SIZE, SIZE), 5)
    step = count_operations(lambda: method(views, labels))
    found = cost_row(parse_methods([said])[0], meta_encoder("test_resnet", SIZE), 5)
    # The paper's similarity chooses its way by the numbers, which are not the same.
    assert found.training_gmac == pytest.approx(step.gmac / STEP_IMAGES, rel=1e-2 if said == "probmcl:paper" else 1e-9)


def test_two_views_cost_twice() -> None:
    one, two = cost_rows(parse_methods(["bce", "joint"]), ["test_resnet"], [SIZE], [5])
    assert one.training_gmac is not None
    assert two.training_gmac == pytest.approx(2 * one.training_gmac, rel=0.01)


@pytest.mark.parametrize("said", ["probmcl:paper", "supcon", "joint"])
def test_what_is_needed_for_training_alone_does_not_predict(said: str) -> None:
    linear, found = cost_rows(parse_methods(["bce", said]), ["test_resnet"], [SIZE], [5])
    assert found.prediction_parameters == linear.prediction_parameters
    assert found.training_parameters is not None
    assert linear.training_parameters is not None
    assert found.training_parameters > linear.training_parameters


def test_the_numbers_that_are_known_of_resnet_101() -> None:
    """The paper's Table 3 has 42.52 M and 31.39 GMAC for CSRA; its mixture network has 4.46 M on 2048 features."""
    linear, csra, paper = cost_rows(parse_methods(["bce", "csra", "probmcl:paper"]), ["resnet101"], [448], [9])
    assert linear.prediction_parameters == paper.prediction_parameters == 42_500_160 + 9 * 2049
    assert csra.prediction_parameters == csra.training_parameters == 42_518_592
    assert paper.training_parameters == 42_500_160 + 4_462_107
    assert linear.gmac is not None
    assert linear.gmac_ptflops is not None
    assert (round(linear.gmac, 2), round(linear.gmac_ptflops, 2)) == (31.20, 31.39)
    assert csra.gmac_ptflops is not None
    assert round(csra.gmac_ptflops, 3) == 31.393


def test_a_leaf_is_whatever_a_result_depends_on_once() -> None:
    one, other = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
    assert leaves(one(one(torch.rand(2, 4)))) == {one.weight, one.bias}
    assert leaves(torch.rand(2, 4)) == set()
    both = torch.cat([one(torch.rand(2, 4)).detach(), other(torch.rand(2, 4))])
    assert leaves(both) == {other.weight, other.bias}


def test_there_is_a_row_for_every_combination_in_order() -> None:
    found = list(cost_rows(parse_methods(["bce", "csra"]), ["test_resnet", "resnet10t"], [64, 96], [2, 3]))
    expected = itertools.product(["test_resnet", "resnet10t"], [64, 96], [2, 3], ["bce", "csra"])
    assert [(one.encoder, one.image_size, one.classes, one.method) for one in found] == list(expected)
    assert all(one.gmac for one in found)


def test_without_a_size_an_encoder_has_its_own() -> None:
    (found,) = cost_rows(parse_methods(["bce"]), ["test_resnet"], [None], [2])
    assert found.image_size == Encoder("test_resnet").image_size


def test_a_method_that_needs_maps_says_so_where_there_are_none() -> None:
    bce, csra = cost_rows(parse_methods(["bce", "csra"]), ["pit_ti_224"], [None], [2])
    assert bce.problem is None
    assert csra.problem is not None
    assert csra.problem.startswith("csra needs feature maps")
    assert csra.gmac is csra.training_parameters is csra.prediction_parameters is csra.training_gmac is None


class Unpooled(Method):
    """A contrast of maps: no head of its own, and nothing that could be done with pooled features."""

    n_views = 2
    needs_maps = True
    presets = {"default": Nothing()}  # noqa: RUF012

    def __init__(
        self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: Nothing | None = None
    ) -> None:
        super().__init__()
        self.encoder = with_maps(encoder, "unpooled")

    def forward(self, views: Tensor, labels: Tensor, known: Tensor | None = None) -> Step:
        raise NotImplementedError


class Broken(Unpooled):
    def __init__(
        self, encoder: Encoder | PrecomputedFeatures, label_space: LabelSpace, config: Nothing | None = None
    ) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("Unpooled", "it needs more than pooled features and does not predict by itself; this cannot be counted"),
        ("Broken", "AssertionError"),  # which says nothing of itself
    ],
)
def test_what_cannot_be_counted_always_says_why_and_is_not_measured(kind: str, problem: str) -> None:
    (found,) = cost_rows(parse_methods([f"{__name__}:{kind}"]), ["test_resnet"], [SIZE], [2], MeasureOptions("cpu", 2))
    assert found.problem == problem
    assert found.gmac is None
    assert found.speed is None


def test_two_methods_of_one_name_are_not_taken_for_one(tmp_path: Path) -> None:
    places = [tmp_path / "one.py", tmp_path / "two.py"]
    for place in places:
        place.write_text("def mine(logits, labels, known):\n    return logits.mean()\n")
    with pytest.raises(SettingsError, match="are both called mine; rename one"):
        parse_methods([f"{place}:mine" for place in places])


def test_a_size_that_an_encoder_cannot_take_is_a_row_that_says_so() -> None:
    small, fine = cost_rows(parse_methods(["bce"]), ["test_vit"], [40, 160], [2])
    assert small.problem is not None
    assert "images of 40 pixels" in small.problem
    assert small.image_size == 40
    assert fine.problem is None


def test_counting_draws_no_numbers_of_anybody_else() -> None:
    before = torch.get_rng_state()
    list(cost_rows(parse_methods(["all"]), ["test_resnet"], [SIZE], [2]))
    assert torch.equal(before, torch.get_rng_state())


def test_methods_are_named_as_in_a_comparison() -> None:
    assert [spec.method for spec in parse_methods(["all"])] == list(METHODS)
    chosen = parse_methods(["csra", "csra:paper", "csra", "probmcl.methods.asl:ASL"])
    assert [spec.name for spec in chosen] == ["csra", "csra:paper", "ASL"]
    assert chosen[1].settings.heads == 6
    assert [spec.name for spec in parse_methods(["csra", "probmcl:anchors"][:1], "paper")] == ["csra:paper"]


@pytest.mark.parametrize(
    ("said", "preset", "answer"),
    [
        ("probmlc", None, "no method 'probmlc'; did you mean 'probmcl'"),
        ("csra:papre", None, "method 'csra' has no preset 'papre'; did you mean 'paper'"),
        ("bce", "paper", "method 'bce' has no preset 'paper'"),
        ("probmcl:anchors", "paper", r"`preset=paper` contradicts probmcl:anchors"),
    ],
)
def test_what_is_not_there_is_answered_with_what_is(said: str, preset: str | None, answer: str) -> None:
    with pytest.raises(ValueError, match=answer):
        parse_methods([said], preset)


def test_a_loss_of_ones_own_is_a_method(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def mine(logits, labels, known):\n    return logits.mean()\n")
    (found,) = cost_rows(parse_methods([f"{file}:mine"]), ["test_resnet"], [SIZE], [2])
    assert (found.method, found.problem) == ("mine", None)


@pytest.mark.parametrize("said", ["bce", "probmcl", "ml_gcn"])
def test_what_is_measured_is_of_this_method_and_batch(said: str) -> None:
    (found,) = cost_rows(parse_methods([said]), ["test_resnet"], [SIZE], [5], MeasureOptions("cpu", 4))
    speed = found.speed
    assert speed is not None
    assert (speed.device, speed.batch_size) == ("cpu", 4)
    assert speed.views_per_second == pytest.approx(found.views / speed.step_seconds)
    assert speed.prediction_seconds > 0
    assert found.training_parameters is not None
    assert speed.peak_memory > 3 * 4 * found.training_parameters  # gradients and Adam's two averages


def test_a_step_of_more_images_holds_more() -> None:
    few, many = (
        next(cost_rows(parse_methods(["bce"]), ["test_resnet"], [SIZE], [5], MeasureOptions("cpu", batch))).speed
        for batch in (2, 16)
    )
    assert few is not None
    assert many is not None
    assert many.peak_memory > few.peak_memory


def test_a_step_of_one_image_is_refused() -> None:
    with pytest.raises(ValueError, match="`batch_size=1` must be at least 2"):
        MeasureOptions("cpu", 1)


def test_a_preset_is_of_a_known_method() -> None:
    with pytest.raises(SettingsError):
        parse_methods(["all"], "paper")


def test_a_row_that_runs_out_of_memory_says_so_and_the_others_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(spec: MethodSpec, *rest: Any) -> Speed:
        if spec.method == "asl":
            raise torch.OutOfMemoryError("no room")
        return measure_speed(spec, *rest)

    monkeypatch.setattr(rows, "measure_speed", scarce)
    found = list(cost_rows(parse_methods(["bce", "asl"]), ["test_resnet"], [SIZE], [5], MeasureOptions("cpu", 2)))
    assert [row.speed is not None for row in found] == [True, False]
    assert all(row.gmac is not None for row in found)
    counted, measured = cost_tables(found)
    assert counted.notes == ["asl: not measured, out of memory; a smaller batch size helps"]
    assert [cells[0] for cells in measured.rows] == ["bce"]
