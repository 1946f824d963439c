"""ML-Decoder head: queries attend to a feature map, and each query predicts the logits of a group of classes."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import relu

from probmcl.runtime.precision import full_precision

DEFAULT_GROUPS = 100
"""Default number of groups; if there are fewer classes, each class is a group."""


class CrossAttention(nn.Module):
    """Transformer decoder layer without self-attention: queries attend only to tokens.

    q ← norm(2q),  q ← norm(q + attention(q, x, x)),  q ← norm(q + W₂ relu(W₁ q)), where x are the tokens and attention
    is multi-head. Dropout is applied to one of the two terms of 2q, to the attention weights, to the output of each
    block, and between W₁ and W₂.

    Reference: Ridnik et al., ML-Decoder, WACV 2023. The step norm(2q) is left over from the removed self-attention.

    >>> layer = CrossAttention(width=8, heads=2, feed_forward=16, dropout=0.1)
    >>> layer(torch.zeros(2, 3, 8), torch.zeros(2, 49, 8)).shape
    torch.Size([2, 3, 8])
    """

    def __init__(self, width: int, *, heads: int, feed_forward: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, feed_forward), nn.ReLU(), nn.Dropout(dropout), nn.Linear(feed_forward, width)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Float[Tensor, "N Q W"], tokens: Float[Tensor, "N P W"]) -> Float[Tensor, "N Q W"]:
        """Return the output of each query."""
        before, between, after = self.norms
        queries = before(queries + self.dropout(queries))
        attended, _ = self.attention(queries, tokens, tokens, need_weights=False)
        queries = between(queries + self.dropout(attended))
        outputs: Tensor = after(queries + self.dropout(self.feed_forward(queries)))
        return outputs


class GroupDecoder(nn.Module):
    """Decoder that computes logits from feature maps using one query per group of classes.

    logit_c = h_q · w_c + b_c with q = ⌊c/g⌋, where g = ⌈C/G⌉ is the group size and h_q is the output of
    `CrossAttention` for query q. The tokens are the positions of the map, after a linear layer and ReLU, without
    position embeddings. There are ⌈C/g⌉ queries, which can be fewer than G.

    Reference: Ridnik et al., ML-Decoder, WACV 2023, with the initialization of its code.

    Args:
        channels: number K of channels in the maps.
        classes: number C of classes.
        groups: number G of groups, at most C; defaults to one per class, up to 100.
        width: size of queries and tokens, a multiple of `heads`. See `CrossAttention` for `feed_forward` and `dropout`.
        learned_queries: train the queries; otherwise they are a fixed random buffer.

    >>> head = GroupDecoder(channels=5, classes=7, groups=3, width=8, heads=2)
    >>> head(torch.zeros(2, 5, 4, 4)).shape, head.group_size
    (torch.Size([2, 7]), 3)
    """

    queries: Float[Tensor, "Q W"]

    def __init__(
        self,
        channels: int,
        classes: int,
        *,
        groups: int | None = None,
        width: int = 768,
        heads: int = 8,
        feed_forward: int = 2048,
        dropout: float = 0.1,
        learned_queries: bool = False,
    ) -> None:
        """Create one query for each group of classes, and the layers.

        All groups have ⌈classes / groups⌉ classes, except perhaps the last one. Groups of this size can be fewer than
        `groups`: 10 classes in at most 6 groups are 5 groups of 2. The queries need no training, because the attention
        layer multiplies them by a learned matrix; it is enough that they differ from each other.
        """
        super().__init__()
        if groups is None:
            groups = min(DEFAULT_GROUPS, classes)
        if not 1 <= groups <= classes:
            raise ValueError(f"`groups` must be between 1 and the number of classes ({classes}), got {groups}")
        self.group_size = math.ceil(classes / groups)
        n_queries = math.ceil(classes / self.group_size)  # one per group that has a class
        self.embedding = nn.Linear(channels, width)
        self.layer = CrossAttention(width, heads=heads, feed_forward=feed_forward, dropout=dropout)
        queries = torch.randn(n_queries, width)
        if learned_queries:
            self.queries = nn.Parameter(queries)
        else:
            self.register_buffer("queries", queries)  # saved with the model, but not trained
        weight = torch.empty(n_queries, width, self.group_size)
        self.weight = nn.Parameter(nn.init.xavier_normal_(weight))
        self.bias = nn.Parameter(torch.zeros(classes))

    def forward(self, maps: Float[Tensor, "N K h w"]) -> Float[Tensor, "N C"]:
        """Return one logit per class."""
        positions = maps.flatten(2).transpose(1, 2)  # (N, P, K)
        tokens = relu(self.embedding(positions))  # (N, P, W)
        queries = self.queries.expand(maps.shape[0], -1, -1)  # (N, Q, W)
        outputs = self.layer(queries, tokens)
        return group_logits(outputs, self.weight, self.bias)


@full_precision
def group_logits(
    outputs: Float[Tensor, "N Q W"], weight: Float[Tensor, "Q W g"], bias: Float[Tensor, "C"]
) -> Float[Tensor, "N C"]:
    """Return the logits of each query for its g classes, concatenated and truncated to C classes.

    Reference: Ridnik et al., ML-Decoder, WACV 2023, group fully-connected layer.

    >>> outputs = torch.tensor([[[1.0], [10.0]]])  # one image, two queries
    >>> group_logits(outputs, torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]]]), torch.zeros(3))
    tensor([[ 1.,  2., 30.]])
    """
    classes = bias.shape[0]
    logits = torch.einsum("nqw,qwg->nqg", outputs, weight).flatten(1)  # (N, Q·g)
    return logits[:, :classes] + bias  # the last group may be incomplete
