"""A graph of the classes that is drawn anew for each image: its nodes, its edges and what is read from them."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from probmcl.errors import check_range
from probmcl.heads.normalization import BatchNorm
from probmcl.runtime.precision import at_least_float32, full_precision

SLOPE = 0.2
"""Of the leaky ReLUs around the graph convolution."""


def top_mean(scores: Float[Tensor, "N C h w"], share: float) -> Float[Tensor, "N C"]:
    """The mean of the highest scores of each class, over a share of the positions and at least one.

    Of P positions there are round(share · P).

    Reference: Zhao et al., TDRG, ICCV 2021, the semantic-aware constraints.

    >>> top_mean(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), 0.5)
    tensor([[4.5000]])
    """
    check_range(above=0, at_most=1, share=share)
    scores = at_least_float32(scores.flatten(2))
    return scores.topk(max(1, round(share * scores.shape[2])), dim=2).values.mean(2)


@full_precision
def class_nodes(maps: Float[Tensor, "N W h w"], scores: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C W"]:
    """A vector for each class: the positions of a map, each counted by how much it speaks for the class.

    node_c = Σ_p sigmoid(s_cp) x_p. It is a sum: a class is seen at few positions, and a mean would be next to nothing.

    Reference: Zhao et al., TDRG, ICCV 2021, the nodes of the semantic relation.

    >>> class_nodes(torch.tensor([[[[2.0, 4.0]]]]), torch.zeros(1, 1, 1, 2))  # each counts one half
    tensor([[[3.]]])
    """
    return torch.einsum("nchw,nkhw->nck", scores.sigmoid(), maps)


class ImageGraph(nn.Module):
    """Logits from a node for each class, along edges that the nodes and a guidance for the whole image decide.

    A_ij = sigmoid(u_j · [g | v_i] + a_j),  r_i = σ(W σ(Σ_j A_ij v_j) + b),  logit_i = w_i · (v_i + r_i) + b_i,
    where v are the nodes, g = σ(norm(G m)) with m the given guidance, and σ is a leaky ReLU. W and b start at 0: at
    first no node knows of any other.

    In training `norm` takes the statistics of the batch; of one image alone there are none, and it takes those so far.

    Reference: Zhao et al., TDRG, ICCV 2021, the semantic relation; there W and b start as those of any linear layer.

    Args:
        node: size of a node.
        guidance: size of the guidance.
        classes: C.

    >>> graph = ImageGraph(node=4, guidance=6, classes=3)
    >>> graph(torch.zeros(2, 3, 4), torch.zeros(2, 6)).shape
    torch.Size([2, 3])
    """

    def __init__(self, node: int, guidance: int, classes: int) -> None:
        super().__init__()
        self.guide = nn.Linear(guidance, guidance)
        self.norm = BatchNorm(guidance)
        self.edges = nn.Linear(guidance + node, classes)
        self.convolution = nn.Linear(node, node)
        self.classifier = nn.Linear(node, classes)
        nn.init.zeros_(self.convolution.weight)
        nn.init.zeros_(self.convolution.bias)

    @full_precision
    def forward(self, nodes: Float[Tensor, "N C V"], guidance: Float[Tensor, "N G"]) -> Float[Tensor, "N C"]:
        """What each class's own classifier says of its node."""
        sent = leaky_relu(self.correlation(nodes, guidance) @ nodes, SLOPE)
        received = leaky_relu(self.convolution(sent), SLOPE)
        return ((nodes + received) * self.classifier.weight).sum(2) + self.classifier.bias

    @full_precision
    def correlation(self, nodes: Float[Tensor, "N C V"], guidance: Float[Tensor, "N G"]) -> Float[Tensor, "N C C"]:
        """The edges: in row i, how much class i takes from each class."""
        guide = leaky_relu(self.norm(self.guide(guidance)), SLOPE)
        guides = guide[:, None].expand(-1, nodes.shape[1], -1)  # (N, C, G)
        edges: Tensor = self.edges(torch.cat([guides, nodes], 2))
        return edges.sigmoid()
