"""The labels as nodes of a graph: their vectors, edges from how often they come together, convolutions along them."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from probmcl.data.word_vectors import label_vectors
from probmcl.errors import check_range
from probmcl.runtime.precision import full_precision

SLOPE = 0.2
"""Of the leaky ReLU between graph convolutions."""

LEARNED_DEVIATION = 0.3
"""Of the numbers that learned label vectors start from: about that of word vectors."""


def label_nodes(names: Sequence[str], *, size: int, file: str | None = None) -> nn.Parameter | nn.Buffer:
    """What the nodes of a label graph start from: the word vectors of a file, fixed, or new ones to be learned.

    As an attribute of a module both have the same place in its state.

    >>> label_nodes(["cat", "traffic light"], size=300).shape
    torch.Size([2, 300])
    """
    if file is None:
        return nn.Parameter(LEARNED_DEVIATION * torch.randn(len(names), size))
    return nn.Buffer(torch.from_numpy(label_vectors(Path(file), names, size=size)))


def label_graph(
    counts: Int[ndarray, "C"], cooccurrence: Int[ndarray, "C C"], *, threshold: float, neighbor_share: float
) -> Float[Tensor, "C C"]:
    """Edges from each class to those that it seldom comes without, re-weighted so that a class keeps most of itself.

    A = p B / Σ_i B_ij + (1−p) I, where B_ij = 1 if P(j|i) = M_ij / N_i ≥ t and else 0, N are the `counts`, M is
    `cooccurrence`, t `threshold` and p `neighbor_share`. A class that never occurs has no edges.

    Reference: Chen et al., ML-GCN, CVPR 2019, the re-weighted correlation matrix. The sum runs over columns as in its
    code, which has p/(1−p) beside I: after `normalized` that is the same.

    >>> label_graph(np.array([4, 2]), np.array([[0, 1], [1, 0]]), threshold=0.4, neighbor_share=0.2)
    tensor([[0.8000, 0.0000],
            [0.2000, 0.8000]])
    """
    check_range(above=0, at_most=1, threshold=threshold)
    check_range(at_least=0, below=1, neighbor_share=neighbor_share)
    given = cooccurrence / np.maximum(counts, 1)[:, None]  # P(j|i); what never occurs occurs with nothing
    edges = (given >= threshold).astype(np.float64)
    np.fill_diagonal(edges, 0)
    shares = edges / np.maximum(edges.sum(0), 1)
    graph = neighbor_share * shares + (1 - neighbor_share) * np.eye(len(counts))
    return torch.from_numpy(graph).to(torch.get_default_dtype())


def superimposed_graph(
    counts: Int[ndarray, "C"],
    cooccurrence: Int[ndarray, "C C"],
    knowledge: Float[ndarray, "C C"] | None = None,
    *,
    cooccurrence_weight: float,
    smallest_edge: float,
    neighbor_share: float,
) -> Float[Tensor, "C C"]:
    """Edges between classes that occur together, laid over edges of what is known about them; the same both ways.

    A = η ⌊λ S + (1−λ) K⌋ + (1−η) I, where S_ij = M_ij / √(N_i N_j), N are the `counts`, M is `cooccurrence`, K is
    `knowledge` with numbers from 0 to 1, λ `cooccurrence_weight`, η `neighbor_share`, and ⌊·⌋ makes numbers below
    `smallest_edge` 0. Without knowledge λ is 1.

    Reference: Wang et al., KSSNet, AAAI 2020. S is ours, the geometric mean of P(j|i) and P(i|j).

    >>> settings = {"cooccurrence_weight": 0.5, "smallest_edge": 0.03, "neighbor_share": 0.4}
    >>> superimposed_graph(np.array([4, 1]), np.array([[0, 1], [1, 0]]), np.array([[0.0, 1.0], [1.0, 0.0]]), **settings)
    tensor([[0.6000, 0.3000],
            [0.3000, 0.6000]])
    """
    check_range(at_least=0, at_most=1, cooccurrence_weight=cooccurrence_weight, smallest_edge=smallest_edge)
    check_range(at_least=0, below=1, neighbor_share=neighbor_share)
    root = np.sqrt(np.maximum(counts, 1))  # what never occurs occurs with nothing
    edges = cooccurrence / root / root[:, None]
    if knowledge is not None:
        edges = cooccurrence_weight * edges + (1 - cooccurrence_weight) * knowledge
    edges = np.where(edges < smallest_edge, 0.0, edges)
    graph = neighbor_share * edges + (1 - neighbor_share) * np.eye(len(counts))
    return torch.from_numpy(graph).to(torch.get_default_dtype())


def normalized(adjacency: Float[Tensor, "C C"]) -> Float[Tensor, "C C"]:
    """The graph that is multiplied with: D^−½ Aᵀ D^−½, where D has the sums of A's rows. A symmetric one stays so.

    Reference: Chen et al., ML-GCN, CVPR 2019; transposed as in its code.

    >>> normalized(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    tensor([[1.0000, 1.5000],
            [0.0000, 0.2500]])
    """
    scale = adjacency.sum(1).rsqrt()
    return (scale[:, None] * adjacency * scale).T.contiguous()  # files take no views


class GraphConvolution(nn.Module):
    """Every node becomes a linear image of its neighbors: X ↦ G X W, without a bias.

    W is drawn from U(±1/√out). It is small, and computed in full precision.

    Reference: Chen et al., ML-GCN, CVPR 2019, and the initialization of its code.

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


class LowRankConvolution(nn.Module):
    """Every node becomes a linear image of its neighbors through a narrow layer: X ↦ G X W₁ W₂ + b.

    The inner width is an eighth of both sizes together, and at least 32. It is small, and computed in full precision.

    Where it is `even`, weights are drawn so that nodes after a leaky ReLU keep their size, W₁ from U(±√(6/(1+0.2²)/in))
    and W₂ from U(±√(3/inner)), and b is 0. Otherwise W₁ is from U(±1/√inner), W₂ and b from U(±1/√out): nodes become
    smaller with each convolution, until most of what is left is the bias, the same for all.

    Reference: Wang et al., KSSNet, AAAI 2020: its code has this width, and is not even.

    >>> LowRankConvolution(300, 256).first.shape
    torch.Size([300, 69])
    """

    def __init__(self, in_features: int, out_features: int, *, even: bool = True) -> None:
        super().__init__()
        inner = max(32, (in_features + out_features) // 8)
        keeping = math.sqrt(6 / (1 + SLOPE**2) / in_features), math.sqrt(3 / inner), 0.0
        first, second, bias = keeping if even else (inner**-0.5, out_features**-0.5, out_features**-0.5)
        self.first = _uniform(first, in_features, inner)
        self.second = _uniform(second, inner, out_features)
        self.bias = _uniform(bias, out_features)

    @full_precision
    def forward(self, nodes: Float[Tensor, "C in"], graph: Float[Tensor, "C C"]) -> Float[Tensor, "C out"]:
        """One step along the edges."""
        return graph @ (nodes @ self.first @ self.second) + self.bias


def _uniform(bound: float, *shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class LabelEmbeddings(nn.Module):
    """The classes at several sizes: graph convolutions one after another, each of which shows its tanh.

    E_l = tanh(X_l) with X_l = G σ(X_{l−1}) W_l + b_l, where W_l has low rank, σ is a leaky ReLU, and the first
    convolution takes the label vectors as they are.

    Reference: Wang et al., KSSNet, AAAI 2020.

    Args:
        sizes: of a label vector, and of what each convolution makes of it.
        even: how the convolutions start, see `LowRankConvolution`.

    >>> first, second = LabelEmbeddings([300, 16, 64])(torch.zeros(5, 300), torch.eye(5))
    >>> first.shape, second.shape
    (torch.Size([5, 16]), torch.Size([5, 64]))
    """

    def __init__(self, sizes: Sequence[int], *, even: bool = True) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            LowRankConvolution(before, after, even=even) for before, after in pairwise(sizes)
        )

    def forward(self, vectors: Float[Tensor, "C S"], graph: Float[Tensor, "C C"]) -> list[Tensor]:
        """The embeddings after each convolution."""
        nodes = vectors
        seen: list[Tensor] = []
        for convolution in self.convolutions:
            nodes = convolution(leaky_relu(nodes, SLOPE) if seen else nodes, graph)
            seen.append(nodes.tanh())
        return seen
