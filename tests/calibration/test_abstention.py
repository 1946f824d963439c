from dataclasses import replace

import numpy as np
import pytest

from helpers.scores import flip_unknown, simulated_rows
from probmcl.calibration.abstention import Limits, abstention_limits
from probmcl.calibration.thresholds import accepted_cuts, balanced_threshold
from probmcl.errors import OptionError
from probmcl.evaluation.scores import ScoredRows


def limits(rows: ScoredRows, risk: float = 0.1) -> Limits:
    return abstention_limits(risk, rows.scores, rows.labels, rows.known)


def separable(images: int, boundary: float = 0.5) -> ScoredRows:
    """Return one class with evenly spaced scores, which is present above the boundary."""
    scores = (np.arange(images)[:, None] + 0.5) / images
    return ScoredRows(scores, (scores > boundary).astype(np.float32), np.ones_like(scores, dtype=np.bool_))


@pytest.mark.parametrize("risk", [0.05, 0.1, 0.2])
def test_limits_match_a_slow_loop(risk: float) -> None:
    rows = simulated_rows(500, 6, slope=[0.3, 1.0, 2.0, 4.0, 0.7, 0.7], intercept=[0.0, 0.0, 0.0, 0.0, -6.0, 6.0])
    result = limits(rows, risk)
    kinds = set()
    for column, known in enumerate(rows.known.T):
        p, positive = rows.scores[known, column], rows.labels[known, column] == 1
        middle = balanced_threshold(p)
        yes, no = accepted_cuts(p, ~positive, risk), accepted_cuts(1 - p, positive, risk)
        upper = np.inf if yes is None or middle > yes[1] else max(yes[0], middle)
        lower = -np.inf if no is None or 1 - middle > no[1] else min(1 - no[0], middle)
        assert (result.no[column], result.yes[column]) == (lower, upper)
        kinds.add((yes is None, no is None, lower < upper))
    assert len(kinds) > 1


def test_error_rates_on_the_held_out_images_are_at_most_the_risk() -> None:
    rows = simulated_rows(2000, 3, slope=1.5)
    no, yes = limits(rows)
    positive, decided_yes, decided_no = rows.labels == 1, (rows.scores > yes) & rows.known, rows.scores <= no
    assert ((decided_yes & ~positive).sum(0) <= 0.1 * decided_yes.sum(0)).all()
    assert ((decided_no & positive & rows.known).sum(0) <= 0.1 * (decided_no & rows.known).sum(0)).all()
    assert (no < yes).all()
    assert decided_yes.any(0).all()
    assert decided_no.any(0).all()


def test_a_class_that_both_bounds_allow_is_decided_at_the_balanced_threshold() -> None:
    no, yes = limits(separable(400))
    assert no == yes == balanced_threshold(separable(400).scores[:, 0])


def test_a_probable_class_is_not_a_no_because_it_is_rare() -> None:
    """Saying no to every image would be wrong in 5 % of them, which is less than the risk of 10 %."""
    rows = separable(400, boundary=0.95)
    rows = replace(rows, scores=rows.scores**12)  # about as many positives are expected as there are
    no, yes = limits(rows)
    assert yes == np.inf  # too few positives
    assert no == balanced_threshold(rows.scores[:, 0])
    assert rows.labels[rows.scores <= no].mean() < 0.03


@pytest.mark.parametrize(("images", "decided"), [(56, False), (58, True)])
def test_limits_are_infinite_with_too_few_examples(images: int, decided: bool) -> None:
    """With a risk of 10 %, each decision needs 29 examples without an error."""
    no, yes = limits(separable(images))
    assert (np.isfinite(no).item(), np.isfinite(yes).item()) == (decided, decided)
    assert decided or (no.item(), yes.item()) == (-np.inf, np.inf)


def test_class_without_known_labels_is_never_decided() -> None:
    rows = simulated_rows(100, unknown=1.0)
    assert limits(rows).no.tolist() == [-np.inf] * 4
    assert limits(rows).yes.tolist() == [np.inf] * 4


def test_unknown_labels_are_ignored() -> None:
    rows = simulated_rows(300, unknown=0.4)
    np.testing.assert_array_equal(limits(flip_unknown(rows)), limits(rows))
    assert np.isfinite(limits(rows)).any()


@pytest.mark.parametrize("risk", [0.0, 1.0, -0.1, 5.0, float("nan")])
def test_risk_outside_0_and_1_is_refused(risk: float) -> None:
    with pytest.raises(OptionError, match=f"^`abstain={risk:g}` must be an error rate"):
        limits(separable(10), risk)


def test_rounding_does_not_keep_a_separable_class_from_a_yes() -> None:
    generator = np.random.default_rng(0)
    for highest in np.linspace(0.1, 0.5, 30):
        scores = np.concatenate([generator.random(100) * highest, 1 - generator.random(100) * 0.1])[:, None]
        rows = ScoredRows(scores, (scores > 0.7).astype(np.float32), np.ones_like(scores, dtype=np.bool_))
        no, yes = limits(rows)
        assert np.isfinite(yes).all()
        assert no <= yes
