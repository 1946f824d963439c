"""The dual relation head: where things are in an image, and which classes they make likely together."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from probmcl.heads.cross_scale import ThreeScales, cross_scale
from probmcl.heads.image_graph import ImageGraph, class_nodes, top_mean
from probmcl.heads.transformer import MapTransformer


class Relations(NamedTuple):
    """Three logits for each class: of the structural relation, of the semantic one, and of the constraint."""

    structural: Float[Tensor, "N C"]
    semantic: Float[Tensor, "N C"]
    constraint: Float[Tensor, "N C"]


class DualRelation(nn.Module):
    """Logits from the maps before and after an encoder's last stage.

    t_s = transformer(x_s),  structural = linear([max_p t_1 | max_p t_2 | max_p t_3]), where x are `ThreeScales` after
    `cross_scale`, and all share one `MapTransformer`. The constraint is the `top_mean` of class scores s at every
    position of the last maps y. Its scores also draw the nodes [nodes(B y) | T nodes(t_2)] of `class_nodes`, from which
    an `ImageGraph` makes the semantic logits, guided by the means of t_1, t_2 and t_3. The semantic relation only looks
    at the t: no gradient goes from it into them.

    Reference: Zhao et al., Transformer-based Dual Relation Graph for Multi-label Image Recognition, ICCV 2021.

    Args:
        entering: channels of the maps that enter the last stage.
        last: K, channels of the maps that leave it.
        classes: C.
        width: W, channels of the three scales and half of a node, a multiple of the heads.
        layers: of the transformer.
        heads: of its attention.
        feed_forward: units between the two linear layers that follow the attention.
        normalize: whether every position of the three scales has mean 0 and deviation 1 before they are multiplied.
        top_share: of the positions, how many the constraint takes.
        batch_attention: whether the transformer sees the other images of a batch instead of the other positions.

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
        """All three; the constraint is there to be trained, not to predict."""
        seen = [self.transformer(maps) for maps in cross_scale(*self.scales(entering, last))]
        scores = self.scores(last)
        structural: Tensor = self.structural(torch.cat([maps.amax((2, 3)) for maps in seen], 1))
        return Relations(structural, self._semantic(last, scores, seen), top_mean(scores, self.top_share))

    def _semantic(self, last: Tensor, scores: Tensor, seen: list[Tensor]) -> Float[Tensor, "N C"]:
        guidance = torch.cat([maps.detach().mean((2, 3)) for maps in seen], 1)  # (N, 3W)
        guided = class_nodes(seen[1].detach(), scores.detach())
        own = class_nodes(self.own_part(last), scores)
        logits: Tensor = self.graph(torch.cat([own, self.guided_part(guided)], 2), guidance)
        return logits
