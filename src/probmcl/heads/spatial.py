"""Spatial regularization (SRN): attention and confidence maps for each class, and filters over the whole map."""

import math
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import batch_norm

from probmcl.runtime.precision import full_precision

PRIOR = 0.05
"""Initial probability of each class: VOC and MS-COCO have a class in 7 % and in 4 % of the images, on average."""


class ClassMaps(NamedTuple):
    """For each class an attention map, whose sum is 1, and a map of logits."""

    attention: Float[Tensor, "N C h w"]
    confidence: Float[Tensor, "N C h w"]


class ClassAttention(nn.Module):
    """Two maps for each class: attention A = softmax over positions of f(x), and confidence S = W x + b.

    f is a 1×1, a 3×3 and a 1×1 convolution with `width` channels between them, and batch normalization and ReLU after
    the first two. The last has no bias, which a softmax would cancel. x are the maps with each channel standardized, so
    that W learns equally fast from maps of any scale. Since standardized maps have mean 0, b starts at the logit of a
    low probability, `PRIOR`.

    Reference: Zhu et al., SRN, CVPR 2017; batch normalization as in later versions by others.

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
        """Return the attention and the confidence maps."""
        maps = self.norm(maps)
        return ClassMaps(spatial_softmax(self.score(maps)), self.confidence(maps))


class SpatialRegularization(nn.Module):
    """Logits from the weighted attention maps of all classes together, by filters that see the whole map.

    Two 1×1 convolutions of `width` channels mix the classes; then each channel has `filters` filters of its own, as
    large as the map, whose outputs a linear layer maps to logits. Batch normalization and ReLU follow each convolution.
    The filters fit only maps of `side` × `side` positions.

    Reference: Zhu et al., SRN, CVPR 2017; batch normalization as in later versions by others.

    >>> import torch
    >>> head = SpatialRegularization(classes=3, side=7, width=8)
    >>> head(torch.zeros(2, 3, 7, 7)).shape, head.filters[0].weight.shape
    (torch.Size([2, 3]), torch.Size([32, 1, 7, 7]))
    """

    def __init__(self, classes: int, *, side: int, width: int = 512, filters: int = 4) -> None:
        super().__init__()
        self.side = side
        self.mix = nn.Sequential(
            *_layer(nn.Conv2d(classes, width, 1, bias=False)), *_layer(nn.Conv2d(width, width, 1, bias=False))
        )
        self.filters = nn.Sequential(*_layer(nn.Conv2d(width, width * filters, side, groups=width, bias=False)))
        self.linear = nn.Linear(width * filters, classes)

    def forward(self, maps: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C"]:
        """Return one logit for each class."""
        if maps.shape[2:] != (self.side, self.side):
            raise ValueError(
                f"maps of {maps.shape[2]}×{maps.shape[3]} positions, and filters for {self.side}×{self.side}: "
                "give images of the size that this was made for"
            )
        logits: Tensor = self.linear(self.filters(self.mix(maps)).flatten(1))
        return logits


@full_precision
def spatial_softmax(scores: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C h w"]:
    """Attention of each class: the softmax of its scores over the positions of the map.

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
    """Logits from where each class is looked for: Σ_p A_p S_p over the positions p.

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
    """Attention where there is confidence, and little where there is none: U = P A sigmoid(S), P positions.

    Reference: Zhu et al., SRN, CVPR 2017, which has no P. With it, attention that is spread evenly counts as 1 on maps
    of any size, and batch normalization after the convolution that comes next is not left with numbers below its ε.

    >>> import torch
    >>> weighted_attention(torch.tensor([[[[0.75, 0.25]]]]), torch.zeros(1, 1, 1, 2))
    tensor([[[[0.7500, 0.2500]]]])
    """
    return attention.shape[2] * attention.shape[3] * attention * confidence.sigmoid()


def _layer(convolution: nn.Conv2d) -> tuple[nn.Module, ...]:
    return convolution, BatchNorm(convolution.out_channels), nn.ReLU()


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization of maps or of vectors.

    One position of one image has no deviation: in training it is held against the running statistics, which stay.

    >>> import torch
    >>> BatchNorm(3)(torch.ones(1, 3)).shape  # torch's own would refuse
    torch.Size([1, 3])
    """

    def forward(self, x: Float[Tensor, "N K *positions"]) -> Float[Tensor, "N K *positions"]:
        """Every channel with mean 0 and deviation 1, then scaled and moved as learned."""
        if self.training and x.numel() == x.shape[1]:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def _check_input_dim(self, x: Tensor) -> None:
        """Vectors are welcome too."""
