"""SupCon for images with several labels: ProbMCL's contrast on cosines, without its mixture."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses import contrastive
from probmcl.methods.base import Known, Labels, Origin
from probmcl.methods.contrast import Overlap, ProjectedContrast, label_overlap, self_columns


@dataclass(frozen=True)
class Config:
    """Settings of `supcon`.

    Attributes:
        projection: sizes of the layers between feature and sphere; () compares the features themselves.
        overlap: how label sets are compared; `cosine_literal` is the formula as ProbMCL prints it.
        threshold: smallest overlap of positives.
        temperature: divides the cosines.
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
    """Contrast between projected images on the sphere, weighted by the labels they share.

    Reference: Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, for one label per image; for several,
    ProbMCL, Eq. 3 with a cosine in place of the mixtures' correlation.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = Origin("paper", "khosla2020supcon")
    config: Config

    def contrast(
        self, similarity: Float[Tensor, "M P"], labels: Labels, known: Known, n_views: int
    ) -> Float[Tensor, ""]:
        """Eq. 3, the mean over the own rows."""
        c = self.config
        return contrastive(
            similarity,
            label_overlap(labels, known, n_views=n_views, kind=c.overlap),
            threshold=c.threshold,
            temperature=c.temperature,
            self_column=self_columns(similarity),
        )
