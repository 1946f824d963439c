"""Feature maps at three scales, attention between the scales, and a transformer over the positions of a map."""

import functools
import operator

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate, layer_norm, pad

from probmcl.runtime.precision import full_precision

KERNEL = 3
"""Kernel size of the coarsest scale, and the smallest side of a map that it fits without padding."""


class ThreeScales(nn.Module):
    """Maps of `width` channels at three scales: of the input of an encoder's last stage, of its output, and coarser.

    The first two are 1 × 1 convolutions of maps with `entering` and `last` channels; the third is a 3 × 3 convolution
    of the last maps with stride 2. It has no padding, except for one zero at either end of an axis of fewer than three
    positions. With `normalize` every position has mean 0 and deviation 1 over its channels: this bounds the product of
    `cross_scale` and the attention after it.

    Reference: Zhao et al., TDRG, ICCV 2021, with 28, 14 and 6 positions a side; padding and normalization are ours.

    >>> import torch
    >>> scales = ThreeScales(4, 5, 8)
    >>> [tuple(maps.shape) for maps in scales(torch.zeros(2, 4, 28, 28), torch.zeros(2, 5, 14, 14))]
    [(2, 8, 28, 28), (2, 8, 14, 14), (2, 8, 6, 6)]
    """

    def __init__(self, entering: int, last: int, width: int, *, normalize: bool = True) -> None:
        super().__init__()
        self.normalize = normalize
        self.fine = nn.Conv2d(entering, width, 1)
        self.middle = nn.Conv2d(last, width, 1)
        self.coarse = nn.Conv2d(last, width, KERNEL, stride=2)

    def forward(
        self, entering: Float[Tensor, "N E h1 w1"], last: Float[Tensor, "N K h2 w2"]
    ) -> tuple[Float[Tensor, "N W h1 w1"], Float[Tensor, "N W h2 w2"], Float[Tensor, "N W h3 w3"]]:
        """Return the three scales, the finest first."""
        rows, columns = (int(side < KERNEL) for side in last.shape[2:])
        scales = self.fine(entering), self.middle(last), self.coarse(pad(last, (columns, columns, rows, rows)))
        fine, middle, coarse = map(over_channels, scales) if self.normalize else scales
        return fine, middle, coarse


def over_channels(maps: Float[Tensor, "N W h w"]) -> Float[Tensor, "N W h w"]:
    """Normalize every position of the maps to mean 0 and deviation 1 over its channels.

    >>> import torch
    >>> over_channels(torch.tensor([[[[3.0]], [[5.0]]]])).flatten()
    tensor([-1.0000,  1.0000])
    """
    return layer_norm(maps.movedim(1, 3), maps.shape[1:2]).movedim(3, 1)


@full_precision
def cross_scale(*maps: Float[Tensor, "N W _ _"]) -> tuple[Float[Tensor, "N W _ _"], ...]:
    """Add to each scale the product of all scales at the same place: x_s ← x_s + Π_t x_t.

    All maps are resized to the largest size for it, and back afterwards, by bilinear interpolation with aligned
    corners.

    Reference: Zhao et al., TDRG, ICCV 2021, the cross-scale attention.

    >>> import torch
    >>> fine, coarse = cross_scale(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[[[10.0]]]]))
    >>> fine, coarse
    (tensor([[[[11., 22., 33.]]]]), tensor([[[[20.]]]]))
    """
    largest = (max(x.shape[2] for x in maps), max(x.shape[3] for x in maps))
    same = [_resized(x, largest) for x in maps]
    product = functools.reduce(operator.mul, same)
    return tuple(_resized(x + product, (old.shape[2], old.shape[3])) for x, old in zip(same, maps, strict=True))


def _resized(maps: Float[Tensor, "N W h1 w1"], size: tuple[int, int]) -> Float[Tensor, "N W h2 w2"]:
    return interpolate(maps, size=size, mode="bilinear", align_corners=True)


class MapTransformer(nn.Module):
    """Transformer encoder layers over the positions of a map of any size.

    x ← norm(x + attention(x, x, x)),  x ← norm(x + W₂ gelu(W₁ x)), layer by layer, where x are the positions, attention
    has several heads, and W₁ has `feed_forward` outputs. There is no position embedding. W₂ and the output projection
    of the attention start at 0, so that a layer initially only normalizes and needs no warm-up of its own.

    With `over_batch` each position attends to the same position of the other images instead: the output for an image
    then depends on the others in the batch.

    Reference: Zhao et al., TDRG, ICCV 2021, the structural relation; in the first release of its code the attention
    runs over the batch, and all matrices start as Glorot and Bengio's.

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
        """Return maps of the same size."""
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
