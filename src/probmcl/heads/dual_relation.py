"""Dual relation head of TDRG: a transformer over three scales and a class graph for each image."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from probmcl.errors import check_range
from probmcl.heads.cross_scale import MapTransformer, ThreeScales, cross_scale
from probmcl.heads.graph import SLOPE
from probmcl.heads.spatial import BatchNorm
from probmcl.runtime.precision import at_least_float32, full_precision


class Relations(NamedTuple):
    """Logits of the structural relation, the semantic relation and the constraint."""

    structural: Float[Tensor, "N C"]
    semantic: Float[Tensor, "N C"]
    constraint: Float[Tensor, "N C"]


class DualRelation(nn.Module):
    """Dual relation head on the input and output maps of an encoder's last stage.

    t_s = transformer(x_s),  structural = linear([max_p t_1 | max_p t_2 | max_p t_3]), where x_s are the `ThreeScales`
    maps after `cross_scale` and all scales share one `MapTransformer`. The constraint is the `top_mean` of class scores
    s over the positions of the last maps y. The same scores weight the nodes [nodes(B y) | T nodes(t_2)] (see
    `class_nodes`). From these, an `ImageGraph` computes the semantic logits, guided by the means of t_1, t_2 and t_3.
    The semantic relation uses t with a stop-gradient.

    Reference: Zhao et al., Transformer-based Dual Relation Graph for Multi-label Image Recognition, ICCV 2021.

    Args:
        entering: number of input channels of the last stage.
        last: number K of output channels of the last stage.
        classes: number C of classes.
        width: number W of channels at each scale, half the size of a node; must be a multiple of `heads`.
        normalize: see `ThreeScales`. `layers`, `heads`, `feed_forward` and `batch_attention` configure the transformer.
        top_share: fraction of the positions over which the constraint averages.

    >>> head = DualRelation(4, 5, 3, width=8, heads=2, feed_forward=16)
    >>> head(torch.zeros(2, 4, 14, 14), torch.zeros(2, 5, 7, 7)).structural.shape
    torch.Size([2, 3])
    """

    def __init__(
        self,
        entering: int,
        last: int,
        classes: int,
        *,
        width: int = 128,
        layers: int = 3,
        heads: int = 4,
        feed_forward: int = 512,
        normalize: bool = True,
        top_share: float = 0.05,
        batch_attention: bool = False,
    ) -> None:
        super().__init__()
        self.top_share = top_share
        self.scales = ThreeScales(entering, last, width, normalize=normalize)
        self.transformer = MapTransformer(
            width, layers=layers, heads=heads, feed_forward=feed_forward, over_batch=batch_attention
        )
        self.structural = nn.Linear(3 * width, classes)
        self.scores = nn.Conv2d(last, classes, 1, bias=False)
        self.own_part = nn.Conv2d(last, width, 1)
        self.guided_part = nn.Linear(width, width)
        self.graph = ImageGraph(2 * width, 3 * width, classes)

    def forward(self, entering: Float[Tensor, "N E h1 w1"], last: Float[Tensor, "N K h2 w2"]) -> Relations:
        """Return three sets of logits: structural, semantic, and a constraint that is used only in training.

        The structural ones come from the maxima of the transformed maps at three scales, the semantic ones from a graph
        of classes, and the constraint from the highest scores of the last maps.
        """
        scales = cross_scale(*self.scales(entering, last))
        transformed = [self.transformer(maps) for maps in scales]
        scores = self.scores(last)
        maxima = torch.cat([maps.amax((2, 3)) for maps in transformed], 1)  # (N, 3W)
        structural: Tensor = self.structural(maxima)
        semantic = self._semantic(last, scores, transformed)
        constraint = top_mean(scores, self.top_share)
        return Relations(structural, semantic, constraint)

    def _semantic(
        self, last: Float[Tensor, "N K h2 w2"], scores: Float[Tensor, "N C h2 w2"], transformed: list[Tensor]
    ) -> Float[Tensor, "N C"]:
        """Return the logits of the image graph, whose nodes are one vector per class.

        A node joins the class's vector in the last maps with that in the transformed maps. The mean of the transformed
        maps guides the edges. `transformed` has the maps from fine to coarse; no gradient reaches them.
        """
        means = [maps.detach().mean((2, 3)) for maps in transformed]
        guidance = torch.cat(means, 1)  # (N, 3W)
        _, middle, _ = transformed  # the scale of the scores
        transformed_nodes = class_nodes(middle.detach(), scores.detach())
        own_nodes = class_nodes(self.own_part(last), scores)
        guided_nodes = self.guided_part(transformed_nodes)
        nodes = torch.cat([own_nodes, guided_nodes], 2)  # (N, C, 2W)
        logits: Tensor = self.graph(nodes, guidance)
        return logits


def top_mean(scores: Float[Tensor, "N C h w"], share: float) -> Float[Tensor, "N C"]:
    """Return, for each class, the mean of the highest round(share · P) scores (at least one) over P positions.

    Reference: Zhao et al., TDRG, ICCV 2021, semantic-aware constraints.

    >>> top_mean(torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]]), 0.5)
    tensor([[4.5000]])
    """
    check_range(above=0, at_most=1, share=share)
    scores_by_position = at_least_float32(scores.flatten(2))  # (N, C, P)
    count = max(1, round(share * scores_by_position.shape[2]))
    highest = scores_by_position.topk(count, dim=2).values
    return highest.mean(2)


@full_precision
def class_nodes(maps: Float[Tensor, "N W h w"], scores: Float[Tensor, "N C h w"]) -> Float[Tensor, "N C W"]:
    """Return one vector per class: the sum over positions of a map, weighted by the class scores.

    node_c = Σ_p sigmoid(s_cp) x_p. A sum is used instead of a mean because a class is visible at few positions.

    Reference: Zhao et al., TDRG, ICCV 2021, nodes of the semantic relation.

    >>> class_nodes(torch.tensor([[[[2.0, 4.0]]]]), torch.zeros(1, 1, 1, 2))  # both weights are ½
    tensor([[[3.]]])
    """
    return torch.einsum("nchw,nkhw->nck", scores.sigmoid(), maps)


class ImageGraph(nn.Module):
    """Graph network over class nodes, whose edges depend on the nodes and on a guidance vector for the image.

    A_ij = sigmoid(u_j · [g | v_i] + a_j),  r_i = σ(W σ(Σ_j A_ij v_j) + b),  logit_i = w_i · (v_i + r_i) + b_i,
    where v are the nodes, g = σ(norm(G m)) for the guidance m, and σ is a leaky ReLU. W and b are initialized to zero,
    so nodes are initially independent. In training, `norm` uses batch statistics, or the running statistics if the
    batch has a single image.

    Reference: Zhao et al., TDRG, ICCV 2021, semantic relation, where W and b have the default initialization.

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
        """Apply the classifier of each class to its node."""
        edges = self.correlation(nodes, guidance)
        messages = leaky_relu(edges @ nodes, SLOPE)
        received = leaky_relu(self.convolution(messages), SLOPE)
        updated = nodes + received
        return (updated * self.classifier.weight).sum(2) + self.classifier.bias  # class i uses only row i of the weight

    @full_precision
    def correlation(self, nodes: Float[Tensor, "N C V"], guidance: Float[Tensor, "N G"]) -> Float[Tensor, "N C C"]:
        """Return the edge weights; row i has the weights of the messages that class i receives from each class."""
        guide = leaky_relu(self.norm(self.guide(guidance)), SLOPE)  # (N, G)
        guide_per_node = guide[:, None].expand(-1, nodes.shape[1], -1)  # (N, C, G)
        edges: Tensor = self.edges(torch.cat([guide_per_node, nodes], 2))
        return edges.sigmoid()
