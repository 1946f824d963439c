from typing import Any

import pytest

from helpers.rows import demo_comparison, made_best, made_comparison, made_frozen, made_row
from probmcl.report.comparison import comparison_verdict

BETTER: dict[str, Any] = {"gain": 0.02, "gain_interval": (0.01, 0.03), "gain_p": 0.01}
WORSE: dict[str, Any] = {"gain": -0.02, "gain_interval": (-0.03, -0.01), "gain_p": 0.01}
FAR: dict[str, Any] = {"behind": 0.02, "behind_interval": (0.01, 0.03), "behind_p": 0.01}


def verdict_of(*rows: Any, **other: Any) -> str:
    return comparison_verdict(made_comparison(made_frozen(), *rows, **other))


def line(text: str, start: str) -> str:
    return next((line for line in text.splitlines() if line.startswith(start)), "")


# Is the probe enough?


def test_probe_is_enough_if_no_method_is_better() -> None:
    text = verdict_of(made_row("asl", mAP=0.81), made_row("bce", mAP=0.80))
    assert text.startswith("The linear probe is enough")
    assert "a gain of 3.0 points is ruled out" in text
    assert "mAP 79.0 [77.8, 80.1] (chance 7.1), AUROC 94.0 on 4,952 test images" in text
    best = line(text, "The best method on validation, asl (own head)")
    assert "+0.2 [−0.4, +0.8] points (p-value 0.600, corrected for 2 methods)" in best
    assert "up to 0.8 points is not ruled out" in best
    assert "Recommended" not in text


def test_largest_gain_on_test_is_reported_with_the_best_on_validation() -> None:
    text = verdict_of(made_row("asl", mAP=0.81), made_row("bce", mAP=0.80, gain=0.006))
    assert line(text, "The best method on validation, asl (own head)")
    assert "bce (own head), +0.6 [−0.4, +0.8]" in line(text, "Largest gain on test")
    assert not line(
        verdict_of(made_row("asl", mAP=0.81, gain=0.006), made_row("bce", mAP=0.80)), "Largest gain on test"
    )


def test_largest_gain_is_omitted_unless_positive() -> None:
    unknown: dict[str, Any] = dict.fromkeys(("gain", "gain_interval", "gain_p"))
    losses = [made_row("asl", mAP=0.81, gain=-0.006), made_row("bce", mAP=0.80, gain=-0.002)]
    assert not line(verdict_of(*losses), "Largest gain on test")
    assert not line(verdict_of(*losses, made_row("focal", mAP=0.7, **unknown)), "Largest gain on test")


@pytest.mark.parametrize(("upper", "enough"), [(0.029, True), (0.03, False)])
def test_probe_is_enough_only_if_a_large_gain_is_ruled_out_for_every_method(upper: float, enough: bool) -> None:
    noisy = made_row("bce", mAP=0.80, gain=0.001, gain_interval=(-0.03, upper))
    text = verdict_of(made_row("asl", mAP=0.81), noisy)
    assert text.startswith("The linear probe is enough") == enough
    assert bool(line(text, "More test images")) != enough
    if not enough:
        first = line(text, "The comparison is inconclusive")
        assert "(mAP 79.0 [77.8, 80.1] (chance 7.1), AUROC 94.0 on 4,952 test images)" in first
        assert first.endswith("a gain of up to 3.0 points is not ruled out for bce (own head).")
        assert "+0.2 [−0.4, +0.8] points" in line(text, "The best method on validation, asl (own head)")


def test_worse_head_of_a_method_is_ignored() -> None:
    second = made_row("asl", "re-probed", best_head=False, gain_interval=(-0.1, 0.1), gain_p=None, behind_p=None)
    assert verdict_of(made_row("asl", mAP=0.81), second).startswith("The linear probe is enough")


def test_gain_is_unknown_without_a_common_seed() -> None:
    unknown: dict[str, Any] = dict.fromkeys(("gain", "gain_interval", "gain_p"))
    gain = "a gain of unknown size (no seed in common with the probe)"
    assert f"asl (own head), has {gain}." in verdict_of(made_row("asl", mAP=0.81, **unknown), made_row("bce"))
    assert f"with {gain}." in verdict_of(made_row("asl", mAP=0.83, **unknown), made_row("bce", **BETTER))


def test_negative_upper_bound_is_not_reported() -> None:
    text = verdict_of(made_row(gain=-0.01, gain_interval=(-0.02, -0.001), gain_p=0.07))
    assert text.startswith("The linear probe is enough")
    assert "not ruled out" not in text


def test_probe_is_enough_if_methods_are_worse() -> None:
    text = verdict_of(made_row("asl", mAP=0.7, **WORSE))
    assert text.startswith("The linear probe is enough")
    assert "asl (own head), −2.0 [−3.0, −1.0] points" in line(text, "Significantly worse than the linear probe")


def test_significant_loss_or_insignificant_gain_is_not_better() -> None:
    assert verdict_of(made_row(gain=-0.01, gain_p=0.001)).startswith("The linear probe is enough")
    text = verdict_of(made_row(gain=0.05, gain_interval=(-0.01, 0.11), gain_p=0.05))
    assert text.startswith("The comparison is inconclusive")
    assert "+5.0 [−1.0, +11.0] points (p-value 0.050)" in line(text, "The best method on validation, bce (own head)")


# A method is better.


def test_one_clear_winner() -> None:
    text = verdict_of(made_best("asl"), made_row("bce", mAP=0.80, **FAR))
    first = text.splitlines()[0]
    assert first.startswith("asl (own head), the best of 2 methods on validation, is significantly better")
    assert "mAP 82.0 [80.8, 83.1] (chance 7.1), AUROC 97.0, versus mAP 79.0 [77.8, 80.1], AUROC 94.0, a gain" in first
    assert "+3.0 [+2.0, +4.0] points (p-value 0.004, corrected for 2 methods)" in first
    assert line(text, "All other methods are significantly worse")
    assert line(text, "Recommended: asl (own head), 10 min")
    assert "bce (own head)" in line(text, "Not significantly different from the linear probe")
    assert "enough" not in text


def test_single_method_is_compared_with_the_probe_only() -> None:
    text = verdict_of(made_best("asl"))
    assert text.startswith("asl (own head), the only method, is significantly better")
    assert "corrected" not in text
    assert "All other" not in text
    left_out = verdict_of(made_best("asl"), left_out=("kmcl diverged at step 3.",))
    assert left_out.startswith("asl (own head), the only method with results,")


def test_best_method_is_chosen_on_validation() -> None:
    lucky = made_row("lucky", mAP=0.95, validation=0.5, **BETTER)
    text = verdict_of(lucky, made_best("asl"))
    assert text.startswith("asl (own head), the best of 2 methods on validation")
    assert line(text, "Recommended: asl (own head)")


def test_method_that_leads_only_on_test_is_not_recommended() -> None:
    ahead: dict[str, Any] = {"behind": -0.02, "behind_interval": (-0.03, -0.01), "behind_p": 0.01}
    text = verdict_of(made_row("lucky", mAP=0.84, validation=0.5, seconds=1.0, **BETTER, **ahead), made_best("asl"))
    assert "lucky (own head)." in line(text, "Significantly better than it on test")
    assert "All other" not in text
    assert line(text, "Recommended: asl (own head)")


def test_better_head_represents_a_method() -> None:
    own = made_row("asl", "own head", 0.81, best_head=False, gain_p=None, behind_p=None)
    assert "asl (re-probed), the only method" in verdict_of(own, made_best("asl", "re-probed"))
    probed = made_row("asl", "re-probed", 0.81, best_head=False, gain_p=None, behind_p=None)
    assert "asl (own head), the only method" in verdict_of(probed, made_best("asl", "own head"))
    assert "no p-value" not in verdict_of(probed, made_best("asl", "own head"))


# Ties and cost.


def test_cheapest_tied_method_that_beats_the_probe_is_recommended() -> None:
    text = verdict_of(
        made_best("asl", seconds=1000.0),
        made_row("bce", mAP=0.81, seconds=700.0, **BETTER),
        made_row("focal", mAP=0.80, seconds=600.0, **BETTER),
        made_row("fast", mAP=0.79, seconds=10.0),
        made_row("far", mAP=0.78, seconds=5.0, **BETTER, **FAR),
    )
    tie = line(text, "Not significantly different from it on test")
    assert tie.endswith(": bce (own head); focal (own head); fast (own head).")
    recommended = line(text, "Recommended: focal (own head)")
    assert "10 min of training instead of 17 min" in recommended
    assert "up to 0.7 points" in recommended


@pytest.mark.parametrize(("seconds", "recommended"), [(750.0, "bce"), (751.0, "asl"), (2000.0, "asl")])
def test_slightly_cheaper_method_is_not_recommended(seconds: float, recommended: str) -> None:
    text = verdict_of(made_best("asl", seconds=1000.0), made_row("bce", mAP=0.81, seconds=seconds, **BETTER))
    assert line(text, f"Recommended: {recommended} (own head)")


def test_tie_without_an_interval_has_no_bound_on_the_loss() -> None:
    tie = made_row("bce", mAP=0.81, seconds=1.0, **BETTER, behind_interval=None)
    assert line(verdict_of(made_best("asl"), tie), "Recommended: bce").endswith("instead of 10 min.")


def test_zero_training_time_is_accepted() -> None:
    assert line(verdict_of(made_best("asl", seconds=0.0)), "Recommended: asl (own head), 0.0 s")


# Validation and test disagree.


def test_nothing_is_recommended_if_the_best_on_validation_does_not_beat_the_probe() -> None:
    text = verdict_of(made_row("asl", mAP=0.83), made_row("bce", mAP=0.80, **BETTER))
    better = line(text, "Significantly better than the linear probe")
    assert "(mAP 79.0 [77.8, 80.1] (chance 7.1), AUROC 94.0 on 4,952 test images): bce (own head)" in better
    assert "best method on validation is asl (own head), with a gain of +0.2 [−0.4, +0.8] points" in text
    assert "does not settle" in text
    assert "Recommended" not in text


def test_best_method_behind_the_probe_on_validation_is_a_limitation() -> None:
    assert "not ahead of the probe (−1.0 points)" in verdict_of(made_best(validation=0.78))
    assert "not ahead" not in verdict_of(made_best(validation=0.80))


# Missing p-values.


def test_nothing_is_claimed_without_p_values() -> None:
    text = verdict_of(
        made_row("asl", gain=0.1, gain_p=None, behind_p=None), made_row("bce", gain_p=None, behind_p=None)
    )
    assert text.startswith("Without p-values")
    assert not any(word in text for word in ("enough", "Recommended", "worse", "significant"))


def test_method_without_a_p_value_is_listed() -> None:
    lost: dict[str, Any] = dict.fromkeys(("gain_interval", "gain_p", "behind_interval", "behind_p"))
    text = verdict_of(made_row("asl", mAP=0.81), made_row("bce", **lost))
    assert text.startswith("The comparison is inconclusive")
    assert "no confidence interval is available for bce (own head)." in text
    assert "More test images" not in text
    assert "corrected for" not in text  # there is one p-value
    assert "bce (own head)." in line(text, "Not compared with the linear probe")
    text = verdict_of(made_best("asl"), made_row("bce", mAP=0.81, gain_p=None, behind_p=None))
    assert "bce (own head)." in line(text, "Not compared with it")
    assert "All other" not in text


def test_comparison_without_methods() -> None:
    text = verdict_of(left_out=("kmcl diverged at step 3.",))
    assert text.startswith("There is nothing to compare")
    assert line(text, "Left out: kmcl diverged at step 3.")


# Limitations.


@pytest.mark.parametrize(
    ("limitation", "limited", "sufficient"),
    [
        ("only one seed", {"seeds": 1}, {"seeds": 2}),
        ("untuned", {"trials": 1}, {"trials": 2}),
        ("only 499 test images", {"test_images": 499}, {"test_images": 500}),
        ("There is only 1 test image.", {"test_images": 1}, {"test_images": 500}),
        ("only 29 groups", {"groups": 29}, {"groups": 30}),
        ("There is only 1 group of test images.", {"groups": 1}, {"groups": 30}),
    ],
)
@pytest.mark.parametrize("row", [made_best(), made_row()])
def test_limitations_of_the_comparison(
    row: Any, limitation: str, limited: dict[str, Any], sufficient: dict[str, Any]
) -> None:
    assert limitation in line(verdict_of(row, **limited), "Limitations: ")
    assert not line(verdict_of(row, **sufficient), "Limitations: ")


@pytest.mark.parametrize(
    ("limitation", "limited", "sufficient"),
    [
        ("3.0 points wide", {"gain_interval": (0.015, 0.045)}, {"gain_interval": (0.016, 0.045)}),
        ("varies by ± 3.1 points", {"over_seeds": 0.031}, {"over_seeds": 0.029}),
        ("Partly reconstructed", {"fidelity": "partly reconstructed"}, {"fidelity": "own"}),
        (
            "Partly reconstructed",
            {"fidelity": "partly reconstructed, our settings"},
            {"fidelity": "paper, our settings"},
        ),
        ("Fewer than 3 seeds: asl (own head), 2.", {"seeds": 2}, {"seeds": 3}),
    ],
)
def test_limitations_of_a_method(limitation: str, limited: dict[str, Any], sufficient: dict[str, Any]) -> None:
    assert limitation in line(verdict_of(made_best(**limited)), "Limitations: ")
    assert not line(verdict_of(made_best(**sufficient)), "Limitations: ")


def test_interval_that_excludes_zero_with_a_large_p_is_explained() -> None:
    text = verdict_of(made_row(gain_interval=(0.001, 0.02), gain_p=0.08))
    assert "only p is corrected" in line(text, "Limitations: ")


def test_note_lists_the_methods_that_it_applies_to() -> None:
    pla, other = made_best("pla", note="it ranks a set"), made_row("pla:paper", note="it ranks a set")
    probed = made_row("bce", "own head", note="ignored", best_head=False)
    text = comparison_verdict(made_comparison(made_frozen(), pla, other, probed))
    assert "Note on pla (own head); pla:paper (own head): it ranks a set." in text.splitlines()
    assert text.count("Note on") == 1


def test_methods_left_out_are_listed_last() -> None:
    assert comparison_verdict(demo_comparison()).splitlines()[-1] == (
        "Left out: kmcl diverged at step 40 with each of its learning rates."
    )


def test_external_method_is_treated_like_any_other() -> None:
    text = verdict_of(made_best("own_loss.py:my_loss", fidelity="own", method="own_loss.py:my_loss"))
    assert text.startswith("own_loss.py:my_loss (own head), the only method, is significantly better")


def test_verdict_of_the_demo_comparison() -> None:
    expected = {
        "Not significantly different from it on test": "csra (re-probed); probmcl (re-probed); bce (own head); "
        "own_loss.py:my_loss & more (own head); ml_gcn (own head).",
        "Recommended": "asl (own head), 10 min of training.",
        "Significantly worse than the linear probe": "probmcl:paper (re-probed), −2.1 [−3.4, −0.9] points.",
        "Not significantly different from the linear probe": "ml_gcn (own head).",
    }
    lines = comparison_verdict(demo_comparison()).splitlines()[1:6]
    assert lines[:4] == [f"{start}: {names}" for start, names in expected.items()]
    assert lines[4].startswith("Limitations: The methods are untuned")
    assert lines[4].endswith(": ml_gcn (own head).")
