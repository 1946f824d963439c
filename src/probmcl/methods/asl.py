"""The asymmetric loss end to end, the strongest rival of the paper's tables."""

from dataclasses import asdict, dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from probmcl.losses import asymmetric
from probmcl.methods.base import Known, Labels, LinearClassifier, Logits, Origin


@dataclass(frozen=True)
class Config:
    """Settings of `asl`; the defaults are those of its published training script.

    Attributes:
        gamma_negative: how strongly easy negatives are passed over.
        gamma_positive: the same for positives.
        clip: probability below which a negative is worth nothing at all.
        focusing_gradient: whether the focusing factors are differentiated too.
    """

    gamma_negative: float = 4.0
    gamma_positive: float = 0.0
    clip: float = 0.05
    focusing_gradient: bool = False


@final
class ASL(LinearClassifier):
    """Encoder and linear layer, trained together with the asymmetric loss.

    Reference: Ridnik et al., Asymmetric Loss for Multi-Label Classification, ICCV 2021.
    """

    presets = {"default": Config()}  # noqa: RUF012  # read, never written
    origin = Origin("authors' code", "ridnik2021asl", ("default",))
    config: Config
    reduction = "sum"

    def loss(self, logits: Logits, labels: Labels, known: Known) -> Float[Tensor, ""]:
        """Sum over the known entries."""
        return asymmetric(logits, labels, known, **asdict(self.config), reduction=self.reduction)
