"""Spatial regularization (SRN): attention and confidence maps for each class, and filters over whole maps."""

import math
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from probmcl.runtime.precision import full_precision

PRIOR = 0.05
"""Initial probability of each class. On average, a class occurs in 7 % of VOC and 4 % of MS-COCO images."""


class ClassMaps(NamedTuple):
    """Attention maps, which sum to 1 over positions, and maps of logits."""

    attention: Float[Tensor, "N C h w"]
    confidence: Float[Tensor, "N C h w"]


class ClassAttention(nn.Module):
    """Attention maps A = softmax over positions of f(x), and confidence maps S = W x + b, one of each per class.

    f consists of 1×1, 3×3 and 1×1 convolutions with `width` hidden channels. The first two are followed by batch
    normalization and ReLU. The last has no bias, because softmax would cancel it. x are the maps with each channel
    standardized, so the learning speed of W does not depend on their scale. b is initialized to the logit of `PRIOR`.

    Reference: Zhu et al., SRN, CVPR 2017, with the batch normalization of later reimplementations.

    >>> import torch
    >>> attention, confidence = ClassAttention(channels=5, classes=3, width=8)(torch.zeros(2, 5, 7, 7))
    >>> attention.shape, confidence.shape
    (torch.Size([2, 3, 7, 7]), torch.Size([2, 3, 7, 7]))
    """

    def __init__(self, channels: int, classes: int, *, width: int = 512) -> None:
        super().__init__()
        self.norm = BatchNorm(channels, affine=False)
        self.score = nn.Sequential(
            *_layer(nn.Conv2d(channels, width, 1, bias=False)),
            *_layer(nn.Conv2d(width, width, 3, padding=1, bias=False)),
            nn.Conv2d(width, classes, 1, bias=False),
        )
        self.confidence = nn.Conv2d(channels, classes, 1)
        nn.init.constant_(self.confidence.get_parameter("bias"), math.log(PRIOR / (1 - PRIOR)))

    def forward(self, maps: Float[Tensor, "N E h w"]) -> ClassMaps:
        """Return the attention and confidence maps."""
        standardized = self.norm(maps)
        attention = spatial_softmax(self.score(standardized))
        return ClassMaps(attention, self.confidence(standardized))


class SpatialRegularization(nn.Module):
    """Head that computes logits from the weighted attention maps of all classes, using filters as large as the maps.

    Two 1×1 convolutions with `width` channels mix the classes. A grouped convolution then applies `filters` filters of
    `side` × `side` positions to each channel, and a linear layer computes the logits. Each convolution is followed by
    batch normalization and ReLU. Maps of any other size raise an error.

    Reference: Zhu et al., SRN, CVPR 2017, with the batch normalization of later reimplementations.

    >>> import torch
    >>> head = SpatialRegularization(classes=3, side=7, width=8)
    >>> head(torch.zeros(2, 3, 7, 7)).shape, head.filters[0].weight.shape
    (torch.Size([2, 3]), torch.Size([32, 1, 7, 7]))
    """

    def __init__(self, classes: int, *, side: int, width: int = 512, filters: int = 4) -> None:
        super().__init__()
        self.side = side
        self.mix = nn.Sequential(
            *_layer(nn.Conv2d(classes, width, 1, bias=False)),
            *_layer(nn.Conv2d(width, width, 1, bias=False)),
        )
        whole_maps = nn.Conv2d(width, width * filters, side, groups=width, bias=False)
        self.filters = nn.Sequential(*_layer(whole_maps))
        self.linear = nn.Linear(width * filters, classes)

    def forward(self, maps: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C"]:
        """Return one logit per class."""
        if maps.shape[2:] != (self.side, self.side):
            raise ValueError(
                f"expected maps of {self.side}×{self.side} positions, got {maps.shape[2]}×{maps.shape[3]}; "
                "use the image size that the model was built for"
            )
        responses = self.filters(self.mix(maps)).flatten(1)  # one position is left: (N, width · filters)
        logits: Tensor = self.linear(responses)
        return logits


@full_precision
def spatial_softmax(scores: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C h w"]:
    """Return the attention for each class: the softmax of its scores over the positions of the map.

    Reference: Zhu et al., SRN, CVPR 2017.

    >>> import torch
    >>> spatial_softmax(torch.zeros(1, 1, 2, 2))
    tensor([[[[0.2500, 0.2500],
              [0.2500, 0.2500]]]])
    """
    return scores.flatten(2).softmax(2).reshape(scores.shape)


@full_precision
def attended_confidence(
    attention: Float[Tensor, "N C h w"], confidence: Float[Tensor, "N C h w"]
) -> Float[Tensor, "N C"]:
    """Return the logits, which are the attention-weighted means of the confidence: Σ_p A_p S_p over positions p.

    Reference: Zhu et al., SRN, CVPR 2017.

    >>> import torch
    >>> attended_confidence(torch.tensor([[[[0.75, 0.25]]]]), torch.tensor([[[[4.0, 8.0]]]]))
    tensor([[5.]])
    """
    return (attention * confidence).sum((2, 3))


@full_precision
def weighted_attention(
    attention: Float[Tensor, "N C h w"], confidence: Float[Tensor, "N C h w"]
) -> Float[Tensor, "N C h w"]:
    """Return the attention weighted by confidence, U = P A sigmoid(S), for maps of P positions.

    Reference: Zhu et al., SRN, CVPR 2017, which omits the factor P. With it, P A is 1 for uniform attention on maps of
    any size, and the inputs to the following batch normalization are not tiny compared to its ε.

    >>> import torch
    >>> weighted_attention(torch.tensor([[[[0.75, 0.25]]]]), torch.zeros(1, 1, 1, 2))
    tensor([[[[0.7500, 0.2500]]]])
    """
    positions = attention.shape[2] * attention.shape[3]
    return positions * attention * confidence.sigmoid()


def _layer(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    """Return a convolution, its batch normalization and ReLU."""
    return convolution, BatchNorm(convolution.out_channels), nn.ReLU()


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization of maps or vectors.

    A single position of a single image has no variance. In training, it is normalized using the running statistics,
    which are not updated.

    >>> import torch
    >>> BatchNorm(3)(torch.ones(1, 3)).shape  # an error in PyTorch
    torch.Size([1, 3])
    """

    def forward(self, x: Float[Tensor, "N K *positions"]) -> Float[Tensor, "N K *positions"]:
        """Normalize every channel to mean 0 and standard deviation 1, then apply the learned scale and shift."""
        single_position = x.numel() == x.shape[1]
        if self.training and single_position:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def _check_input_dim(self, x: Tensor) -> None:
        """Accept vectors too."""
