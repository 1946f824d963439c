"""The mixture density network: from a feature to the parameters of a mixture (ProbMCL, section 2.1 and Fig. 1c)."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from probmcl.mixture.density import IsotropicMixture
from probmcl.runtime.precision import full_precision

Activation = Literal["relu", "none"]
Floor = Literal["variance", "deviation"]
Initialization = Literal["paper", "torch"]


class MixtureDensityNetwork(nn.Module):
    """Maps a feature h(x) to a Gaussian mixture with one component for each class.

    Hidden layers (2048 and 128 units in the paper; without any, the heads are linear in h), then three heads: the
    weights π by softmax, the means μ as they come, the variances by ELU(a) + 2, which is never below one.

    Reference: ProbMCL, section 2.1, "Mixture Density Network", and section 3.1 for the initialization.

    Args:
        in_features: size D of the feature.
        classes: number C of components.
        dim: dimensions of the space the mixture lives in; by default D, the paper's z = h. With `mean_size`, that.
        mean_size: None for the paper's scalar means μ·1, or the size d of a mean vector for each component.
        hidden: sizes of the hidden layers.
        activation: what follows each hidden layer. The text points to heads with ReLU, the figure draws none.
        floor: what ELU(a) + 2 is: the variance (the paper's "for the variances") or the standard deviation.
        initialization: of the mean and variance heads; `paper` is `initialize_as_paper`, `torch` keeps PyTorch's draw.

    >>> import torch
    >>> network = MixtureDensityNetwork(in_features=8, classes=3, hidden=(16,))
    >>> mixture = network(torch.zeros(2, 8))
    >>> mixture.mean.shape, mixture.dim, bool((mixture.variance >= 1).all())
    (torch.Size([2, 3]), 8, True)
    """

    def __init__(
        self,
        in_features: int,
        classes: int,
        *,
        dim: int | None = None,
        mean_size: int | None = None,
        hidden: Sequence[int] = (2048, 128),
        activation: Activation = "relu",
        floor: Floor = "variance",
        initialization: Initialization = "paper",
    ) -> None:
        super().__init__()
        if mean_size is not None and dim not in (None, mean_size):
            raise ValueError(f"mean vectors of size {mean_size} live in {mean_size} dimensions, not dim={dim}")
        self.dim = mean_size or dim or in_features
        self.mean_size = mean_size
        self.floor = floor
        sizes = (in_features, *hidden)
        self.hidden = nn.Sequential(*_layers(sizes, activation))
        self.hidden_features = sizes[-1]
        self.weight_head = nn.Linear(sizes[-1], classes)
        self.mean_head = nn.Linear(sizes[-1], classes * (mean_size or 1))
        self.variance_head = nn.Linear(sizes[-1], classes)
        if initialization == "paper":
            initialize_as_paper(self.mean_head, self.variance_head)

    def forward(self, h: Float[Tensor, "M D"]) -> IsotropicMixture:
        """The mixture of each row."""
        return self.mixture(self.hidden(h))

    @full_precision
    def mixture(self, hidden: Float[Tensor, "M K"]) -> IsotropicMixture:
        """The three heads, on the output of `hidden`."""
        mean = self.mean_head(hidden)
        if self.mean_size is not None:
            mean = mean.unflatten(1, (-1, self.mean_size))
        variance = floored_variance(self.variance_head(hidden), self.floor)
        return IsotropicMixture(self.weight_head(hidden).log_softmax(1), mean, variance, self.dim)


def initialize_as_paper(mean_head: nn.Linear, variance_head: nn.Linear) -> None:
    """Draw mean weights from U(0, 0.1) and set variance weights to 1, both biases to 0 (ProbMCL, section 3.1)."""
    nn.init.uniform_(mean_head.weight, 0.0, 0.1)
    nn.init.ones_(variance_head.weight)
    for head in (mean_head, variance_head):
        nn.init.zeros_(head.bias)


def floored_variance(raw: Float[Tensor, "*shape"], floor: Floor) -> Float[Tensor, "*shape"]:
    """Variances of at least one from any numbers: ELU(a) + 2, or its square.

    >>> import torch
    >>> floored_variance(torch.tensor([0.0, 1.0]), "deviation")
    tensor([4., 9.])
    """
    floored = nn.functional.elu(raw) + 2
    return floored if floor == "variance" else floored.square()


def _layers(sizes: Sequence[int], activation: Activation) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers.append(nn.Linear(inputs, outputs))
        if activation == "relu":
            layers.append(nn.ReLU())
    return layers
