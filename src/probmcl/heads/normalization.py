"""Batch normalization that also takes a batch of one."""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import batch_norm


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization of maps or of vectors.

    One position of one image has no deviation: in training it is held against the running statistics, which stay.

    >>> import torch
    >>> BatchNorm(3)(torch.ones(1, 3)).shape  # torch's own would refuse
    torch.Size([1, 3])
    """

    def forward(self, x: Float[Tensor, "N K *positions"]) -> Float[Tensor, "N K *positions"]:
        """Every channel with mean 0 and deviation 1, then scaled and moved as learned."""
        if self.training and x.numel() == x.shape[1]:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        return super().forward(x)

    def _check_input_dim(self, x: Tensor) -> None:
        """Vectors are welcome too."""
