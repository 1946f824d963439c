"""Labels as nodes of a graph: edges from how often they occur together, and convolutions along them."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn

from probmcl.precision import full_precision


def label_graph(
    counts: Int[ndarray, "C"], cooccurrence: Int[ndarray, "C C"], *, threshold: float, neighbour_share: float
) -> Float[Tensor, "C C"]:
    """Edges from each class to those that it seldom comes without, re-weighted so that a class keeps most of itself.

    A = p B / Σ_i B_ij + (1−p) I, where B_ij = 1 if P(j|i) = M_ij / N_i ≥ t and else 0, N are the `counts`, M is
    `cooccurrence`, t `threshold` and p `neighbour_share`. A class that never occurs has no edges.

    Reference: Chen et al., ML-GCN, CVPR 2019, the re-weighted correlation matrix. The sum runs over columns as in its
    code, which has p/(1−p) beside I: after `normalised` that is the same.

    >>> label_graph(np.array([4, 2]), np.array([[0, 1], [1, 0]]), threshold=0.4, neighbour_share=0.2)
    tensor([[0.8000, 0.0000],
            [0.2000, 0.8000]])
    """
    if not 0 < threshold <= 1 or not 0 <= neighbour_share < 1:
        raise ValueError(
            f"threshold={threshold}, neighbour_share={neighbour_share}: the first is above 0 and at most 1, "
            "the second from 0 to below 1"
        )
    given = cooccurrence / np.maximum(counts, 1)[:, None]  # P(j|i); what never occurs occurs with nothing
    edges = (given >= threshold).astype(np.float64)
    np.fill_diagonal(edges, 0)
    shares = edges / np.maximum(edges.sum(0), 1)
    graph = neighbour_share * shares + (1 - neighbour_share) * np.eye(len(counts))
    return torch.from_numpy(graph).to(torch.get_default_dtype())


def normalised(adjacency: Float[Tensor, "C C"]) -> Float[Tensor, "C C"]:
    """The graph that is multiplied with: D^−½ Aᵀ D^−½, where D has the sums of A's rows.

    Reference: Chen et al., ML-GCN, CVPR 2019; transposed as in its code.

    >>> normalised(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    tensor([[1.0000, 1.5000],
            [0.0000, 0.2500]])
    """
    scale = adjacency.sum(1).rsqrt()
    return (scale[:, None] * adjacency * scale).T.contiguous()  # files take no views


class GraphConvolution(nn.Module):
    """Every node becomes a linear image of its neighbours: X ↦ G X W, without a bias.

    W is drawn from U(±1/√out). It is small, and computed in full precision.

    Reference: Chen et al., ML-GCN, CVPR 2019, and the initialisation of its code.

    >>> convolution = GraphConvolution(4, 2)
    >>> convolution(torch.ones(3, 4), torch.eye(3)).shape
    torch.Size([3, 2])
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        bound = out_features**-0.5
        self.weight = nn.Parameter(torch.empty(in_features, out_features).uniform_(-bound, bound))

    @full_precision
    def forward(self, nodes: Float[Tensor, "C in"], graph: Float[Tensor, "C C"]) -> Float[Tensor, "C out"]:
        """One step along the edges."""
        return graph @ (nodes @ self.weight)
