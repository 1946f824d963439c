"""The verdict of a report: what is measured of a run, a table of rules, and what the rules say about it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from probmcl.audit.findings import MIN_TRAIN_LABELS
from probmcl.evaluation.reliability import bin_of
from probmcl.report.run_data import RunData, SplitScores
from probmcl.store.report import ClassScores, Decision, Headline, RuleCheck, Status, Verdict
from probmcl.tables import percent, points

DECISIONS: Mapping[Status, Decision] = {"ok": "ready to use", "care": "use with care", "stop": "do not use"}
ORDER: Sequence[Status] = ("ok", "care", "stop")

WEAK_F1 = 0.5
"""A class with a lower F1 is weak."""


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
        """Compare a value with the limits. A quantity that could not be measured needs care.

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
        if limit is None:
            return False
        return value < limit if self.worse == "below" else value > limit

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
        return RuleCheck(
            key=self.key,
            title=self.title,
            value=value,
            shown="not measured" if value is None else self.show(value),
            limits=self.limits,
            status=self.status(value),
            reason=self.reason,
            advice=self.advice,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "val_images",
        "validation images",
        "below",
        200.0,
        50.0,
        _count,
        "The model, its probabilities and its thresholds were chosen on few validation images.",
        "Label more validation images.",
    ),
    Rule(
        "test_images",
        "test images",
        "below",
        500.0,
        50.0,
        _count,
        "With few test images, all scores on this page are uncertain.",
        "Label more test images.",
    ),
    Rule(
        "leaks",
        "leaks between splits that were allowed",
        "above",
        0.0,
        None,
        _count,
        "Images or groups in train are also in validation or test, so the scores are too high.",
        "Remove the copies, or keep each group in one split, and train again.",
    ),
    Rule(
        "seen_before",
        "warnings that the initial weights have seen validation or test images",
        "above",
        0.0,
        None,
        _count,
        "The run that the weights come from was trained on images that are used for scoring here.",
        "Use the same split as that run, or other weights.",
    ),
    Rule(
        "above_chance",
        "margin over chance, at the lower ends of the mAP and AUROC intervals",
        "below",
        0.05,
        0.0,
        _points,
        "The model ranks images hardly better than chance.",
        "Check the labels, or add images.",
    ),
    Rule(
        "mean_f1",
        "mean F1 of the classes at their thresholds",
        "below",
        0.6,
        0.2,
        _share,
        "Many decisions are wrong or missing.",
        "Train longer, with a larger encoder or on more images; look at the confident mistakes first.",
    ),
    Rule(
        "weak_classes",
        "classes with an F1 below 50 %",
        "above",
        0.1,
        None,
        _share,
        "More than half of the decisions about these classes are wrong or missing.",
        "Add images of the classes at the top of the table, or do not use their predictions.",
    ),
    Rule(
        "never_correct",
        "classes with test positives that are never predicted correctly",
        "above",
        0.0,
        0.25,
        _share,
        "The model never finds a positive of these classes at its thresholds.",
        "Add images of these classes, or choose thresholds for a higher recall.",
    ),
    Rule(
        "not_scored",
        "classes that cannot be scored",
        "above",
        0.0,
        0.5,
        _share,
        "The test split does not have both a positive and a negative of these classes.",
        "Add test images of these classes; until then, do not rely on their predictions.",
    ),
    Rule(
        "rare",
        "classes with fewer than 10 training positives",
        "above",
        0.0,
        0.5,
        _share,
        "The model has seen few examples of these classes.",
        "Add training images of these classes.",
    ),
    Rule(
        "gain_low",
        "gain in test mAP over the frozen probe, lower end of its interval",
        "below",
        0.0,
        None,
        _points,
        "The gain over a linear probe on the frozen encoder may be noise, so training may not have helped.",
        "Use the frozen probe, which is simpler, or train longer or on more images.",
    ),
    Rule(
        "gain_high",
        "gain in test mAP over the frozen probe, upper end of its interval",
        "below",
        None,
        0.0,
        _points,
        "On test images, the model is worse than a linear probe on the frozen encoder.",
        "Train again with only the probe, or with more validation images.",
    ),
    Rule(
        "calibration_error",
        "mean calibration error of the classes, beyond sampling noise",
        "above",
        0.05,
        0.15,
        lambda error: f"{error:.3f}",
        "The probabilities do not agree with the observed frequencies.",
        "Calibrate the run on more images, or on images from the site that uses it.",
    ),
    Rule(
        "val_test",
        "difference between validation mAP and test mAP",
        "above",
        0.05,
        0.15,
        lambda difference: f"{percent(difference)} points",
        "Validation and test images differ, or the choice on validation was lucky.",
        "Check how the splits were made; images from one source belong in one group.",
    ),
    Rule(
        "uncertain_thresholds",
        "classes whose threshold rests on fewer than 10 positives",
        "above",
        0.0,
        0.5,
        _share,
        "The thresholds of these classes are uncertain.",
        "Label more positives of these classes, and calibrate the run again.",
    ),
    Rule(
        "not_promised",
        "classes for which the threshold rule gives no guarantee",
        "above",
        0.0,
        None,
        _share,
        "These classes have too few examples for the requested precision or recall.",
        "Label more images, or choose a weaker requirement.",
    ),
    Rule(
        "unknown_labels",
        "unknown labels in the test split",
        "above",
        0.2,
        0.8,
        _share,
        "The scores cover only the known labels.",
        "Complete the labels of the test images.",
    ),
)
"""The rules. Each has a test, and the documentation lists them."""


READY = "Use the model on images like those in the test split, and repeat the evaluation when the images change."


def judge(measured: Mapping[str, float | None]) -> Verdict:
    """Apply all rules to the measured quantities; rules without a quantity do not apply and are left out.

    >>> judge({"val_images": 1000.0, "test_images": 60.0}).decision
    'use with care'
    """
    checks = [rule.check(measured[rule.key]) for rule in RULES if rule.key in measured]
    problems = [check for check in checks if check.status != "ok"]
    problems.sort(key=lambda check: -ORDER.index(check.status))
    status = problems[0].status if problems else "ok"
    return Verdict(
        status=status,
        decision=DECISIONS[status],
        reasons=[_reason(check) for check in problems],
        next_step=problems[0].advice if problems else READY,
        checks=checks,
    )


def _reason(check: RuleCheck) -> str:
    return f"{check.reason.rstrip('.')} ({check.title}: {check.shown})."


def measurements(run: RunData, headline: Headline, classes: Sequence[ClassScores]) -> dict[str, float | None]:
    """Return the quantities that the rules of the verdict apply to; those that do not apply are left out."""
    warnings = [warning.kind for warning in run.metadata.warnings]
    tested = [row for row in classes if row.test]
    measured: dict[str, float | None] = {
        "val_images": float(run.images["val"]),
        "test_images": float(run.images["test"]),
        "leaks": float(warnings.count("leak")),
        "seen_before": float(warnings.count("seen_before")),
        "above_chance": _above_chance(headline),
        "mean_f1": headline.macro_F1,
        "weak_classes": _fraction([(row.f1 or 0.0) < WEAK_F1 for row in tested]),
        "never_correct": _fraction([row.true_positives == 0 for row in tested]),
        "not_scored": 1 - headline.classes_scored / headline.classes,
        "rare": _fraction([row.train < MIN_TRAIN_LABELS for row in classes]),
        "calibration_error": _error_beyond_noise(run.test, headline.calibration_error),
        "val_test": _validation_gap(run, headline),
        "unknown_labels": float(1 - run.test.known.mean()),
    }
    if headline.frozen is not None:
        low, high = headline.frozen.gain_interval or (None, None)
        measured["gain_low"] = low
        measured["gain_high"] = high
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
    """Return the calibration error minus its expectation for perfectly calibrated probabilities.

    With few images, the calibration error is large even then: a bin with n images has an expected distance of
    √(2/π) · √(Σ p (1 − p)) / n.
    """
    if error is None:
        return None
    noise = []
    for column in range(test.known.shape[1]):
        p = test.probabilities[test.known[:, column], column]
        if len(p):
            variance = np.bincount(bin_of(p), weights=p * (1 - p))
            deviations = np.sqrt(variance).sum()
            noise.append(float(np.sqrt(2 / np.pi) * deviations / len(p)))
    return max(0.0, error - float(np.mean(noise)))


def _above_chance(headline: Headline) -> float | None:
    """Return the smaller margin over chance, of mAP and of AUROC, at the lower ends of their intervals."""
    if headline.mAP_interval is None or headline.macro_auroc_interval is None or headline.chance is None:
        return None
    margin_of_map = headline.mAP_interval[0] - headline.chance
    margin_of_auroc = headline.macro_auroc_interval[0] - 0.5
    return float(min(margin_of_map, margin_of_auroc))


def _fraction(flags: Sequence[bool]) -> float:
    return sum(flags) / max(len(flags), 1)
