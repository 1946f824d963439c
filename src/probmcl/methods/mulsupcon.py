"""MulSupCon: a supervised contrastive loss for each label of an image."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses import per_label_contrastive
from probmcl.losses.per_label import Average, present
from probmcl.methods.base import Known, Labels, MethodOrigin, repeat_for_views, rescale_for_ddp
from probmcl.methods.contrast import ProjectedContrast, gather_rows, self_columns


@dataclass(frozen=True)
class Config:
    """Settings of `mulsupcon`.

    Attributes:
        projection: layer sizes of the projection head; without layers, the features themselves are compared.
        temperature: temperature of the contrastive softmax.
        average: `labels` averages the loss over all labels of all images, so images with more labels count more;
            `images` first averages over the labels of each image and then over the images.
    """

    projection: tuple[int, ...] = (128,)
    temperature: float = 0.1
    average: Average = "labels"

    def __post_init__(self) -> None:
        check_range(above=0, temperature=self.temperature)


@final
class MulSupCon(ProjectedContrast):
    """Contrastive loss on projected features, with separate positives for each label of an image.

    Reference: Zhang and Wu, Multi-Label Supervised Contrastive Learning, AAAI 2024.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "zhang2024mulsupcon")
    config: Config

    def contrast(
        self, similarity: Float[Tensor, "M P"], labels: Labels, known: Known, n_views: int
    ) -> Float[Tensor, ""]:
        """Return the mean over the labels of the local rows, or over the rows themselves."""
        row_labels, row_known = repeat_for_views(n_views, labels, known)  # (M, C)
        column_labels = gather_rows(labels, n_views=n_views)  # (P, C)
        column_known = None if known is None else gather_rows(known, n_views=n_views)
        loss = per_label_contrastive(
            similarity,
            row_labels,
            column_labels,
            temperature=self.config.temperature,
            known_a=row_known,
            known_b=column_known,
            self_column=self_columns(similarity),
            average=self.config.average,
        )
        if self.config.average == "images":  # every process has the same number of rows
            return rescale_for_ddp(loss, "mean")
        averaged_labels = present(row_labels, row_known)  # their number differs between processes
        return rescale_for_ddp(loss, "mean", averaged_labels)
