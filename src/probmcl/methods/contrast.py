"""Shared parts of the contrastive methods: projection head, label overlaps, gathered rows and collapse statistics.

A falling loss does not prove that features improve: the paper's objective can map all images to one point while both
of its terms decrease (decision 0002). The collapse statistics of each step show this.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import normalize

from probmcl import overlap
from probmcl.data.records import LabelSpace
from probmcl.encoders import AnyEncoder
from probmcl.losses import positives
from probmcl.methods.base import Known, Labels, Method, Step, Views
from probmcl.mixture import IsotropicMixture, KernelMixture
from probmcl.runtime import distributed
from probmcl.runtime.precision import full_precision

SMALLEST_GAP = 0.02
"""Difference between the mean similarities of positives and negatives below which a collapse is reported."""

Overlap = Literal["jaccard", "cosine", "cosine_literal"]

POSITIVE_OVERLAP = 0.5
"""Smallest Jaccard index at which two images count as positives in the statistics of `ProjectedContrast`."""

Mixture = TypeVar("Mixture", IsotropicMixture, KernelMixture)


class ProjectionHead(nn.Module):
    """Projection of features onto the unit sphere.

    It consists of linear layers of the given sizes with ReLU between them, followed by L2 normalization. Without sizes,
    the features are only normalized.

    Reference: Khosla et al., Supervised Contrastive Learning, section 3.1.

    >>> head = ProjectionHead(8, (16, 4))
    >>> head(torch.ones(2, 8)).shape, bool(head(torch.ones(2, 8)).norm(dim=1).allclose(torch.ones(2)))
    (torch.Size([2, 4]), True)
    """

    def __init__(self, in_features: int, sizes: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for n_inputs, n_outputs in pairwise((in_features, *sizes)):
            layers += [nn.Linear(n_inputs, n_outputs), nn.ReLU()]
        without_last_relu = layers[:-1]
        self.layers = nn.Sequential(*without_last_relu)

    @full_precision
    def forward(self, features: Float[Tensor, "M D"]) -> Float[Tensor, "M d"]:
        """Return the projection of each row."""
        return normalize(self.layers(features), dim=1)


class ProjectedContrast(Method, ABC):
    """Base class for losses computed on the cosine similarities of projected features, with two views of each image.

    Subclasses implement `contrast`. Their settings include `projection`, the layer sizes of the projection head. The
    head is only used in training; predictions come from a linear probe on the encoder. If the batch is split across
    several processes (P rows in total), each process compares its M rows with the rows of all processes.
    """

    n_views = 2

    def __init__(self, encoder: AnyEncoder, label_space: LabelSpace, config: Any = None) -> None:
        super().__init__()
        self.config = config or self.presets["default"]
        self.encoder = encoder
        self.projection = ProjectionHead(encoder.features, self.config.projection)

    def forward(self, views: Views, labels: Labels, known: Known = None) -> Step:
        """Return the contrastive loss over all views, with the collapse statistics of the rows of this process."""
        n_views = len(views)
        features = self.encoder(views.flatten(0, 1))  # (M, D)
        projected = self.projection(features)  # (M, d)
        all_projected = distributed.gather(projected)  # (P, d)
        similarity = full_precision(torch.matmul)(projected, all_projected.T)  # (M, P)
        loss = self.contrast(similarity, labels, known, n_views)

        own_rows = distributed.local_rows(len(similarity))
        own_similarity = similarity[:, own_rows]  # (M, M)
        image_overlaps = _overlap(labels, labels, kind="jaccard", known_a=known, known_b=known)  # (N, N)
        image_overlaps.fill_diagonal_(1)  # views of one image are positives even if its labels are unknown
        own_overlaps = image_overlaps.repeat(n_views, n_views)  # (M, M)
        own_positives = positives(own_overlaps, threshold=POSITIVE_OVERLAP)
        statistics = collapse_statistics(features, None, own_similarity, own_positives, n_views=n_views)
        return Step(loss, {"contrastive": loss, **statistics})

    @abstractmethod
    def contrast(
        self, similarity: Float[Tensor, "M P"], labels: Labels, known: Known, n_views: int
    ) -> Float[Tensor, ""]:
        """Return the loss of the local rows. The mean over processes must be the loss of all rows.

        Args:
            similarity: cosines between the local rows, in the order v·N + i, and the rows of all processes.
                `self_columns` returns, for each local row, the column of the row itself.
            labels: labels of the local images. `label_overlap` compares them with the labels of all processes;
                `gather_rows` returns the labels of every column.
            known: mask of known labels; None means all.
            n_views: number of views V, with M = V·N.
        """


def label_overlap(
    labels: Float[Tensor, "N C"], known: Bool[Tensor, "N C"] | None, *, n_views: int, kind: Overlap = "jaccard"
) -> Float[Tensor, "M P"]:
    """Return the overlap of the local rows with the rows of all processes.

    Row v·N + i of a process is view v of its image i. All views of an image have its labels.

    >>> label_overlap(torch.tensor([[1.0, 1.0], [1.0, 0.0]]), None, n_views=1)
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]])
    """
    all_known = None if known is None else distributed.gather(known)
    all_labels = distributed.gather(labels)
    between_images = _overlap(labels, all_labels, kind=kind, known_a=known, known_b=all_known)  # (N, processes·N)
    n_images = len(labels)
    own_images = distributed.local_rows(n_images)
    # Deviation (decision 0001, point 26): views of one image are positives even if its labels are unknown.
    between_images[:, own_images].fill_diagonal_(1)
    # The rows of one process are adjacent columns, in the order v·N + i. Its block is therefore repeated as a whole.
    blocks = between_images.reshape(n_images, distributed.world_size(), n_images)
    repeated_blocks = blocks.repeat(n_views, 1, n_views)  # (M, processes, M)
    return repeated_blocks.flatten(1)


def gather_rows(per_image: Shaped[Tensor, "N C"], *, n_views: int) -> Shaped[Tensor, "P C"]:
    """Repeat a per-image tensor once per view, and gather it from all processes in column order.

    >>> gather_rows(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), n_views=2)[:, 0]
    tensor([1., 0., 1., 0.])
    """
    return distributed.gather(per_image.repeat(n_views, 1))


def self_columns(similarity: Float[Tensor, "M P"]) -> Int[Tensor, "M"]:
    """Return, for each local row, the column of the row itself.

    >>> self_columns(torch.zeros(2, 2))
    tensor([0, 1])
    """
    local = distributed.local_rows(len(similarity))
    return torch.arange(local.start, local.stop, device=similarity.device)


def gather_mixture(mixture: Mixture) -> Mixture:
    """Gather the mixtures of all processes with one all-gather (and one all-reduce in the backward pass)."""
    if distributed.world_size() == 1:
        return mixture
    tensors = {name: value for name, value in vars(mixture).items() if isinstance(value, Tensor)}
    matrices = [tensor.flatten(1) for tensor in tensors.values()]
    widths = [matrix.shape[1] for matrix in matrices]
    all_rows = distributed.gather(torch.cat(matrices, dim=1))
    parts = torch.split(all_rows, widths, dim=1)
    gathered: dict[str, Any] = {}
    for (name, tensor), part in zip(tensors.items(), parts, strict=True):
        gathered[name] = part.reshape(-1, *tensor.shape[1:])
    return replace(mixture, **gathered)


def _overlap(
    a: Float[Tensor, "N C"],
    b: Float[Tensor, "Q C"],
    *,
    kind: Overlap,
    known_a: Bool[Tensor, "N C"] | None,
    known_b: Bool[Tensor, "Q C"] | None,
) -> Float[Tensor, "N Q"]:
    """Return the overlap of every pair of label sets, one from `a` and one from `b`, in the measure `kind`."""
    if kind == "jaccard":
        return overlap.jaccard(a, b, known_a=known_a, known_b=known_b)
    return overlap.cosine(a, b, known_a=known_a, known_b=known_b, literal=kind == "cosine_literal")


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
    """Return scalar statistics that reveal a collapse in a contrastive step. Row v·N + i is view v of image i.

    - effective_components: inverse Simpson index of the mixture weights, from 1 to C; only with a mixture
    - mean_coordinate: |mean coordinate of h|·√D with ‖h‖ = 1; it is 1 if every feature is ±1/√D in all coordinates
    - feature_cosine: mean cosine between the features of different images
    - similarity_positive, similarity_negative: mean similarity of positive pairs and of negative pairs
    - rows_without_positives: fraction of rows whose only positives are views of the same image
    """
    n_rows = len(features)
    n_images = n_rows // n_views
    image_of_row = torch.arange(n_rows, device=features.device) % n_images
    same_image = image_of_row[:, None] == image_of_row  # (M, M)
    same_row = torch.eye(n_rows, dtype=torch.bool, device=features.device)
    negative = ~positive & ~same_row
    has_other_positives = (positive & ~same_image).any(1)  # (M)
    unit_features = normalize(features, dim=1)

    statistics = {}
    if mixture is not None:
        statistics["effective_components"] = mixture.effective_components().mean()
    statistics["mean_coordinate"] = unit_features.mean(1).abs().mean() * unit_features.shape[1] ** 0.5
    statistics["feature_cosine"] = (unit_features @ unit_features.T)[~same_image].mean()
    statistics["similarity_positive"] = similarity[positive].mean()
    statistics["similarity_negative"] = similarity[negative].mean()
    statistics["rows_without_positives"] = (~has_other_positives).float().mean()
    return statistics


def collapse_warning(statistics: Mapping[str, float]) -> str | None:
    """Return a warning if the statistics show a collapse, otherwise None.

    >>> collapse_warning({"similarity_positive": 0.8, "similarity_negative": 0.4, "effective_components": 9.0})
    >>> print(collapse_warning({"similarity_positive": 1.0, "similarity_negative": 1.0, "effective_components": 1.0}))
    collapsed: mixtures of images that share labels are not more similar than others (mean similarity 1.000 and \
1.000; 1.0 effective components)
    """
    if "similarity_positive" not in statistics:
        return None
    positive = statistics["similarity_positive"]
    negative = statistics["similarity_negative"]
    has_collapsed = positive - negative < SMALLEST_GAP  # false for NaN, the mean of a batch without negatives
    if not has_collapsed:
        return None
    compared = "images"
    components = ""
    if "effective_components" in statistics:
        compared = "mixtures of images"
        components = f"; {statistics['effective_components']:.1f} effective components"
    return (
        f"collapsed: {compared} that share labels are not more similar than "
        f"others (mean similarity {positive:.3f} and {negative:.3f}{components})"
    )
