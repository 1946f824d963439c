"""Maps from scores to calibrated probabilities, as stored in `calibration.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from jaxtyping import Float, Float64, Int
from scipy.special import expit

from probmcl.calibration.sigmoid import logits
from probmcl.data.hierarchy import cap_at_parents
from probmcl.errors import LISTED, check_range, counted, listing
from probmcl.store.files import CALIBRATION

MIN_IMAGES = 50
"""With fewer images, all classes have the pooled sigmoid."""

MIN_POSITIVES = 10
"""Classes with fewer held-out positives are flagged, because their thresholds are uncertain."""

STEEPEST = 20.0
"""Logits above it are compressed, since a sigmoid of more than 37 would be exactly 1."""

LARGEST = 1e100
"""Largest slope and intercept; fitted ones are far smaller, and larger ones could overflow."""

Kind = Literal["sigmoid", "isotonic", "none"]

HeldOutName = Literal["val", "out_of_fold", "calibration"]
"""The name of the scores that a calibration is fitted to, in predictions/: those of the validation images, of other
folds, or of images from another site."""


@dataclass(frozen=True)
class ClassCalibration:
    """The calibration and the threshold of one class.

    Attributes:
        kind: how scores become probabilities; `none` leaves them unchanged.
        positives: known positives among the held-out images.
        negatives: known negatives among them.
        log_loss_before: mean log loss of the raw scores on the held-out images; None if no label is known.
        log_loss_after: the same after calibration, cross-validated; None without several groups of images.
        threshold: the class is predicted if its probability is above this value.
        promised: whether the rule's guarantee holds for this class; None if the rule gives none.
        slope: with kind `sigmoid`, the probability is sigmoid(slope · z + intercept) for a score with logit z.
        intercept: see slope.
        logits: with kind `isotonic`, the probability is interpolated between these logits of the score.
        probabilities: the probabilities at these logits.
    """

    kind: Kind
    positives: int
    negatives: int
    log_loss_before: float | None
    log_loss_after: float | None
    threshold: float = 0.5
    promised: bool | None = None
    slope: float = 1.0
    intercept: float = 0.0
    logits: tuple[float, ...] = ()
    probabilities: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_range(above=0, at_most=LARGEST, slope=self.slope)
        check_range(at_least=-LARGEST, at_most=LARGEST, intercept=self.intercept)
        check_range(at_least=0, at_most=1, threshold=self.threshold)
        if not np.isfinite((*self.logits, *self.probabilities)).all():
            raise ValueError("the parameters of a calibration must be finite numbers")
        if len(self.logits) != len(self.probabilities) or (self.kind == "isotonic") != bool(self.logits):
            raise ValueError("an isotonic calibration needs as many logits as probabilities, and others have none")
        if (np.diff(self.logits) < 0).any() or (np.diff(self.probabilities) < 0).any():
            raise ValueError("the logits and probabilities of an isotonic calibration must be in ascending order")
        if self.probabilities:
            check_range(at_least=0, at_most=1, first=self.probabilities[0], last=self.probabilities[-1])


@dataclass(frozen=True)
class Calibration:
    """Calibrated probabilities and thresholds for all classes of a model.

    Attributes:
        kind: the requested kind; with `isotonic`, classes with few positives have a sigmoid.
        thresholds: the rule that chose the thresholds, such as `balanced` or `recall:0.9`.
        predictions: name of the file in predictions/ with the held-out scores, without its suffix.
        images: number of held-out images.
        strength: strength of the prior toward the pooled sigmoid; None if all classes have the pooled sigmoid.
        classes: the calibration of each class, in the order of the scores.
    """

    kind: Kind
    thresholds: str
    predictions: HeldOutName
    images: int
    strength: float | None
    classes: Mapping[str, ClassCalibration]

    def probabilities(
        self, scores: Float[np.ndarray, "N C"], parents: Int[np.ndarray, "C"]
    ) -> Float64[np.ndarray, "N C"]:
        """Return the calibrated probabilities; that of a class is capped by its parent's (−1: it has no parent).

        They are in double precision, and above 1 − 2e-9 they approach 1 more slowly than a sigmoid. Otherwise,
        different scores could get the same probability.

        >>> cat = ClassCalibration("sigmoid", 10, 90, 0.5, 0.2, slope=2.0, intercept=-1.0)
        >>> calibration = Calibration("sigmoid", "balanced", "val", 100, 1.0, {"cat": cat})
        >>> calibration.probabilities(np.array([[0.5]]), np.array([-1])).round(4)
        array([[0.2689]])
        """
        z = logits(scores)
        slope, intercept = self._parameters
        probabilities = _sigmoid(z * slope + intercept)
        for column, fitted in enumerate(self.classes.values()):
            if fitted.kind == "isotonic":
                probabilities[:, column] = np.interp(z[:, column], fitted.logits, fitted.probabilities)
            elif fitted.kind == "none":
                probabilities[:, column] = scores[:, column]
        return cap_at_parents(probabilities, parents)

    @cached_property
    def _parameters(self) -> Float64[np.ndarray, "2 C"]:
        return np.array([[fitted.slope, fitted.intercept] for fitted in self.classes.values()]).T

    @property
    def threshold(self) -> Float64[np.ndarray, " C"]:
        """The threshold of each class."""
        return np.array([fitted.threshold for fitted in self.classes.values()])

    @property
    def few_positives(self) -> list[str]:
        """Classes with fewer than 10 held-out positives, whose thresholds are uncertain."""
        return [name for name, fitted in self.classes.items() if fitted.positives < MIN_POSITIVES]

    @property
    def not_promised(self) -> list[str]:
        """Classes with too few examples for the guarantee of the rule; their thresholds are the balanced ones."""
        return [name for name, fitted in self.classes.items() if fitted.promised is False]

    def summary(self) -> list[str]:
        """Return lines that describe the calibration and the thresholds."""
        before, after = self.log_loss
        change = "" if before is None or after is None else f": log loss {before:.3f} → {after:.3f}"
        lines = [f"calibrated on {counted(self.images, 'image')}{change}; thresholds: {self.thresholds}"]
        if self.kind == "none":
            lines = [f"not calibrated; thresholds: {self.thresholds}, fitted on {counted(self.images, 'image')}"]
        elif self.warning:
            lines = [f"warning: {self.warning}"]
        return [*lines, *self._notes()]

    @property
    def warning(self) -> str:
        """A warning if there are too few images to calibrate each class, otherwise ''."""
        few = self.kind != "none" and self.images < MIN_IMAGES
        return f"calibrated on {counted(self.images, 'image')}, too few for a curve per class" if few else ""

    def _notes(self) -> list[str]:
        notes, few = [], [name for name in self.few_positives if name not in self.not_promised]
        if self.not_promised:
            reason = "too few examples, or scores that are not good enough"
            classes = f"{counted(len(self.not_promised), 'class', 'classes')} ({reason})"
            names = listing(self.not_promised, LISTED)
            notes.append(f"note: {self.thresholds} cannot be promised for {classes}, so it is balanced for {names}")
        if few:
            classes = counted(len(few), "class has", "classes have")
            notes.append(
                f"note: {classes} fewer than {MIN_POSITIVES} positives for a threshold: {listing(few, LISTED)}"
            )
        if self.kind == "isotonic" and all(fitted.kind == "sigmoid" for fitted in self.classes.values()):
            notes.append("note: no class has enough positives for isotonic regression, so all have a sigmoid")
        if self.kind == "none" and self.thresholds in ("balanced", "f1"):
            notes.append(f"note: {self.thresholds} thresholds need calibrated probabilities; these may be far off")
        return notes

    @property
    def log_loss(self) -> tuple[float | None, float | None]:
        """The mean log loss over the known held-out entries, before and after calibration (cross-validated)."""
        fitted = list(self.classes.values())
        totals = [c.positives + c.negatives for c in fitted]
        means = []
        for losses in ([c.log_loss_before for c in fitted], [c.log_loss_after for c in fitted]):
            terms = [(loss, total) for loss, total in zip(losses, totals, strict=True) if loss is not None]
            means.append(sum(loss * n for loss, n in terms) / sum(n for _, n in terms) if terms else None)
        return means[0], means[1]


CALIBRATION_FILE = CALIBRATION.holding(Calibration)


def _sigmoid(x: Float64[np.ndarray, "N C"]) -> Float64[np.ndarray, "N C"]:
    """Return 1 / (1 + e⁻ˣ); beyond `STEEPEST`, x is replaced by a slowly growing function of it."""
    beyond = np.maximum(x - STEEPEST, 0)
    return np.asarray(expit(np.minimum(x, STEEPEST) + np.log1p(beyond)))
