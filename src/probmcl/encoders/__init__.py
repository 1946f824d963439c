"""Image encoders h(x) built from any timm model."""

from probmcl.encoders.encoder import AnyEncoder, Encoder, PrecomputedFeatures, describe_encoder, parameters_in_millions
from probmcl.encoders.stages import (
    SplitEncoder,
    Stage,
    Trunk,
    TwoMaps,
    has_stage,
    hook_stage_inputs,
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
    "describe_encoder",
    "has_stage",
    "hook_stage_inputs",
    "parameters_in_millions",
    "split_encoder",
    "stages",
    "two_maps",
    "with_maps",
    "with_stages",
]
