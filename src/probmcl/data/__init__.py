"""Stage 1: images and labels, from files to records, and from an image to a tensor."""

from probmcl.data.check import BadImage, find_bad_images, without_bad
from probmcl.data.formats.digits import write_digits
from probmcl.data.images import ImageError, Preprocessing, read_image
from probmcl.data.labels import LabelStates, State
from probmcl.data.intensity import Levels
from probmcl.data.read import describe, read
from probmcl.data.records import DataError, LabelSpace, Origin, Records, Split

__all__ = [
    "BadImage",
    "DataError",
    "ImageError",
    "LabelSpace",
    "LabelStates",
    "Levels",
    "Origin",
    "Preprocessing",
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
