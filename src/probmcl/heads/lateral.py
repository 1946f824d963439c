"""Labels that reach into an encoder: maps that are told of every class, and classifiers made of label embeddings."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d


class LateralConnection(nn.Module):
    """Maps, and on top of them what they have in common with each class.

    y = x + V s(x), where s_c = γ x · e_c at every position, e_c is the embedding of class c, and V a linear layer from
    the C classes back to the K channels, without a bias. V starts at zero, so that the maps start unchanged.

    Reference: Wang et al., KSSNet, AAAI 2020. There V starts from torch's random numbers.

    Args:
        channels: K of the maps.
        classes: C.
        scale: γ.

    >>> import torch
    >>> maps = torch.rand(2, 5, 7, 7)
    >>> torch.equal(LateralConnection(channels=5, classes=3)(maps, torch.rand(3, 5)), maps)
    True
    """

    def __init__(self, channels: int, classes: int, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.back = nn.Conv2d(classes, channels, 1, bias=False)
        nn.init.zeros_(self.back.weight)

    def forward(self, maps: Float[Tensor, "N K h w"], embeddings: Float[Tensor, "C K"]) -> Float[Tensor, "N K h w"]:
        """The maps with what the classes add to them."""
        shared = conv2d(maps, self.scale * embeddings[:, :, None, None])  # (N, C, h, w)
        added: Tensor = self.back(shared)
        return maps + added


class EmbeddingClassifier(nn.Module):
    """Logits from pooled features, by a linear layer and the embeddings of the classes together.

    logit_c = γ f · e_c + w_c · f + b_c, where e_c is the embedding of class c and f are the features after dropout.

    Reference: Wang et al., KSSNet, AAAI 2020.

    Args:
        features: D.
        classes: C.
        scale: γ.
        dropout: of the features, in training.

    >>> import torch
    >>> EmbeddingClassifier(features=5, classes=3)(torch.rand(2, 5), torch.rand(3, 5)).shape
    torch.Size([2, 3])
    """

    def __init__(self, features: int, classes: int, *, scale: float = 1.0, dropout: float = 0.5) -> None:
        super().__init__()
        self.scale = scale
        self.dropout = nn.Dropout(dropout)
        self.linear = nn.Linear(features, classes)

    def forward(self, features: Float[Tensor, "N D"], embeddings: Float[Tensor, "C D"]) -> Float[Tensor, "N C"]:
        """One logit for each class."""
        kept = self.dropout(features)
        logits: Tensor = self.linear(kept) + kept @ (self.scale * embeddings).T
        return logits
