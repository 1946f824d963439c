"""Mixtures of label sets: a Gaussian that is learned for each class, and how alike an image's mixture is to them."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probmcl.mixture.aligned import ComponentWeight
from probmcl.mixture.density import (
    Floor,
    IsotropicMixture,
    at_most_one,
    check_same_space,
    floored_variance,
    log_norms,
    spread,
)
from probmcl.runtime.precision import full_precision, to_float64


class LabelAnchors(nn.Module):
    """A Gaussian N(m_k, v_k I) for each class, in the space of the images' component k.

    The mixture of a label set y is q_y = Σ_{k∈y} N(m_k, v_k I)/|y|. All means start at zero and all variances at two,
    close to those of a network with PyTorch's initialization. Classes need not differ at the start, since component k
    is compared with component k only. `dim`, `mean_size` and `floor` are as in `MixtureDensityNetwork`.

    >>> LabelAnchors(3, dim=2, mean_size=2)().mean.shape
    torch.Size([1, 3, 2])
    """

    def __init__(self, classes: int, *, dim: int, mean_size: int | None = None, floor: Floor = "variance") -> None:
        super().__init__()
        self.dim, self.floor = dim, floor
        self.mean = nn.Parameter(torch.zeros(classes) if mean_size is None else torch.zeros(classes, mean_size))
        self.variance = nn.Parameter(torch.zeros(classes))  # before the floor

    def forward(self) -> IsotropicMixture:
        """One row, whose component k is the Gaussian of class k, all of equal weight."""
        variance = floored_variance(self.variance, self.floor)[None]
        return IsotropicMixture(torch.zeros_like(variance).log_softmax(1), self.mean[None], variance, self.dim)


@full_precision
def label_set_correlation(
    p: IsotropicMixture,
    anchors: IsotropicMixture,
    present: Bool[Tensor, "P C"],
    *,
    component_weight: ComponentWeight = "l2",
) -> Float[Tensor, "M P"]:
    """`aligned_correlation` of M images with the mixtures of P label sets, as one product of two matrices.

    Sim(p, q_y) = Σ_{k∈y} w_k κ_k / √(|y| Σ_k w_k²), where with component_weight `density` the classes of y count by
    u_k = v_k^(−n/4): Σ_{k∈y} w_k κ_k u_k / √(Σ_{k∈y} u_k² Σ_k w_k²). A set without labels has no mixture; its column
    is 0.

    Reference: decision 0002, "Label anchors".

    Args:
        p: M mixtures.
        anchors: one row, the Gaussian of each class.
        present: the labels of each set.
        component_weight: as in `aligned_correlation`.

    >>> p = IsotropicMixture(torch.tensor([[0.5, 0.5]]).log(), torch.zeros(1, 2, 3), torch.ones(1, 2), dim=3)
    >>> label_set_correlation(p, p, torch.tensor([[True, True], [True, False]]))  # equal, and half of it
    tensor([[1.0000, 0.7071]])
    """
    log_weight = _log_class_weight(anchors, component_weight).expand(present.shape)
    empty = ~present.any(1, keepdim=True)
    among = log_weight.masked_fill(~(present | empty), -torch.inf)  # an empty set is full here, so that all is finite
    unit = (among - 0.5 * (2 * among).logsumexp(1, keepdim=True)).exp().where(~empty, 0)
    similarity = (-_distance(p, anchors, component_weight)).exp() @ unit.T
    return at_most_one(similarity.to(p.variance.dtype))


@full_precision
def class_logits(
    p: IsotropicMixture, anchors: IsotropicMixture, *, component_weight: ComponentWeight = "l2"
) -> Float[Tensor, "M C"]:
    """Logit of the correlation with the mixture of each class alone, whose sigmoid is that correlation.

    Sim(p, q_k) = w_k κ_k / √(Σ_j w_j²). With t = −log Sim the logit is −t − log(1 − e^(−t)), exact at both ends.

    >>> p = IsotropicMixture(torch.tensor([[0.5, 0.5]]).log(), torch.zeros(1, 2, 3), torch.ones(1, 2), dim=3)
    >>> class_logits(p, p).sigmoid()
    tensor([[0.7071, 0.7071]])
    """
    distance = _distance(p, anchors, component_weight)
    # The logit of one is infinite. Where distances end, the smallest number there is stands for zero.
    distance = distance.clamp(min=torch.finfo(distance.dtype).tiny)
    return -(distance + (-torch.expm1(-distance)).log()).to(p.variance.dtype)


def _distance(
    p: IsotropicMixture, anchors: IsotropicMixture, component_weight: ComponentWeight
) -> Float[Tensor, "M C"]:
    """−log(w_k κ_k / √Σ w²) in float64; a sum of three numbers none of which is negative."""
    check_same_space(p, anchors)
    log_weight = _log_class_weight(p, component_weight)
    light = 0.5 * (2 * log_weight).logsumexp(1, keepdim=True) - log_weight
    v, w = to_float64(p.variance), to_float64(anchors.variance)
    apart = (to_float64(p.mean) - to_float64(anchors.mean)).square()
    squared_distance = apart.sum(2) if p.has_vector_means else p.dim * apart
    return light + p.dim * spread(v, w) + squared_distance / (2 * (v + w))


def _log_class_weight(p: IsotropicMixture, component_weight: ComponentWeight) -> Float[Tensor, "M C"]:
    return log_norms(p) if component_weight == "density" else to_float64(p.log_weight)
