"""The collapse monitor of contrastive methods: statistics of each step, and a warning.

A falling loss does not prove better features: the paper's own objective can map all images to one point while both of
its terms decrease (decision 0002). These statistics show it.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import normalize

from probmcl.mixture import IsotropicMixture
from probmcl.runtime.precision import full_precision

SMALLEST_GAP = 0.02
"""Smallest difference between the mean similarities of positives and of negatives without a warning."""

STATISTICS = (
    "effective_components",
    "mean_coordinate",
    "feature_cosine",
    "similarity_positive",
    "similarity_negative",
    "rows_without_positives",
)


@torch.no_grad()
@full_precision
def collapse_statistics(
    features: Float[Tensor, "M D"],
    mixture: IsotropicMixture | None,
    similarity: Float[Tensor, "M M"],
    positive: Bool[Tensor, "M M"],
    *,
    n_views: int,
) -> dict[str, Tensor]:
    """Return the statistics of a contrastive step, each a number; rows in the order v·N + i.

    - effective_components: inverse Simpson index of the mixture weights, from 1 to C; only with a mixture;
    - mean_coordinate: |mean coordinate of h|·√D with ‖h‖ = 1; at 1 every feature is the same direction ±1/√D;
    - feature_cosine: mean cosine between the features of different images;
    - similarity_positive, similarity_negative: mean Sim of positive pairs and of the others;
    - rows_without_positives: share of rows whose only positives are views of their own image.
    """
    unit = normalize(features, dim=1)
    images = torch.arange(len(features), device=features.device) % (len(features) // n_views)
    same_image = images[:, None] == images
    negative = ~positive & ~torch.eye(len(features), dtype=torch.bool, device=features.device)
    components = {} if mixture is None else {"effective_components": mixture.effective_components().mean()}
    return components | {
        "mean_coordinate": unit.mean(1).abs().mean() * unit.shape[1] ** 0.5,
        "feature_cosine": (unit @ unit.T)[~same_image].mean(),
        "similarity_positive": similarity[positive].mean(),
        "similarity_negative": similarity[negative].mean(),
        "rows_without_positives": (~(positive & ~same_image).any(1)).float().mean(),
    }


def collapse_warning(statistics: Mapping[str, float]) -> str | None:
    """Return a warning if the statistics of a run after its warm-up show a collapse, otherwise None.

    >>> collapse_warning({"similarity_positive": 0.8, "similarity_negative": 0.4, "effective_components": 9.0})
    >>> print(collapse_warning({"similarity_positive": 1.0, "similarity_negative": 1.0, "effective_components": 1.0}))
    collapsed: mixtures of images that share labels are no more alike than others (similarity 1.000 against 1.000, 1.0 \
effective components). What the encoder learns from here on does not tell images apart; see docs/decisions/0002.
    """
    if "similarity_positive" not in statistics:
        return None
    positive, negative = statistics["similarity_positive"], statistics["similarity_negative"]
    if not positive - negative < SMALLEST_GAP:  # also if one is NaN, as in a batch without negatives
        return None
    of_mixtures = "effective_components" in statistics
    components = f", {statistics['effective_components']:.1f} effective components" if of_mixtures else ""
    return (
        f"collapsed: {'mixtures of images' if of_mixtures else 'images'} that share labels are no more alike than "
        f"others (similarity {positive:.3f} against {negative:.3f}{components}). "
        "What the encoder learns from here on does not tell images apart; see docs/decisions/0002."
    )
