"""Class-specific residual attention (CSRA), which pools class scores over the positions of a feature map."""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d, normalize

from probmcl.runtime.precision import at_least_float32

Heads = Literal[1, 2, 4, 6, 8]

TEMPERATURES: dict[Heads, tuple[float, ...]] = {
    1: (1.0,),
    2: (1.0, math.inf),
    4: (1.0, 2.0, 4.0, math.inf),
    6: (1.0, 2.0, 3.0, 4.0, 5.0, math.inf),
    8: (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, math.inf),
}
"""Temperatures of the heads, by number of heads; an infinite temperature means max pooling."""


class ResidualAttention(nn.Module):
    """Multi-head residual attention on feature maps, with one vector per class and one temperature per head.

    logit_c = Σ_h base_c(s_h) + λ att_c(s_h), where s_h = x·w_hc / ‖w_hc‖ at every position x of the map, `base` is the
    mean over positions, `att` is the attention-weighted mean (see `residual_attention`), and λ is `attention_weight`.
    Without `normalize`, scores are not divided by ‖w_hc‖.

    Reference: Zhu and Wu, Residual Attention, ICCV 2021, with the temperatures from its code.

    >>> head = ResidualAttention(channels=5, classes=3, heads=4)
    >>> head(torch.zeros(2, 5, 7, 7)).shape
    torch.Size([2, 3])
    """

    def __init__(
        self, channels: int, classes: int, *, heads: Heads = 1, attention_weight: float = 0.1, normalize: bool = True
    ) -> None:
        super().__init__()
        self.temperatures = TEMPERATURES[heads]
        self.attention_weight = attention_weight
        self.normalize = normalize
        bound = channels**-0.5  # PyTorch's default for a 1×1 convolution
        self.weight = nn.Parameter(torch.empty(heads, classes, channels).uniform_(-bound, bound))

    def forward(self, maps: Float[Tensor, "N K h w"]) -> Float[Tensor, "N C"]:
        """Return the logits, summed over heads."""
        scores_by_head = self.scores(maps).flatten(3).unbind(1)  # H tensors (N, C, P)
        logits = [
            residual_attention(scores, temperature=temperature, weight=self.attention_weight)
            for scores, temperature in zip(scores_by_head, self.temperatures, strict=True)
        ]
        return torch.stack(logits).sum(0)

    def scores(self, maps: Float[Tensor, "N K h w"]) -> Float[Tensor, "N H C h w"]:
        """Return the score of each class at each position, for every head."""
        images, _, height, width = maps.shape
        heads, classes, _ = self.weight.shape
        vectors = normalize(self.weight, dim=2) if self.normalize else self.weight
        filters = vectors.flatten(0, 1)[:, :, None, None]  # (H·C, K, 1, 1)
        scores = conv2d(maps, filters)  # (N, H·C, h, w)
        return scores.reshape(images, heads, classes, height, width)


def residual_attention(scores: Float[Tensor, "N C P"], *, temperature: float, weight: float) -> Float[Tensor, "N C"]:
    """Return the mean score over positions plus λ times the attention-weighted mean.

    logit = 1/P Σ_p s_p + λ Σ_p a_p s_p, where a = softmax(T s) over the P positions.

    Reference: Zhu and Wu, Residual Attention, ICCV 2021, Eq. 8.

    >>> residual_attention(torch.tensor([[[0.0, 2.0]]]), temperature=math.inf, weight=0.5)
    tensor([[2.]])
    """
    scores = at_least_float32(scores)
    return scores.mean(2) + weight * softmax_mean(scores, temperature)


def softmax_mean(scores: Float[Tensor, "N C P"], temperature: float) -> Float[Tensor, "N C"]:
    """Return the softmax-weighted mean of the scores: Σ_p softmax(T s)_p s_p.

    T = 0 gives the mean and T = ∞ the maximum.

    Reference: Zhu and Wu, Residual Attention, ICCV 2021.

    >>> scores = torch.tensor([[[0.0, 2.0]]])
    >>> softmax_mean(scores, 0.0), softmax_mean(scores, 1.0), softmax_mean(scores, math.inf)
    (tensor([[1.]]), tensor([[1.7616]]), tensor([[2.]]))
    """
    scores = at_least_float32(scores)
    if math.isinf(temperature):
        return scores.amax(2)
    attention = (temperature * scores).softmax(2)
    return (attention * scores).sum(2)
