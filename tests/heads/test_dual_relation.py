from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from probmcl.heads import DualRelation, Relations, class_nodes, cross_scale, top_mean


def build(**settings: Any) -> DualRelation:
    """Small, in float64, with every number drawn."""
    torch.manual_seed(0)
    head = DualRelation(4, 5, 3, width=6, heads=2, layers=1, feed_forward=7, **settings).double().eval()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(std=0.4)
    return head


def maps(images: int = 2, sides: tuple[int, int] = (4, 2)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    fine, coarse = sides
    entering = torch.randn(images, 4, fine, fine, generator=generator, dtype=torch.float64)
    return entering, torch.randn(images, 5, coarse, coarse, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("settings", [{}, {"normalize": False, "top_share": 0.5}])
@torch.no_grad()
def test_the_three_logits_are_what_the_parts_make_of_each_other(settings: dict[str, Any]) -> None:
    head, (entering, last) = build(**settings), maps()
    found = head(entering, last)
    seen = [head.transformer(x) for x in cross_scale(*head.scales(entering, last))]
    scores = torch.einsum("ck,nkhw->nchw", head.scores.weight[:, :, 0, 0], last)
    pooled = torch.cat([x.flatten(2).max(2).values for x in seen], 1)
    torch.testing.assert_close(found.structural, pooled @ head.structural.weight.T + head.structural.bias)
    torch.testing.assert_close(found.constraint, top_mean(scores, settings.get("top_share", 0.05)))

    own = class_nodes(head.own_part(last), scores)
    guided = class_nodes(seen[1], scores) @ head.guided_part.weight.T + head.guided_part.bias
    nodes, guidance = torch.cat([own, guided], 2), torch.cat([x.flatten(2).mean(2) for x in seen], 1)
    edges = head.graph.correlation(nodes, guidance)
    received = leaky_relu(head.graph.convolution(leaky_relu(edges @ nodes, 0.2)), 0.2)
    by_all = (nodes + received) @ head.graph.classifier.weight.T + head.graph.classifier.bias  # (N, C, C)
    torch.testing.assert_close(found.semantic, by_all.diagonal(dim1=1, dim2=2))


def test_the_semantic_relation_only_looks_at_what_the_transformer_sees() -> None:
    head, (entering, last) = build(), maps()
    head(entering, last).semantic.sum().backward()
    unmoved = {name for name, p in head.named_parameters() if p.grad is None}
    assert {name.split(".")[0] for name in unmoved} == {"scales", "transformer", "structural"}
    assert head.scores.weight.grad is not None  # through the nodes of the last maps
    assert (head.scores.weight.grad != 0).any()


def test_masks_of_what_the_transformer_sees_have_no_gradient() -> None:
    head, (entering, last) = build(), maps()
    with torch.no_grad():
        head.graph.classifier.weight[:, :6] = 0  # reads the guided half of a node alone
        head.graph.convolution.weight.zero_()
        head.graph.convolution.bias.fill_(1.0)
    head(entering, last).semantic.sum().backward()
    assert head.scores.weight.grad is None or (head.scores.weight.grad == 0).all()


@pytest.mark.parametrize("sides", [(28, 14), (7, 7), (4, 2), (2, 1), (1, 1), (2, 4)])
def test_any_pair_of_sides(sides: tuple[int, int]) -> None:
    head = DualRelation(4, 5, 3, width=6, heads=2, feed_forward=7).double().train()
    for images in (1, 3):
        found = head(*maps(images, sides))
        assert all(logits.shape == (images, 3) and logits.isfinite().all() for logits in found)
        sum(found, start=torch.zeros(())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("batch_attention", [False, True])
@torch.no_grad()
def test_whether_a_prediction_depends_on_the_other_images(batch_attention: bool) -> None:
    head, (entering, last) = build(batch_attention=batch_attention), maps(images=4)
    together: Relations = head(entering, last)
    alone: Relations = head(entering[:1], last[:1])
    assert torch.allclose(together.structural[:1], alone.structural) is not batch_attention
    assert torch.allclose(together.semantic[:1], alone.semantic) is not batch_attention
    torch.testing.assert_close(together.constraint[:1], alone.constraint)


def test_gradients() -> None:
    head = build()
    given = tuple(x.requires_grad_() for x in maps(images=1, sides=(2, 1)))
    assert torch.autograd.gradcheck(lambda entering, last: head(entering, last).structural, given)
    assert torch.autograd.gradcheck(lambda entering, last: head(entering, last).constraint, given)
