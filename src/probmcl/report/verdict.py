"""The verdict of a report: what is measured of a run, a table of rules, and what the rules say about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from numpy import ndarray

from probmcl.audit.findings import MIN_TRAIN_LABELS
from probmcl.evaluation.reliability import bin_of
from probmcl.report.run_data import RunData, SplitScores
from probmcl.store.report import ClassScores, Decision, Headline, RuleCheck, Status, Verdict
from probmcl.tables import percent, points

DECISIONS: Mapping[Status, Decision] = {"ok": "ready to use", "care": "use with care", "stop": "do not use"}
ORDER: Sequence[Status] = ("ok", "care", "stop")

WEAK_F1 = 0.5
"""A class with a lower F1 is weak."""

READY = "Use the model on images like those in the test split, and repeat the evaluation when the images change."
"""The next step if no rule finds a problem."""


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _share(share: float) -> str:
    return "0 %" if share == 0 else f"{percent(share)} %"


def _points(difference: float) -> str:
    return "0 points" if difference == 0 else f"{points(difference)} points"


@dataclass(frozen=True)
class Rule:
    """One row of the table of rules.

    Attributes:
        key: name of the measured quantity.
        title: the quantity in words.
        worse: the direction in which the quantity becomes a problem.
        care: beyond this limit, the verdict is at most "use with care".
        stop: beyond this limit, the verdict is "do not use"; None if the quantity alone never is a reason.
        show: formats the quantity and its limits.
        reason: why it matters.
        advice: the next step.
    """

    key: str
    title: str
    worse: Literal["below", "above"]
    care: float | None
    stop: float | None
    show: Callable[[float], str]
    reason: str
    advice: str

    def status(self, value: float | None) -> Status:
        """Compare a value with the limits for "stop" and for "care", if the rule has them.

        None, a quantity that could not be measured, needs care if the rule has a limit for "care".

        >>> [RULES[0].status(value) for value in (30.0, 150.0, 200.0, None)]
        ['stop', 'care', 'ok', 'care']
        """
        if value is None:
            return "care" if self.care is not None else "ok"
        if self._is_beyond(self.stop, value):
            return "stop"
        if self._is_beyond(self.care, value):
            return "care"
        return "ok"

    def _is_beyond(self, limit: float | None, value: float) -> bool:
        """Return whether a value is worse than a limit. A rule without the limit is never broken."""
        if limit is None:
            return False
        if self.worse == "below":
            return value < limit
        return value > limit

    @property
    def limits(self) -> str:
        """The limits in words."""
        parts = []
        for name, limit in (("care", self.care), ("do not use", self.stop)):
            if limit is not None:
                parts.append(f"{name}: {self.worse} {self.show(limit)}")
        return "; ".join(parts)

    def check(self, value: float | None) -> RuleCheck:
        """Apply the rule to a value."""
        shown = "not measured" if value is None else self.show(value)
        return RuleCheck(
            key=self.key,
            title=self.title,
            value=value,
            shown=shown,
            limits=self.limits,
            status=self.status(value),
            reason=self.reason,
            advice=self.advice,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        key="val_images",
        title="validation images",
        worse="below",
        care=200.0,
        stop=50.0,
        show=_count,
        reason="The model, its probabilities and its thresholds were chosen on few validation images.",
        advice="Label more validation images.",
    ),
    Rule(
        key="test_images",
        title="test images",
        worse="below",
        care=500.0,
        stop=50.0,
        show=_count,
        reason="With few test images, all scores on this page are uncertain.",
        advice="Label more test images.",
    ),
    Rule(
        key="leaks",
        title="leaks between splits that were allowed",
        worse="above",
        care=0.0,
        stop=None,
        show=_count,
        reason="Images or groups in train are also in validation or test, so the scores are too high.",
        advice="Remove the copies, or keep each group in one split, and train again.",
    ),
    Rule(
        key="seen_before",
        title="warnings that the initial weights have seen validation or test images",
        worse="above",
        care=0.0,
        stop=None,
        show=_count,
        reason="The run that the weights come from was trained on images that are used for scoring here.",
        advice="Use the same split as that run, or other weights.",
    ),
    Rule(
        key="above_chance",
        title="margin over chance, at the lower ends of the mAP and AUROC intervals",
        worse="below",
        care=0.05,
        stop=0.0,
        show=_points,
        reason="The model ranks images hardly better than chance.",
        advice="Check the labels, or add images.",
    ),
    Rule(
        key="mean_f1",
        title="mean F1 of the classes at their thresholds",
        worse="below",
        care=0.6,
        stop=0.2,
        show=_share,
        reason="Many decisions are wrong or missing.",
        advice="Train longer, with a larger encoder or on more images; look at the confident mistakes first.",
    ),
    Rule(
        key="weak_classes",
        title="classes with an F1 below 50 %",
        worse="above",
        care=0.1,
        stop=None,
        show=_share,
        reason="More than half of the decisions about these classes are wrong or missing.",
        advice="Add images of the classes at the top of the table, or do not use their predictions.",
    ),
    Rule(
        key="never_correct",
        title="classes with test positives that are never predicted correctly",
        worse="above",
        care=0.0,
        stop=0.25,
        show=_share,
        reason="The model never finds a positive of these classes at its thresholds.",
        advice="Add images of these classes, or choose thresholds for a higher recall.",
    ),
    Rule(
        key="not_scored",
        title="classes that cannot be scored",
        worse="above",
        care=0.0,
        stop=0.5,
        show=_share,
        reason="The test split does not have both a positive and a negative of these classes.",
        advice="Add test images of these classes; until then, do not rely on their predictions.",
    ),
    Rule(
        key="rare",
        title="classes with fewer than 10 training positives",
        worse="above",
        care=0.0,
        stop=0.5,
        show=_share,
        reason="The model has seen few examples of these classes.",
        advice="Add training images of these classes.",
    ),
    Rule(
        key="gain_low",
        title="gain in test mAP over the frozen probe, lower end of its interval",
        worse="below",
        care=0.0,
        stop=None,
        show=_points,
        reason="The gain over a linear probe on the frozen encoder may be noise, so training may not have helped.",
        advice="Use the frozen probe, which is simpler, or train longer or on more images.",
    ),
    Rule(
        key="gain_high",
        title="gain in test mAP over the frozen probe, upper end of its interval",
        worse="below",
        care=None,
        stop=0.0,
        show=_points,
        reason="On test images, the model is worse than a linear probe on the frozen encoder.",
        advice="Train again with only the probe, or with more validation images.",
    ),
    Rule(
        key="calibration_error",
        title="mean calibration error of the classes, beyond sampling noise",
        worse="above",
        care=0.05,
        stop=0.15,
        show=lambda error: f"{error:.3f}",
        reason="The probabilities do not agree with the observed frequencies.",
        advice="Calibrate the run on more images, or on images from the site that uses it.",
    ),
    Rule(
        key="val_test",
        title="difference between validation mAP and test mAP",
        worse="above",
        care=0.05,
        stop=0.15,
        show=lambda difference: f"{percent(difference)} points",
        reason="Validation and test images differ, or the choice on validation was lucky.",
        advice="Check how the splits were made; images from one source belong in one group.",
    ),
    Rule(
        key="uncertain_thresholds",
        title="classes whose threshold rests on fewer than 10 positives",
        worse="above",
        care=0.0,
        stop=0.5,
        show=_share,
        reason="The thresholds of these classes are uncertain.",
        advice="Label more positives of these classes, and calibrate the run again.",
    ),
    Rule(
        key="not_promised",
        title="classes for which the threshold rule gives no guarantee",
        worse="above",
        care=0.0,
        stop=None,
        show=_share,
        reason="These classes have too few examples for the requested precision or recall.",
        advice="Label more images, or choose a weaker requirement.",
    ),
    Rule(
        key="unknown_labels",
        title="unknown labels in the test split",
        worse="above",
        care=0.2,
        stop=0.8,
        show=_share,
        reason="The scores cover only the known labels.",
        advice="Complete the labels of the test images.",
    ),
)
"""The rules. Each has a test, and the documentation lists them."""


def judge(measured: Mapping[str, float | None]) -> Verdict:
    """Apply all rules to the measured quantities; rules without a quantity do not apply and are left out.

    >>> judge({"val_images": 1000.0, "test_images": 60.0}).decision
    'use with care'
    """
    checks = [rule.check(measured[rule.key]) for rule in RULES if rule.key in measured]
    problems = [check for check in checks if check.status != "ok"]
    most_serious_first = sorted(problems, key=lambda check: -ORDER.index(check.status))
    status: Status = "ok"
    next_step = READY
    if problems:
        worst = most_serious_first[0]
        status = worst.status
        next_step = worst.advice
    return Verdict(
        status=status,
        decision=DECISIONS[status],
        reasons=[_reason(check) for check in most_serious_first],
        next_step=next_step,
        checks=checks,
    )


def _reason(check: RuleCheck) -> str:
    """Return the reason of a rule as a sentence that ends with the measured quantity in parentheses."""
    reason = check.reason.rstrip(".")
    return f"{reason} ({check.title}: {check.shown})."


def measurements(run: RunData, headline: Headline, classes: Sequence[ClassScores]) -> dict[str, float | None]:
    """Return the quantities that the rules of the verdict apply to; those that do not apply are left out.

    None is a quantity that applies, but could not be measured.
    """
    warnings = [warning.kind for warning in run.metadata.warnings]
    with_test_positives = [row for row in classes if row.test]
    weak = [row for row in with_test_positives if (row.f1 or 0.0) < WEAK_F1]
    never_correct = [row for row in with_test_positives if row.true_positives == 0]
    rare = [row for row in classes if row.train < MIN_TRAIN_LABELS]
    scored = headline.classes_scored / headline.classes
    known_labels = run.test.known.mean()
    measured: dict[str, float | None] = {
        "val_images": float(run.images["val"]),
        "test_images": float(run.images["test"]),
        "leaks": float(warnings.count("leak")),
        "seen_before": float(warnings.count("seen_before")),
        "above_chance": _above_chance(headline),
        "mean_f1": headline.macro_F1,
        "weak_classes": _fraction(weak, with_test_positives),
        "never_correct": _fraction(never_correct, with_test_positives),
        "not_scored": 1 - scored,
        "rare": _fraction(rare, classes),
        "calibration_error": _error_beyond_noise(run.test, headline.calibration_error),
        "val_test": _validation_gap(run, headline),
        "unknown_labels": float(1 - known_labels),
    }
    if headline.frozen is not None:
        # Without a reliable interval, both ends are None: the gain applies, but is not measured.
        gain_low, gain_high = headline.frozen.gain_interval or (None, None)
        measured["gain_low"] = gain_low
        measured["gain_high"] = gain_high
    if run.calibration is not None:
        measured["uncertain_thresholds"] = len(run.calibration.few_positives) / len(classes)
        measured["not_promised"] = len(run.calibration.not_promised) / len(classes)
    return measured


def _validation_gap(run: RunData, headline: Headline) -> float | None:
    """Return the distance between the validation mAP of the kept candidate and the test mAP."""
    kept = next(entry for entry in run.metadata.candidates if entry.name == run.kept)
    if kept.validation_mAP is None or headline.mAP is None:
        return None
    return abs(kept.validation_mAP - headline.mAP)


def _error_beyond_noise(test: SplitScores, error: float | None) -> float | None:
    """Return the mean calibration error of the classes minus the part that sampling noise explains.

    That part is the error expected of perfectly calibrated probabilities. With few images, it is large.
    """
    if error is None:
        return None
    noise = []
    for column in range(test.known.shape[1]):
        known = test.known[:, column]
        if known.any():
            noise.append(_expected_error(test.probabilities[known, column]))
    return max(0.0, error - float(np.mean(noise)))


def _expected_error(p: Float64[ndarray, " K"]) -> float:
    """Return the calibration error that is expected of a class with perfectly calibrated probabilities.

        expected error = Σ_b √(2/π) √(Σ p (1 − p) in bin b) / n

    The positives of a bin have the variance Σ p (1 − p), and a normal variable with the standard deviation σ has the
    mean distance √(2/π) σ from its mean.
    """
    variance = np.bincount(bin_of(p), weights=p * (1 - p))
    deviations = np.sqrt(variance).sum()
    return float(np.sqrt(2 / np.pi) * deviations / len(p))


def _above_chance(headline: Headline) -> float | None:
    """Return the smaller margin over chance, of mAP and of AUROC, at the lower ends of their intervals."""
    if headline.mAP_interval is None or headline.macro_auroc_interval is None or headline.chance is None:
        return None
    margin_of_map = headline.mAP_interval[0] - headline.chance
    margin_of_auroc = headline.macro_auroc_interval[0] - 0.5
    return float(min(margin_of_map, margin_of_auroc))


def _fraction(part: Sequence[ClassScores], whole: Sequence[ClassScores]) -> float:
    """Return the fraction of some classes that belong to a part of them; 0 if there are no classes."""
    return len(part) / max(len(whole), 1)
