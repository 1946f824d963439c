import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.evaluations import split_metrics
from probmcl.data.loader import Order
from probmcl.errors import OptionError, SettingsError
from probmcl.experiments.protocol import (
    SAFETY,
    TRIALS,
    ComparisonSpec,
    StoredComparison,
    chosen_heads,
    equal_views,
    fair_steps,
    make_jobs,
    parse_methods,
    planner,
    views_per_round,
)
from probmcl.methods import METHODS
from probmcl.readers.options import DataSource
from probmcl.run.budget import Costs, JobCost
from probmcl.run.results import Candidate, CandidateId
from probmcl.settings import EncoderSettings, MethodSpec, Settings, TrainingJob
from probmcl.training.optimizer import Training


def settings() -> Settings:
    return Settings("comparison", (), EncoderSettings("test_resnet", weights=None), workers=0)


def cost(key: str, epoch: float, once: float, n_views: int, tested: float = 0.0) -> JobCost:
    return JobCost(key, key, epoch, once, n_views, epochs=1, tested=tested)


def test_all_methods_without_the_probe_and_without_duplicates() -> None:
    specs = parse_methods(["all", "bce", "probmcl:paper"])
    assert [spec.name for spec in specs] == [*(name for name in METHODS if name != "probe"), "probmcl:paper"]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["probmlc"], "did you mean 'probmcl'"),
        (["probmcl:papre"], "no preset 'papre'"),
        (["probe"], "part of every comparison"),
        ([], "no methods to compare"),
    ],
)
def test_invalid_methods_are_rejected(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_methods(texts)


@given(
    st.integers(4, 1000),
    st.integers(1, 20),
    st.sampled_from([None, 8, 50]),
    st.sampled_from([(16, 1), (100, 2), (50, 3)]),
    st.integers(1, 3),
)
def test_every_method_sees_the_same_number_of_views_on_any_number_of_processes(
    images: int, rounds: int, batch_size: int | None, extra_step: tuple[int, int], processes: int
) -> None:
    views = 6 * rounds
    steps = fair_steps(images, views, [extra_step], batch_size, processes=processes)
    expected = equal_views(images, views, list(steps.values()))
    assert 0 < expected <= images * views
    for batch, n_views in steps.values():
        seen = 0
        for process in range(processes):
            order = Order(
                np.arange(images),
                batch_size=batch,
                epochs=views // n_views,
                seed=0,
                images=expected // n_views,
                share=(process, processes),
            )
            seen += sum(map(len, order)) * n_views
        assert seen == expected


def test_batch_sizes_are_equal_if_images_would_be_wasted_otherwise() -> None:
    assert equal_views(1690, 12, [(64, 1), (128, 2)]) == 19968
    assert fair_steps(1690, 12, [])[128, 2] == (128, 2)
    assert equal_views(100, 12, [(64, 1), (100, 2)]) == 0  # so the batch sizes are made equal
    assert set(fair_steps(100, 12, []).values()) == {(64, 1), (64, 2)}
    assert set(fair_steps(1690, 12, [], 32).values()) == {(32, 1), (32, 2)}


def test_jobs_do_not_depend_on_the_other_methods() -> None:
    for images in (250, 300, 1000, 1690):
        jobs = [
            make_jobs(parse_methods(names), settings(), images=images, views=12, trials=1, batch_size=None)[-1]
            for names in (["supcon"], ["bce", "supcon"], ["bce", "joint", "supcon"])
        ]
        assert jobs[0] == jobs[1] == jobs[2]


def test_duplicate_names_are_rejected(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "loss.py").write_text(
            "def mine(logits, labels, known): pass\ndef bce(similarity, overlap): pass"
        )
    with pytest.raises(SettingsError, match="mine; rename one"):
        parse_methods([f"{tmp_path}/a/loss.py:mine", f"{tmp_path}/b/loss.py:mine"])
    with pytest.raises(SettingsError, match="method bce"):
        parse_methods([f"{tmp_path}/a/loss.py:bce"])


def test_every_method_has_the_same_trials_with_the_defaults_first() -> None:
    methods = parse_methods(["bce", "supcon"])
    one, three = (
        make_jobs(methods, settings(), images=640, views=4, trials=trials, batch_size=None) for trials in (1, 3)
    )
    assert [job.title for job in three] == [
        "bce",
        "bce, trial 2",
        "bce, trial 3",
        "supcon",
        "supcon, trial 2",
        "supcon, trial 3",
    ]
    assert (three[0], three[3]) == one
    for default, trials in ((three[0], three[:3]), (three[3], three[3:])):
        rates = [job.training.learning_rate / default.training.learning_rate for job in trials]
        assert rates == pytest.approx([rate for rate, _ in TRIALS[:3]])
    assert len({job.training.views for job in three}) == 1
    assert three[0].training.epochs == 4
    assert three[3].training.epochs == 2


def test_too_many_trials_are_rejected() -> None:
    with pytest.raises(OptionError, match=r"`trials=99` .* 9"):
        make_jobs((MethodSpec("bce"),), settings(), images=64, views=2, trials=99, batch_size=None)


def test_best_trial_is_chosen_on_validation_by_its_better_head() -> None:
    scores = {
        CandidateId("bce", "own head"): 0.5,
        CandidateId("bce", "re-probed"): 0.6,
        CandidateId("bce", "own head", trial=2): 0.7,
        CandidateId("bce", "re-probed", trial=2): 0.4,
        CandidateId("supcon", "re-probed"): 0.9,
    }
    metrics = split_metrics(np.array([[0.9], [0.1]]), np.array([[1.0], [0.0]]))
    candidates = {
        key: Candidate(key, "bce", None, {}, {}, msgspec.structs.replace(metrics, mAP=score), 1.0)
        for key, score in scores.items()
    }
    # asl has no candidates because it diverged.
    assert chosen_heads(candidates, ["bce", "supcon", "asl"]) == [
        CandidateId("bce", "own head", trial=2),
        CandidateId("bce", "re-probed", trial=2),
        CandidateId("supcon", "re-probed"),
    ]


def test_budget_gives_all_methods_the_same_number_of_images() -> None:
    methods = parse_methods(["bce", "supcon"])
    costs = Costs(7.0, (cost("bce", 10.0, 5.0, 1), cost("supcon", 30.0, 5.0, 2)))

    def make(views: int) -> tuple[TrainingJob, ...]:
        return make_jobs(methods, settings(), images=640, views=views, trials=1, batch_size=None)

    per_round = 3 * 2 * (10.0 + 15.0)  # three seeds, two views
    fixed = 3 * (20.0 + 7.0) + 3 * 10.0
    plan = planner(SAFETY * (fixed + 4.5 * per_round), seeds=3, methods=methods, make=make)(costs, 20.0)
    assert plan.epochs == {"bce": 8, "supcon": 4}
    assert plan.views == 640 * 8
    assert "5,120 images (8 views" in plan.messages[0]


def test_only_the_first_run_has_all_trials() -> None:
    methods = parse_methods(["bce"])
    costs = Costs(0.0, tuple(cost(key, 10.0, 0.0, 1) for key in ("bce", "bce.trial2", "bce.trial3")))

    def make(views: int) -> tuple[TrainingJob, ...]:
        return make_jobs(methods, settings(), images=640, views=views, trials=3, batch_size=None)

    plan = planner(SAFETY * (3 + 1) * 20.0 * 5.01, seeds=2, methods=methods, make=make)(costs, 0.0)
    assert plan.epochs["bce"] == 10  # three jobs with the first seed, one with the second


def test_a_preset_has_the_same_plan_on_windows_where_its_files_have_other_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    methods = parse_methods(["probmcl:paper"])

    def make(views: int) -> tuple[TrainingJob, ...]:
        return make_jobs(methods, settings(), images=640, views=views, trials=3, batch_size=None)

    def epochs() -> Mapping[str, int]:
        costs = Costs(0.0, tuple(cost(job.key, 10.0, 0.0, 2) for job in make(2)))
        return planner(1000.0, seeds=2, methods=methods, make=make)(costs, 0.0).epochs

    before = epochs()
    assert "probmcl:paper" in before
    monkeypatch.setattr(sys, "platform", "win32")
    assert epochs() == {key.replace(":", "-"): value for key, value in before.items()}


def test_error_for_a_small_budget_has_the_required_time() -> None:
    methods = parse_methods(["bce"])
    plan = planner(60.0, seeds=3, methods=methods, make=lambda views: ())
    with pytest.raises(SettingsError, match=r"a budget of 1 min .*about \d+ min"):
        plan(Costs(7.0, (cost("bce", 100.0, 5.0, 1),)), 20.0)


def test_round_has_two_views() -> None:
    assert views_per_round([MethodSpec("bce")]) == 2
    assert views_per_round([MethodSpec("bce"), MethodSpec("supcon")]) == 2


def test_budget_includes_time_before_the_first_run_and_for_testing() -> None:
    methods = parse_methods(["bce"])

    def make(views: int) -> tuple[TrainingJob, ...]:
        return make_jobs(methods, settings(), images=640, views=views, trials=1, batch_size=None)

    def epochs(before: float, tested: float) -> int:
        plan = planner(SAFETY * 1000.0, seeds=2, methods=methods, make=make, spent_before=before)
        return plan(Costs(0.0, (cost("bce", 10.0, 5.0, 1, tested),)), 0.0).epochs["bce"]

    assert epochs(0.0, 0.0) == 48
    assert epochs(200.0, 0.0) == 38  # 200 s less, for both seeds
    assert epochs(0.0, 100.0) == 38


@pytest.mark.parametrize(
    ("jobs", "methods", "problem"),
    [
        ((TrainingJob("bce", {}, Training()),), (MethodSpec("bce"),), "spec.settings.jobs must be empty"),
        ((), (), "spec.methods is empty"),
    ],
)
def test_a_stored_comparison_has_methods_and_no_jobs(
    jobs: tuple[TrainingJob, ...], methods: tuple[MethodSpec, ...], problem: str
) -> None:
    spec = ComparisonSpec(replace(settings(), jobs=jobs), methods)
    with pytest.raises(ValueError, match=problem):
        StoredComparison(DataSource(Path("photos")), "photos", spec, (), ())
