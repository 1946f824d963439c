"""What sits on an encoder's feature maps: class-wise attention pooling, graph convolutions over the labels."""

from probmcl.heads.graph import GraphConvolution, label_graph, normalised
from probmcl.heads.pooling import ResidualAttention, attended, residual_attention

__all__ = ["GraphConvolution", "ResidualAttention", "attended", "label_graph", "normalised", "residual_attention"]
