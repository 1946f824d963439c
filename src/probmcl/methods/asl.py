"""The asymmetric loss, trained end to end: one of the strongest baselines in the paper's tables."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.losses import asymmetric
from probmcl.methods.base import Known, Labels, LinearClassifier, Logits, MethodOrigin


@dataclass(frozen=True)
class Config:
    """Settings of `asl`; the defaults are the values in the published training script.

    Attributes:
        gamma_negative: focusing exponent of negatives; higher values down-weight easy negatives more.
        gamma_positive: focusing exponent of positives.
        clip: negatives with a probability up to this value have no loss.
        focusing_gradient: whether gradients also flow through the focusing factors.
    """

    gamma_negative: float = 4.0
    gamma_positive: float = 0.0
    clip: float = 0.05
    focusing_gradient: bool = False


@final
class ASL(LinearClassifier):
    """Encoder and linear layer, trained end to end with the asymmetric loss.

    Reference: Ridnik et al., Asymmetric Loss for Multi-Label Classification, ICCV 2021.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = MethodOrigin("authors' code", "ridnik2021asl", ("default",))
    config: Config
    reduction = "sum"

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Return the asymmetric loss, summed over the known entries."""
        return asymmetric(
            logits,
            labels,
            known,
            gamma_negative=self.config.gamma_negative,
            gamma_positive=self.config.gamma_positive,
            clip=self.config.clip,
            focusing_gradient=self.config.focusing_gradient,
            reduction=self.reduction,
        )
