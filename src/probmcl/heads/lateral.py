"""Label embeddings inside an encoder: lateral connections into its maps, and classifiers made of the embeddings."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import conv2d


class LateralConnection(nn.Module):
    """Maps plus a residual from their similarity to each class.

    y = x + V s(x), where s_c = γ x · e_c at every position, e_c is the embedding of class c, γ is `scale`, and V a
    linear layer from the C classes back to the K channels, without a bias. V starts at zero, so that the maps are
    initially unchanged.

    Reference: Wang et al., KSSNet, AAAI 2020. There V starts from torch's random numbers.

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
        """Return the maps with the residual added."""
        shared = conv2d(maps, self.scale * embeddings[:, :, None, None])  # (N, C, h, w)
        added: Tensor = self.back(shared)
        return maps + added


class EmbeddingClassifier(nn.Module):
    """Logits from pooled features, as the sum of a linear layer and products with the embeddings of the classes.

    logit_c = γ f · e_c + w_c · f + b_c, where e_c is the embedding of class c, γ is `scale` and f are the features
    after dropout.

    Reference: Wang et al., KSSNet, AAAI 2020.

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
        """Return one logit for each class."""
        kept = self.dropout(features)
        logits: Tensor = self.linear(kept) + kept @ (self.scale * embeddings).T
        return logits
