"""Stage 3: from an image to its feature h(x), by any timm model."""

from probmcl.encoders.encoder import Encoder, Extracted, about, millions
from probmcl.encoders.split_encoder import Halves, Trunk, halves
from probmcl.encoders.stages import Stage, TwoMaps, at_entrances, is_part, stages, two_maps, with_maps, with_stages
from probmcl.encoders.weights import WeightsError

__all__ = [
    "Encoder",
    "Extracted",
    "Halves",
    "Stage",
    "Trunk",
    "TwoMaps",
    "WeightsError",
    "about",
    "at_entrances",
    "halves",
    "is_part",
    "millions",
    "stages",
    "two_maps",
    "with_maps",
    "with_stages",
]
