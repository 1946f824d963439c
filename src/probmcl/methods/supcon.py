"""SupCon for images with several labels: ProbMCL's contrastive loss on cosines instead of mixtures."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses import contrastive
from probmcl.methods.base import Known, Labels, MethodOrigin
from probmcl.methods.contrast import Overlap, ProjectedContrast, label_overlap, self_columns


@dataclass(frozen=True)
class Config:
    """Settings of `supcon`.

    Attributes:
        projection: layer sizes of the projection head; without layers, the features themselves are compared.
        overlap: overlap measure for two label sets; `cosine_literal` is the cosine as printed in ProbMCL.
        threshold: smallest overlap at which two images are positives.
        temperature: temperature of the contrastive softmax.
    """

    projection: tuple[int, ...] = (128,)
    overlap: Overlap = "jaccard"
    threshold: float = 0.5
    temperature: float = 0.1

    def __post_init__(self) -> None:
        check_range(above=0, temperature=self.temperature)
        check_range(at_least=0, at_most=1, threshold=self.threshold)


@final
class SupCon(ProjectedContrast):
    """Contrastive loss on projected features; the positives of an image are weighted by label overlap.

    Reference: Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, for one label per image. For several
    labels, the loss is Eq. 3 of ProbMCL, with cosines instead of mixture correlations.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("paper", "khosla2020supcon")
    config: Config

    def contrast(
        self, similarity: Float[Tensor, "M P"], labels: Labels, known: Known, n_views: int
    ) -> Float[Tensor, ""]:
        """Return Eq. 3 as a mean over the local rows."""
        overlaps = label_overlap(labels, known, n_views=n_views, kind=self.config.overlap)  # (M, P)
        return contrastive(
            similarity,
            overlaps,
            threshold=self.config.threshold,
            temperature=self.config.temperature,
            self_column=self_columns(similarity),
        )
