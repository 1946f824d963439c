"""Image encoders h(x) built from any timm model."""

from probmcl.encoders.encoder import AnyEncoder, Encoder, PrecomputedFeatures, describe_encoder, millions
from probmcl.encoders.stages import (
    SplitEncoder,
    Stage,
    Trunk,
    TwoMaps,
    at_entrances,
    is_part,
    split_encoder,
    stages,
    two_maps,
    with_maps,
    with_stages,
)
from probmcl.errors import WeightsError

__all__ = [
    "AnyEncoder",
    "Encoder",
    "PrecomputedFeatures",
    "SplitEncoder",
    "Stage",
    "Trunk",
    "TwoMaps",
    "WeightsError",
    "at_entrances",
    "describe_encoder",
    "is_part",
    "millions",
    "split_encoder",
    "stages",
    "two_maps",
    "with_maps",
    "with_stages",
]
