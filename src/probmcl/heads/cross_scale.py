"""Feature maps at three scales, cross-scale attention, and a transformer over the positions of a map."""

import functools
import operator

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import interpolate, layer_norm, pad

from probmcl.runtime.precision import full_precision

KERNEL = 3
"""Kernel size of the convolution for the coarsest scale; smaller maps are padded."""


class ThreeScales(nn.Module):
    """Feature maps with `width` channels at three scales, from the input and output of an encoder's last stage.

    The fine and middle scales are 1 × 1 convolutions of the input (`entering` channels) and output (`last` channels) of
    the stage. The coarse scale is a 3 × 3 convolution of the output with stride 2, zero-padded only along axes with
    fewer than three positions. `normalize` standardizes every position over its channels, which bounds the product in
    `cross_scale` and the attention logits.

    Reference: Zhao et al., TDRG, ICCV 2021, where the sides are 28, 14 and 6. Padding and normalization are our
    additions.

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
        """Return the three scales from fine to coarse.

        The fine scale comes from the input of the last stage (`entering`), the others from its output (`last`).
        """
        fine = self.fine(entering)
        middle = self.middle(last)
        # A side that is smaller than the kernel of the coarse convolution gets one position at both ends.
        pad_rows, pad_columns = (int(side < KERNEL) for side in last.shape[2:])
        padded = pad(last, (pad_columns, pad_columns, pad_rows, pad_rows))
        coarse = self.coarse(padded)
        if self.normalize:
            return normalize_channels(fine), normalize_channels(middle), normalize_channels(coarse)
        return fine, middle, coarse


def normalize_channels(maps: Float[Tensor, "N W h w"]) -> Float[Tensor, "N W h w"]:
    """Normalize every position to mean 0 and standard deviation 1 over channels.

    >>> import torch
    >>> normalize_channels(torch.tensor([[[[3.0]], [[5.0]]]])).flatten()
    tensor([-1.0000,  1.0000])
    """
    channels = maps.shape[1]
    channels_last = maps.movedim(1, 3)  # layer_norm works on the last axis
    return layer_norm(channels_last, (channels,)).movedim(3, 1)


@full_precision
def cross_scale(*maps: Float[Tensor, "N W _ _"]) -> tuple[Float[Tensor, "N W _ _"], ...]:
    """Add the elementwise product of all scales to each scale: x_s ← x_s + Π_t x_t.

    Maps are resized to the largest size and back using bilinear interpolation with `align_corners=True`.

    Reference: Zhao et al., TDRG, ICCV 2021, cross-scale attention.

    >>> import torch
    >>> fine, coarse = cross_scale(torch.tensor([[[[1.0, 2.0, 3.0]]]]), torch.tensor([[[[10.0]]]]))
    >>> fine, coarse
    (tensor([[[[11., 22., 33.]]]]), tensor([[[[20.]]]]))
    """
    sizes = [(scale.shape[2], scale.shape[3]) for scale in maps]
    largest = (max(height for height, _ in sizes), max(width for _, width in sizes))
    resized = [_resize(scale, largest) for scale in maps]
    product = functools.reduce(operator.mul, resized)
    return tuple(_resize(scale + product, size) for scale, size in zip(resized, sizes, strict=True))


def _resize(maps: Float[Tensor, "N W h1 w1"], size: tuple[int, int]) -> Float[Tensor, "N W h2 w2"]:
    """Resize maps to a height and width by bilinear interpolation; the centers of the corner positions stay fixed."""
    return interpolate(maps, size=size, mode="bilinear", align_corners=True)


class MapTransformer(nn.Module):
    """Transformer encoder over the positions of a feature map of any size.

    Each layer computes x ← norm(x + attention(x, x, x)) and x ← norm(x + W₂ gelu(W₁ x)), where x are the positions,
    attention is multi-head, and W₁ has `feed_forward` outputs. There is no position embedding. W₂ and the output
    projection of the attention are initialized to zero, so a layer initially only normalizes and needs no warm-up.

    With `over_batch`, each position attends to the same position in the other images instead, so the output for an
    image depends on the rest of the batch.

    Reference: Zhao et al., TDRG, ICCV 2021, structural relation. The first release of its code uses attention over the
    batch and Glorot initialization.

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
        # PyTorch's attention runs along the first axis: over P positions, or over the N images of the batch.
        sequence = maps.flatten(2).permute(2, 0, 1)  # (P, N, W)
        if self.over_batch:
            sequence = sequence.transpose(0, 1)  # (N, P, W)
        for layer in self.layers:
            sequence = layer(sequence)
        if self.over_batch:
            sequence = sequence.transpose(0, 1)  # (P, N, W)
        return sequence.permute(1, 2, 0).reshape(maps.shape)


def _layer(width: int, heads: int, feed_forward: int) -> nn.TransformerEncoderLayer:
    """Return a layer that initially only normalizes, because the last linear map of both blocks is zero."""
    layer = nn.TransformerEncoderLayer(width, heads, feed_forward, dropout=0.0, activation="gelu")
    nn.init.xavier_uniform_(layer.linear1.weight)
    for last in (layer.self_attn.out_proj, layer.linear2):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    return layer
