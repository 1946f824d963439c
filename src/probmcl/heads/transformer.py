"""Self-attention on feature maps: every position of a map sees the others."""

from jaxtyping import Float
from torch import Tensor, nn


class MapTransformer(nn.Module):
    """Layers of a transformer's encoder, over the positions of a map of any size.

    x ← norm(x + attention(x, x, x)),  x ← norm(x + W₂ gelu(W₁ x)), layer by layer, where x are the positions and
    attention has several heads. Positions are not told apart by where they are. W₂ and what leaves the attention start
    at 0, so that at first a layer does no more than normalize, and can be trained without a warm-up of its own.

    With `over_batch` the same layers let each position see the same position of the other images instead: what comes
    out for an image then depends on which others are in the batch.

    Reference: Zhao et al., TDRG, ICCV 2021, the structural relation; in the first release of its code the attention
    runs over the batch, and all matrices start as Glorot and Bengio's.

    Args:
        width: W, the channels of the maps, a multiple of the heads.
        layers: how many, one after the other.
        heads: of the attention.
        feed_forward: units between W₁ and W₂.
        over_batch: whether attention runs over the images of a batch.

    >>> import torch
    >>> transformer = MapTransformer(8, layers=2, heads=2, feed_forward=16)
    >>> transformer(torch.zeros(3, 8, 5, 4)).shape
    torch.Size([3, 8, 5, 4])
    """

    def __init__(
        self, width: int, *, feed_forward: int, layers: int = 3, heads: int = 4, over_batch: bool = False
    ) -> None:
        super().__init__()
        self.over_batch = over_batch
        self.layers = nn.ModuleList(_layer(width, heads, feed_forward) for _ in range(layers))

    def forward(self, maps: Float[Tensor, "N W h w"]) -> Float[Tensor, "N W h w"]:
        """Maps of the same size."""
        positions = maps.flatten(2).permute(2, 0, 1)  # (P, N, W); a layer attends along the first axis
        seen = positions.transpose(0, 1) if self.over_batch else positions
        for layer in self.layers:
            seen = layer(seen)
        positions = seen.transpose(0, 1) if self.over_batch else seen
        return positions.permute(1, 2, 0).reshape(maps.shape)


def _layer(width: int, heads: int, feed_forward: int) -> nn.TransformerEncoderLayer:
    layer = nn.TransformerEncoderLayer(width, heads, feed_forward, dropout=0.0, activation="gelu")
    nn.init.xavier_uniform_(layer.linear1.weight)
    for last in (layer.self_attn.out_proj, layer.linear2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return layer
