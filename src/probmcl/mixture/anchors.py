"""Label anchors: one learned Gaussian per class, and the similarity of images to the mixtures of label sets."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from probmcl.mixture.aligned import ComponentWeight, log_class_weights
from probmcl.mixture.density import (
    Floor,
    IsotropicMixture,
    cap_at_one,
    check_same_space,
    floored_variance,
    variance_term,
)
from probmcl.runtime.precision import full_precision, to_float64


class LabelAnchors(nn.Module):
    """One learned Gaussian N(m_k, v_k I) per class, which is compared with component k of each image.

    The mixture of a label set y is q_y = Σ_{k∈y} N(m_k, v_k I)/|y|. All means start at zero and all variances at two
    (with the `variance` floor), close to a mixture density network with PyTorch's initialization. Classes may start
    out equal because only components with the same index are compared. For the arguments, see
    `MixtureDensityNetwork`.

    >>> LabelAnchors(3, dim=2, mean_size=2)().mean.shape
    torch.Size([1, 3, 2])
    """

    def __init__(self, classes: int, *, dim: int, mean_size: int | None = None, floor: Floor = "variance") -> None:
        super().__init__()
        self.dim, self.floor = dim, floor
        shape_of_means = (classes,) if mean_size is None else (classes, mean_size)
        self.mean = nn.Parameter(torch.zeros(shape_of_means))
        self.variance = nn.Parameter(torch.zeros(classes))  # before the floor

    def forward(self) -> IsotropicMixture:
        """Return a single mixture with equal weights whose component k is the Gaussian of class k."""
        variance = floored_variance(self.variance, self.floor)[None]  # (1, C)
        log_weight = torch.zeros_like(variance).log_softmax(1)  # −log C
        return IsotropicMixture(log_weight, self.mean[None], variance, self.dim)


@full_precision
def label_set_correlation(
    p: IsotropicMixture,
    anchors: IsotropicMixture,
    present: Bool[Tensor, "P C"],
    *,
    component_weight: ComponentWeight = "l2",
) -> Float[Tensor, "M P"]:
    """Return the `aligned_correlation` of M images with the mixtures of P label sets, using one matrix product.

    Sim(p, q_y) = Σ_{k∈y} w_k κ_k / √(|y| Σ_k w_k²). With `component_weight="density"`, the classes in y are weighted by
    u_k = v_k^(−n/4), which gives Σ_{k∈y} w_k κ_k u_k / √(Σ_{k∈y} u_k² Σ_k w_k²). The column for an empty label set
    is 0.

    Reference: decision 0002, "Label anchors".

    Args:
        p: M mixtures.
        anchors: a single mixture with the Gaussian of each class, as returned by `LabelAnchors`.
        present: mask of the labels in each set.
        component_weight: as in `aligned_correlation`.

    >>> p = IsotropicMixture(torch.tensor([[0.5, 0.5]]).log(), torch.zeros(1, 2, 3), torch.ones(1, 2), dim=3)
    >>> label_set_correlation(p, p, torch.tensor([[True, True], [True, False]]))  # both classes, and one of them
    tensor([[1.0000, 0.7071]])
    """
    log_weight = log_class_weights(anchors, component_weight).expand(present.shape)  # log u_k, for each set
    empty = ~present.any(1, keepdim=True)
    included = present | empty  # an empty set gets all classes, to avoid NaN; its column is set to 0 below
    log_weight = log_weight.masked_fill(~included, -torch.inf)
    log_length = 0.5 * (2 * log_weight).logsumexp(1, keepdim=True)  # log √Σ_{k∈y} u_k²
    unit_weight = (log_weight - log_length).exp().where(~empty, 0)  # (P, C)
    class_similarity = (-_distance(p, anchors, component_weight)).exp()  # (M, C)
    similarity = class_similarity @ unit_weight.T
    return cap_at_one(similarity.to(p.variance.dtype))


@full_precision
def class_logits(
    p: IsotropicMixture, anchors: IsotropicMixture, *, component_weight: ComponentWeight = "l2"
) -> Float[Tensor, "M C"]:
    """Return logits whose sigmoid is the correlation of an image with each single-label mixture.

    Sim(p, q_k) = w_k κ_k / √(Σ_j w_j²). With t = −log Sim, the logit −t − log(1 − e^(−t)) is accurate near 0 and 1.

    >>> p = IsotropicMixture(torch.tensor([[0.5, 0.5]]).log(), torch.zeros(1, 2, 3), torch.ones(1, 2), dim=3)
    >>> class_logits(p, p).sigmoid()
    tensor([[0.7071, 0.7071]])
    """
    distance = _distance(p, anchors, component_weight)
    # A distance of zero would give an infinite logit.
    t = distance.clamp(min=torch.finfo(distance.dtype).tiny)
    log_complement = (-torch.expm1(-t)).log()  # log(1 − e^(−t))
    return -(t + log_complement).to(p.variance.dtype)


def _distance(
    p: IsotropicMixture, anchors: IsotropicMixture, component_weight: ComponentWeight
) -> Float[Tensor, "M C"]:
    """Return −log(w_k κ_k / √Σ w²) in float64, as a sum of three nonnegative terms to avoid cancellation.

    −log κ_k = −(n/2) log(2σσ'/S) + ‖m − m'‖²/2S, S = v + v'.
    """
    check_same_space(p, anchors)
    log_weight = log_class_weights(p, component_weight)
    log_length = 0.5 * (2 * log_weight).logsumexp(1, keepdim=True)  # log √Σ w²
    weight_term = log_length - log_weight
    v_p, v_anchor = to_float64(p.variance), to_float64(anchors.variance)
    squares = (to_float64(p.mean) - to_float64(anchors.mean)).square()
    squared_distance = squares.sum(2) if p.has_vector_means else p.dim * squares
    return weight_term + p.dim * variance_term(v_p, v_anchor) + squared_distance / (2 * (v_p + v_anchor))
