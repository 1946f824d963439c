"""Stage 1: images and labels, from files to records, and from an image to a tensor."""

from probmcl.data.bad_images import BadImage, find_bad_images, without_bad
from probmcl.data.formats.digits import write_digits
from probmcl.data.images import Preprocessing, read_image
from probmcl.data.intensity import IntensityRange
from probmcl.data.labels import LabelStates, State
from probmcl.data.options import DataChecks, DataSource, ReadOptions
from probmcl.data.read import describe, read
from probmcl.data.records import LabelSpace, Origin, Records, Split
from probmcl.errors import DataError, ImageError

__all__ = [
    "BadImage",
    "DataChecks",
    "DataError",
    "DataSource",
    "ImageError",
    "IntensityRange",
    "LabelSpace",
    "LabelStates",
    "Origin",
    "Preprocessing",
    "ReadOptions",
    "Records",
    "Split",
    "State",
    "describe",
    "find_bad_images",
    "read",
    "read_image",
    "without_bad",
    "write_digits",
]
