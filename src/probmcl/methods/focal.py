"""The focal loss, trained end to end: the predecessor of the asymmetric loss."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses import focal
from probmcl.methods.base import Known, Labels, LinearClassifier, Logits, MethodOrigin


@dataclass(frozen=True)
class Config:
    """Settings of `focal`; the defaults are the published values.

    Attributes:
        gamma: focusing exponent; higher values down-weight easy entries more.
        positive_weight: weight of positives; negatives have one minus this weight. With `none`, both have weight 1.
    """

    gamma: float = 2.0
    positive_weight: float | None = 0.25

    def __post_init__(self) -> None:
        check_range(at_least=0, gamma=self.gamma)
        check_range(at_least=0, at_most=1, positive_weight=self.positive_weight)


@final
class Focal(LinearClassifier):
    """Encoder and linear layer, trained end to end with the focal loss.

    Reference: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("paper", "lin2017focal", ("default",))
    config: Config

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the mean focal loss of the known entries."""
        return focal(
            logits,
            labels,
            known,
            gamma=self.config.gamma,
            positive_weight=self.config.positive_weight,
            reduction=self.reduction,
        )
