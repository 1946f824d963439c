"""Label graphs: label vectors, edges from co-occurrence and knowledge, graph convolutions and the heads of KSSNet."""

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from jaxtyping import Float, Int
from numpy import ndarray
from torch import Tensor, nn
from torch.nn.functional import conv2d, leaky_relu

from probmcl.errors import check_range
from probmcl.readers.class_knowledge import label_vectors
from probmcl.runtime.precision import full_precision

SLOPE = 0.2
"""Negative slope of the leaky ReLU between graph convolutions."""

LEARNED_DEVIATION = 0.3
"""Initial standard deviation of learned label vectors, similar to that of word vectors."""


def label_nodes(names: Sequence[str], *, size: int, file: str | None = None) -> nn.Parameter | nn.Buffer:
    """Return the label vectors: a fixed buffer of word vectors from a file, or a trainable parameter.

    Both have the same key in a module's state dict.

    >>> label_nodes(["cat", "traffic light"], size=300).shape
    torch.Size([2, 300])
    """
    if file is None:
        return nn.Parameter(LEARNED_DEVIATION * torch.randn(len(names), size))
    word_vectors = label_vectors(Path(file), names, size=size)
    return nn.Buffer(torch.from_numpy(word_vectors))


def label_graph(
    counts: Int[ndarray, "C"], cooccurrence: Int[ndarray, "C C"], *, threshold: float, neighbor_share: float
) -> Float[Tensor, "C C"]:
    """Return the re-weighted correlation matrix of ML-GCN, with an edge from i to j if j often occurs with i.

    A = p B / Σ_i B_ij + (1−p) I, where B_ij = 1 if P(j|i) = M_ij / N_i ≥ t, otherwise 0. N is `counts`, M is
    `cooccurrence`, t is `threshold` and p is `neighbor_share`. A class that never occurs has no edges.

    Reference: Chen et al., ML-GCN, CVPR 2019. Columns are summed as in its code, which uses the weights p/(1−p) and 1
    instead; this makes no difference after `normalize_adjacency`.

    >>> import numpy as np
    >>> label_graph(np.array([4, 2]), np.array([[0, 1], [1, 0]]), threshold=0.4, neighbor_share=0.2)
    tensor([[0.8000, 0.0000],
            [0.2000, 0.8000]])
    """
    check_range(above=0, at_most=1, threshold=threshold)
    check_range(at_least=0, below=1, neighbor_share=neighbor_share)
    conditional = _float64(cooccurrence) / _float64(counts).clamp(min=1)[:, None]  # P(j|i), or 0 if i never occurs
    edges = (conditional >= threshold).double().fill_diagonal_(0)  # B
    shares = edges / edges.sum(0).clamp(min=1)  # 1 only avoids a division by zero
    identity = torch.eye(len(counts), dtype=torch.float64)
    graph = neighbor_share * shares + (1 - neighbor_share) * identity
    return graph.to(torch.get_default_dtype())


def superimposed_graph(
    counts: Int[ndarray, "C"],
    cooccurrence: Int[ndarray, "C C"],
    knowledge: Float[ndarray, "C C"] | None = None,
    *,
    cooccurrence_weight: float,
    smallest_edge: float,
    neighbor_share: float,
) -> Float[Tensor, "C C"]:
    """Return the symmetric superposition of a co-occurrence graph and a knowledge graph.

    A = η ⌊λ S + (1−λ) K⌋ + (1−η) I, where S_ij = M_ij / √(N_i N_j), N is `counts`, M is `cooccurrence`, K is
    `knowledge` with values from 0 to 1, λ is `cooccurrence_weight`, η is `neighbor_share`, and ⌊·⌋ sets values below
    `smallest_edge` to 0. Without knowledge, λ is 1.

    Reference: Wang et al., KSSNet, AAAI 2020. Our choice of S is the geometric mean of P(j|i) and P(i|j).

    >>> import numpy as np
    >>> settings = {"cooccurrence_weight": 0.5, "smallest_edge": 0.03, "neighbor_share": 0.4}
    >>> superimposed_graph(np.array([4, 1]), np.array([[0, 1], [1, 0]]), np.array([[0.0, 1.0], [1.0, 0.0]]), **settings)
    tensor([[0.6000, 0.3000],
            [0.3000, 0.6000]])
    """
    check_range(at_least=0, at_most=1, cooccurrence_weight=cooccurrence_weight, smallest_edge=smallest_edge)
    check_range(at_least=0, below=1, neighbor_share=neighbor_share)
    root = _float64(counts).clamp(min=1).sqrt()  # avoids division by zero for absent classes
    edges = _float64(cooccurrence) / root / root[:, None]  # S
    if knowledge is not None:
        edges = cooccurrence_weight * edges + (1 - cooccurrence_weight) * _float64(knowledge)
    edges = edges.where(edges >= smallest_edge, 0.0)
    identity = torch.eye(len(counts), dtype=torch.float64)
    graph = neighbor_share * edges + (1 - neighbor_share) * identity
    return graph.to(torch.get_default_dtype())


def _float64(values: ndarray) -> Tensor:
    """Return a tensor in double precision; on the meta device, it has only a shape."""
    return torch.tensor(values).double()


def normalize_adjacency(adjacency: Float[Tensor, "C C"]) -> Float[Tensor, "C C"]:
    """Return the normalized adjacency matrix D^−½ Aᵀ D^−½, where D is the diagonal matrix of the row sums of A.

    Reference: Chen et al., ML-GCN, CVPR 2019; transposed as in its code.

    >>> normalize_adjacency(torch.tensor([[1.0, 0.0], [3.0, 1.0]]))
    tensor([[1.0000, 1.5000],
            [0.0000, 0.2500]])
    """
    scale = adjacency.sum(1).rsqrt()
    return (scale[:, None] * adjacency * scale).T.contiguous()  # safetensors does not save views


class GraphConvolution(nn.Module):
    """Graph convolution without bias, X ↦ G X W, in full precision. W is drawn from U(±1/√out).

    Reference: Chen et al., ML-GCN, CVPR 2019, with the initialization of its code.

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
        """Apply the convolution to the nodes."""
        return graph @ (nodes @ self.weight)


class LowRankConvolution(nn.Module):
    """Low-rank graph convolution X ↦ G X W₁ W₂ + b, in full precision.

    The rank is (in + out)/8, at least 32. With `even`, the initialization preserves the variance of nodes after a leaky
    ReLU: W₁ is drawn from U(±√(6/(1+0.2²)/in)), W₂ from U(±√(3/inner)), and b is 0. Otherwise W₁ is drawn from
    U(±1/√inner), W₂ and b from U(±1/√out), and nodes shrink with each convolution until the bias, which is the same for
    all nodes, dominates.

    Reference: Wang et al., KSSNet, AAAI 2020, whose code uses this rank and the second initialization.

    >>> LowRankConvolution(300, 256).first.shape
    torch.Size([300, 69])
    """

    def __init__(self, in_features: int, out_features: int, *, even: bool = True) -> None:
        """Draw W₁ (`first`), W₂ (`second`) and the bias from uniform distributions with these bounds.

        With `even`, the bounds preserve the variance of nodes after a leaky ReLU with the slope `SLOPE`. Otherwise,
        they are those of the published code.
        """
        super().__init__()
        inner = max(32, (in_features + out_features) // 8)  # the rank of the weights W₁ W₂
        if even:
            first_bound = math.sqrt(6 / (1 + SLOPE**2) / in_features)
            second_bound = math.sqrt(3 / inner)
            bias_bound = 0.0
        else:
            first_bound = inner**-0.5
            second_bound = bias_bound = out_features**-0.5
        self.first = _uniform(first_bound, in_features, inner)
        self.second = _uniform(second_bound, inner, out_features)
        self.bias = _uniform(bias_bound, out_features)

    @full_precision
    def forward(self, nodes: Float[Tensor, "C in"], graph: Float[Tensor, "C C"]) -> Float[Tensor, "C out"]:
        """Apply the convolution to the nodes."""
        return graph @ (nodes @ self.first @ self.second) + self.bias


def _uniform(bound: float, *shape: int) -> nn.Parameter:
    """Return a parameter drawn from the uniform distribution on [−bound, bound]."""
    return nn.Parameter(torch.empty(shape).uniform_(-bound, bound))


class LabelEmbeddings(nn.Module):
    """Label embeddings of several sizes, computed by successive graph convolutions.

    E_l = tanh(X_l) with X_l = G σ(X_{l−1}) W_l + b_l, where W_l has low rank, σ is a leaky ReLU, and the first
    convolution is applied to the label vectors without σ. `sizes` contains the size of a label vector, followed by the
    size of each E_l.

    Reference: Wang et al., KSSNet, AAAI 2020.

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
        """Return the embeddings after each convolution."""
        nodes = vectors
        embeddings: list[Tensor] = []
        for index, convolution in enumerate(self.convolutions):
            if index > 0:  # label vectors get no activation
                nodes = leaky_relu(nodes, SLOPE)
            nodes = convolution(nodes, graph)
            embeddings.append(nodes.tanh())
        return embeddings


class LateralConnection(nn.Module):
    """Lateral connection that adds a residual computed from the similarity of each position to the classes.

    y = x + V s(x), where s_c = γ x · e_c at every position, e_c is the embedding of class c, γ is `scale`, and V is a
    linear layer without bias from the C classes to the K channels. V is initialized to zero, so the maps are initially
    unchanged.

    Reference: Wang et al., KSSNet, AAAI 2020, where V has the default initialization.

    >>> import torch
    >>> maps = torch.rand(2, 5, 7, 7)
    >>> torch.equal(LateralConnection(channels=5, classes=3)(maps, torch.rand(3, 5)), maps)
    True
    """

    def __init__(self, channels: int, classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.back = nn.Conv2d(classes, channels, 1, bias=False)
        nn.init.zeros_(self.back.weight)

    def forward(self, maps: Float[Tensor, "N K h w"], embeddings: Float[Tensor, "C K"]) -> Float[Tensor, "N K h w"]:
        """Return the maps with the residual added."""
        filters = self.scale * embeddings[:, :, None, None]  # (C, K, 1, 1)
        similarity = conv2d(maps, filters)  # (N, C, h, w)
        residual: Tensor = self.back(similarity)
        return maps + residual


class EmbeddingClassifier(nn.Module):
    """Classifier for pooled features: the sum of a linear layer and inner products with the class embeddings.

    logit_c = γ f · e_c + w_c · f + b_c, where e_c is the embedding of class c, γ is `scale` and f are the features
    after dropout.

    Reference: Wang et al., KSSNet, AAAI 2020.

    >>> import torch
    >>> EmbeddingClassifier(features=5, classes=3)(torch.rand(2, 5), torch.rand(3, 5)).shape
    torch.Size([2, 3])
    """

    def __init__(self, features: int, classes: int, *, scale: float = 1.0, dropout: float = 0.5) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(features, classes)

    def forward(self, features: Float[Tensor, "N D"], embeddings: Float[Tensor, "C D"]) -> Float[Tensor, "N C"]:
        """Return one logit per class."""
        dropped_out = self.dropout(features)
        logits: Tensor = self.linear(dropped_out) + dropped_out @ (self.scale * embeddings).T
        return logits
