"""What sits on an encoder's feature maps: attention over positions, transformers, decoders, graphs of the labels."""

from probmcl.heads.cross_scale import MapTransformer, ThreeScales, cross_scale
from probmcl.heads.decoder import CrossAttention, GroupDecoder, group_logits
from probmcl.heads.dual_relation import DualRelation, ImageGraph, Relations, class_nodes, top_mean
from probmcl.heads.graph import (
    GraphConvolution,
    LabelEmbeddings,
    LowRankConvolution,
    label_graph,
    label_nodes,
    normalized,
    superimposed_graph,
)
from probmcl.heads.lateral import EmbeddingClassifier, LateralConnection
from probmcl.heads.pooling import ResidualAttention, attended, residual_attention
from probmcl.heads.sequence import AdditiveAttention, LabelDecoder, emitted_labels, set_logits
from probmcl.heads.spatial import (
    BatchNorm,
    ClassAttention,
    SpatialRegularization,
    attended_confidence,
    spatial_softmax,
    weighted_attention,
)

__all__ = [
    "AdditiveAttention",
    "BatchNorm",
    "ClassAttention",
    "CrossAttention",
    "DualRelation",
    "EmbeddingClassifier",
    "GraphConvolution",
    "GroupDecoder",
    "ImageGraph",
    "LabelDecoder",
    "LabelEmbeddings",
    "LateralConnection",
    "LowRankConvolution",
    "MapTransformer",
    "Relations",
    "ResidualAttention",
    "SpatialRegularization",
    "ThreeScales",
    "attended",
    "attended_confidence",
    "class_nodes",
    "cross_scale",
    "emitted_labels",
    "group_logits",
    "label_graph",
    "label_nodes",
    "normalized",
    "residual_attention",
    "set_logits",
    "spatial_softmax",
    "superimposed_graph",
    "top_mean",
    "weighted_attention",
]
