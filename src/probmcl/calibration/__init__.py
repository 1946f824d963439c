"""Calibrated probabilities, thresholds per class and abstention, all fitted on held-out scores."""

from probmcl.calibration.abstention import abstention_limits
from probmcl.calibration.fit import fit_calibration
from probmcl.calibration.maps import Calibration, ClassCalibration
from probmcl.calibration.thresholds import ThresholdRule, choose_thresholds

__all__ = ["Calibration", "ClassCalibration", "ThresholdRule", "abstention_limits", "choose_thresholds"]
__all__ += ["fit_calibration"]
