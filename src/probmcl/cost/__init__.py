"""What each method costs before anybody trains it: parameters and multiply-adds by shapes, time and memory if asked."""

from probmcl.cost.rows import Choice, Row, choices, empty_encoder, row, survey
from probmcl.cost.speed import Measuring, Speed, measured, seconds_per_image, step_memory

__all__ = [
    "Choice",
    "Measuring",
    "Row",
    "Speed",
    "choices",
    "empty_encoder",
    "measured",
    "row",
    "seconds_per_image",
    "step_memory",
    "survey",
]
