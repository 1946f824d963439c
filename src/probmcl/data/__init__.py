"""Stage 1: images and labels, from files to records, and from an image to a tensor."""

from probmcl.data.digits import write_digits
from probmcl.data.images import ImageError, Preprocessing, read_image
from probmcl.data.read import describe, read
from probmcl.data.records import DataError, LabelSpace, Records, Split

__all__ = [
    "DataError",
    "ImageError",
    "LabelSpace",
    "Preprocessing",
    "Records",
    "Split",
    "describe",
    "read",
    "read_image",
    "write_digits",
]
