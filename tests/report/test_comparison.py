from typing import Any

import pytest

from helpers.rows import demo_comparison, made_best, made_comparison, made_frozen, made_row
from probmcl.report.comparison import verdict

BETTER: dict[str, Any] = {"gain": 0.02, "gain_interval": (0.01, 0.03), "gain_p": 0.01}
WORSE: dict[str, Any] = {"gain": -0.02, "gain_interval": (-0.03, -0.01), "gain_p": 0.01}
FAR: dict[str, Any] = {"behind": 0.02, "behind_interval": (0.01, 0.03), "behind_p": 0.01}


def said(*rows: Any, **other: Any) -> str:
    return verdict(made_comparison(made_frozen(), *rows, **other))


def line(text: str, start: str) -> str:
    return next((line for line in text.splitlines() if line.startswith(start)), "")


# Is the probe enough?


def test_without_a_method_that_is_better_the_probe_is_enough_and_it_says_why() -> None:
    text = said(made_row("asl", mAP=0.81), made_row("bce", mAP=0.80))
    assert text.startswith("The linear probe is enough: no method is better by more than chance")
    assert "a gain of 3.0 points is ruled out for each" in text
    assert "mAP 79.0 [77.8, 80.1] on these 4,952 test images" in text
    best = line(text, "The best on validation, asl (own head), gains +0.2 [−0.4, +0.8] points")
    assert "p 0.600, corrected for 2 methods" in best
    assert "a gain of up to 0.8 points is not ruled out" in best
    assert "Recommended" not in text


def test_the_largest_gain_on_test_is_named_beside_that_of_the_best_on_validation() -> None:
    text = said(made_row("asl", mAP=0.81), made_row("bce", mAP=0.80, gain=0.006))
    assert line(text, "The best on validation, asl (own head)")
    assert "bce (own head): +0.6 [−0.4, +0.8]" in line(text, "The largest gain on test")
    assert not line(said(made_row("asl", mAP=0.81, gain=0.006), made_row("bce", mAP=0.80)), "The largest gain on test")


def test_the_largest_of_losses_and_of_unknown_gains_is_no_gain() -> None:
    unknown: dict[str, Any] = dict.fromkeys(("gain", "gain_interval", "gain_p"))
    losses = [made_row("asl", mAP=0.81, gain=-0.006), made_row("bce", mAP=0.80, gain=-0.002)]
    assert not line(said(*losses), "The largest gain on test")
    assert not line(said(*losses, made_row("focal", mAP=0.7, **unknown)), "The largest gain on test")


@pytest.mark.parametrize(("most", "enough"), [(0.029, True), (0.03, False)])
def test_the_probe_is_enough_only_where_a_large_gain_is_ruled_out_for_every_method(most: float, enough: bool) -> None:
    noisy = made_row("bce", mAP=0.80, gain=0.001, gain_interval=(-0.03, most))
    text = said(made_row("asl", mAP=0.81), noisy)
    assert text.startswith("The linear probe is enough") == enough
    assert bool(line(text, "More test images would make the intervals narrower")) != enough
    if not enough:
        assert text.splitlines()[0] == (
            "This comparison cannot tell whether any method is better than the linear probe (mAP 79.0 [77.8, 80.1] on "
            "these 4,952 test images): none is shown to be, but a gain of up to 3.0 points is not ruled out for bce "
            "(own head)."
        )
        assert line(text, "The best on validation, asl (own head), gains +0.2 [−0.4, +0.8] points")


def test_a_row_that_does_not_stand_for_its_method_decides_nothing() -> None:
    second = made_row("asl", "re-probed", best_head=False, gain_interval=(-0.1, 0.1), gain_p=None, behind_p=None)
    assert said(made_row("asl", mAP=0.81), second).startswith("The linear probe is enough")


def test_a_best_that_shares_no_seed_with_the_probe_has_no_gain() -> None:
    unknown: dict[str, Any] = dict.fromkeys(("gain", "gain_interval", "gain_p"))
    gain = "an unknown number of points (no seed in common with the probe)"
    assert f"asl (own head), gains {gain}." in said(made_row("asl", mAP=0.81, **unknown), made_row("bce"))
    assert f"a gain of {gain}." in said(made_row("asl", mAP=0.83, **unknown), made_row("bce", **BETTER))


def test_a_gain_that_cannot_be_is_not_held_open() -> None:
    text = said(made_row(gain=-0.01, gain_interval=(-0.02, -0.001), gain_p=0.07))
    assert text.startswith("The linear probe is enough")
    assert "not ruled out" not in text


def test_methods_worse_than_the_probe_leave_the_probe() -> None:
    text = said(made_row("asl", mAP=0.7, **WORSE))
    assert text.startswith("The linear probe is enough")
    assert line(text, "Worse than the linear probe: asl (own head), −2.0 [−3.0, −1.0] points.")


def test_a_small_p_of_a_loss_is_no_gain_and_a_gain_by_chance_none_either() -> None:
    assert said(made_row(gain=-0.01, gain_p=0.001)).startswith("The linear probe is enough")
    text = said(made_row(gain=0.05, gain_interval=(-0.01, 0.11), gain_p=0.05))
    assert text.startswith("This comparison cannot tell")
    assert line(text, "The best on validation, bce (own head), gains +5.0 [−1.0, +11.0] points (p 0.050)")


# A method is better.


def test_one_clear_winner() -> None:
    text = said(made_best("asl"), made_row("bce", mAP=0.80, **FAR))
    first = text.splitlines()[0]
    assert first == (
        "asl (own head), the best of 2 methods on validation, is better than the linear probe on these 4,952 test "
        "images: mAP 82.0 [80.8, 83.1] instead of 79.0 [77.8, 80.1], a gain of +3.0 [+2.0, +4.0] points (p 0.004, "
        "corrected for 2 methods)."
    )
    assert "Every other method is behind it there by more than chance." in text
    assert line(text, "Recommended: asl (own head) (10 min of training).")
    assert line(text, "Neither better nor worse than the probe by more than chance: bce (own head).")
    assert "enough" not in text


def test_the_only_method_is_compared_with_the_probe_alone() -> None:
    text = said(made_best("asl"))
    assert text.startswith("asl (own head), the only method, is better")
    assert "corrected" not in text
    assert "Every other" not in text
    left_out = said(made_best("asl"), left_out=("kmcl diverged at step 3.",))
    assert left_out.startswith("asl (own head), the only method with results, is better")


def test_the_best_is_chosen_on_validation_though_another_is_higher_on_test() -> None:
    lucky = made_row("lucky", mAP=0.95, validation=0.5, **BETTER)
    text = said(lucky, made_best("asl"))
    assert text.startswith("asl (own head), the best of 2 methods on validation")
    assert line(text, "Recommended: asl (own head)")


def test_a_method_ahead_on_test_is_named_and_not_chosen() -> None:
    ahead: dict[str, Any] = {"behind": -0.02, "behind_interval": (-0.03, -0.01), "behind_p": 0.01}
    text = said(made_row("lucky", mAP=0.84, validation=0.5, seconds=1.0, **BETTER, **ahead), made_best("asl"))
    assert line(text, "Ahead of it on test by more than chance: lucky (own head).")
    assert "Every other" not in text
    assert line(text, "Recommended: asl (own head)")


def test_its_re_probed_row_stands_for_a_method_where_that_is_better_and_its_own_head_where_that_is() -> None:
    own = made_row("asl", "own head", 0.81, best_head=False, gain_p=None, behind_p=None)
    assert "asl (re-probed), the only method" in said(own, made_best("asl", "re-probed"))
    probed = made_row("asl", "re-probed", 0.81, best_head=False, gain_p=None, behind_p=None)
    assert "asl (own head), the only method" in said(probed, made_best("asl", "own head"))
    assert "want of a p-value" not in said(probed, made_best("asl", "own head"))


# A tie, and what it costs.


def test_of_a_tie_the_clearly_cheapest_that_beats_the_probe_is_recommended() -> None:
    text = said(
        made_best("asl", seconds=1000.0),
        made_row("bce", mAP=0.81, seconds=700.0, **BETTER),
        made_row("focal", mAP=0.80, seconds=600.0, **BETTER),
        made_row("fast", mAP=0.79, seconds=10.0),
        made_row("far", mAP=0.78, seconds=5.0, **BETTER, **FAR),
    )
    tie = "Cannot be told apart from it on these images: bce (own head); focal (own head); fast (own head)."
    assert tie in text.splitlines()
    assert line(text, "Recommended") == (
        "Recommended: focal (own head), the cheapest of these that is better than the probe too: 10 min of training "
        "instead of 17 min; it may be up to 0.7 points behind."
    )


@pytest.mark.parametrize(("seconds", "recommended"), [(750.0, "bce"), (751.0, "asl"), (2000.0, "asl")])
def test_a_little_cheaper_is_no_reason(seconds: float, recommended: str) -> None:
    text = said(made_best("asl", seconds=1000.0), made_row("bce", mAP=0.81, seconds=seconds, **BETTER))
    assert line(text, f"Recommended: {recommended} (own head)")


def test_a_tie_without_an_interval_promises_nothing() -> None:
    tie = made_row("bce", mAP=0.81, seconds=1.0, **BETTER, behind_interval=None)
    assert line(said(made_best("asl"), tie), "Recommended: bce").endswith("instead of 10 min.")


def test_no_time_at_all_still_recommends_the_best() -> None:
    assert line(said(made_best("asl", seconds=0.0)), "Recommended: asl (own head) (0.0 s of training).")


# Validation and test do not agree.


def test_a_best_on_validation_that_is_not_shown_to_be_better_is_not_recommended() -> None:
    text = said(made_row("asl", mAP=0.83), made_row("bce", mAP=0.80, **BETTER))
    assert text.startswith("Better than the linear probe (mAP 79.0 [77.8, 80.1] on these 4,952 test images): bce")
    assert "But the best on validation is asl (own head), with a gain of +0.2 [−0.4, +0.8] points" in text
    assert "does not settle which to take" in text
    assert "Recommended" not in text


def test_a_best_that_validation_puts_behind_the_probe_is_doubted() -> None:
    assert "not ahead of the probe (−1.0 points)" in said(made_best(validation=0.78))
    assert "not ahead" not in said(made_best(validation=0.80))


# Missing p-values.


def test_without_any_p_value_nothing_is_claimed() -> None:
    text = said(made_row("asl", gain=0.1, gain_p=None, behind_p=None), made_row("bce", gain_p=None, behind_p=None))
    assert text.startswith("Whether any method is better than the linear probe")
    assert "is open: no p-values" in text
    assert not any(word in text for word in ("enough", "Recommended", "Worse", "chance"))


def test_a_method_without_a_p_value_is_named() -> None:
    lost: dict[str, Any] = dict.fromkeys(("gain_interval", "gain_p", "behind_interval", "behind_p"))
    text = said(made_row("asl", mAP=0.81), made_row("bce", **lost))
    assert text.startswith("This comparison cannot tell")
    assert "none is shown to be, but there is no interval of the gain of bce (own head)." in text
    assert "More test images" not in text
    assert "corrected for" not in text  # there is one p-value
    assert line(text, "Not compared with the probe, for want of a p-value: bce (own head).")
    text = said(made_best("asl"), made_row("bce", mAP=0.81, gain_p=None, behind_p=None))
    assert line(text, "Not compared with it, for want of a p-value: bce (own head).")
    assert "Every other" not in text


def test_without_a_method_there_is_nothing_to_choose() -> None:
    text = said(left_out=("kmcl diverged at step 3.",))
    assert text.startswith("There is nothing to choose from: no method was trained.")
    assert line(text, "Left out: kmcl diverged at step 3.")


# What is uncertain.


@pytest.mark.parametrize(
    ("doubt", "other", "sure"),
    [
        ("One seed", {"seeds": 1}, {"seeds": 2}),
        ("untuned", {"trials": 1}, {"trials": 2}),
        ("Only 499 test images", {"test_images": 499}, {"test_images": 500}),
        ("Only 29 groups", {"groups": 29}, {"groups": 30}),
    ],
)
@pytest.mark.parametrize("row", [made_best(), made_row()])
def test_a_doubt_is_said_where_it_applies_and_nowhere_else(
    row: Any, doubt: str, other: dict[str, Any], sure: dict[str, Any]
) -> None:
    assert doubt in line(said(row, **other), "Uncertain: ")
    assert not line(said(row, **sure), "Uncertain: ")


@pytest.mark.parametrize(
    ("doubt", "doubtful", "sure"),
    [
        ("gain is 3.0 points wide", {"gain_interval": (0.015, 0.045)}, {"gain_interval": (0.016, 0.045)}),
        ("varies by ± 3.1 points, no less than its gain", {"over_seeds": 0.031}, {"over_seeds": 0.029}),
        ("Partly reconstructed", {"fidelity": "partly reconstructed"}, {"fidelity": "own"}),
        (
            "Partly reconstructed",
            {"fidelity": "partly reconstructed, our settings"},
            {"fidelity": "paper, our settings"},
        ),
        ("Fewer than 3 seeds: asl (own head), 2.", {"seeds": 2}, {"seeds": 3}),
    ],
)
def test_a_doubt_of_a_row_is_said_where_it_applies(doubt: str, doubtful: dict[str, Any], sure: dict[str, Any]) -> None:
    assert doubt in line(said(made_best(**doubtful)), "Uncertain: ")
    assert not line(said(made_best(**sure)), "Uncertain: ")


def test_an_interval_without_zero_beside_a_large_p_is_explained() -> None:
    text = said(made_row(gain_interval=(0.001, 0.02), gain_p=0.08))
    assert "only p is corrected for the number of methods" in line(text, "Uncertain: ")


def test_a_note_is_said_of_the_methods_whose_judged_map_it_is_about() -> None:
    pla, other = made_best("pla", note="it ranks a set"), made_row("pla:paper", note="it ranks a set")
    probed = made_row("bce", "own head", note="not said", best_head=False)
    text = verdict(made_comparison(made_frozen(), pla, other, probed))
    assert "Note on pla (own head); pla:paper (own head): it ranks a set." in text.splitlines()
    assert text.count("Note on") == 1


def test_what_was_left_out_is_said_last() -> None:
    assert verdict(demo_comparison()).splitlines()[-1] == (
        "Left out: kmcl diverged at step 40 with each of its learning rates."
    )


def test_a_method_of_ones_own_takes_part_like_any_other() -> None:
    text = said(made_best("own_loss.py:my_loss", fidelity="own", method="own_loss.py:my_loss"))
    assert text.startswith("own_loss.py:my_loss (own head), the only method, is better than the linear probe")


def test_the_demo_reads_as_a_whole() -> None:
    assert verdict(demo_comparison()).splitlines()[1:6] == [
        "Cannot be told apart from it on these images: csra (re-probed); probmcl (re-probed); bce (own head); "
        "own_loss.py:my_loss & more (own head); ml_gcn (own head).",
        "Recommended: asl (own head) (10 min of training).",
        "Worse than the linear probe: probmcl:paper (re-probed), −2.1 [−3.4, −0.9] points.",
        "Neither better nor worse than the probe by more than chance: ml_gcn (own head).",
        "Uncertain: The methods are untuned: each had one learning rate and weight decay, and others may change the "
        "order. Partly reconstructed, and so no judgment of what their authors had: ml_gcn (own head).",
    ]
