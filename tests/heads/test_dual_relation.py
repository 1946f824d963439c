import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import leaky_relu

from probmcl.heads.cross_scale import cross_scale
from probmcl.heads.dual_relation import DualRelation, ImageGraph, Relations, class_nodes, top_mean


def build(**settings: Any) -> DualRelation:
    """Build a small float64 head with random parameters."""
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
def test_logits_match_their_parts(settings: dict[str, Any]) -> None:
    head, (entering, last) = build(**settings), maps()
    relations = head(entering, last)
    transformed = [head.transformer(x) for x in cross_scale(*head.scales(entering, last))]
    scores = torch.einsum("ck,nkhw->nchw", head.scores.weight[:, :, 0, 0], last)
    pooled = torch.cat([x.flatten(2).max(2).values for x in transformed], 1)
    torch.testing.assert_close(relations.structural, pooled @ head.structural.weight.T + head.structural.bias)
    torch.testing.assert_close(relations.constraint, top_mean(scores, settings.get("top_share", 0.05)))

    last_nodes = class_nodes(head.own_part(last), scores)
    transformed_nodes = class_nodes(transformed[1], scores) @ head.guided_part.weight.T + head.guided_part.bias
    nodes, guidance = (
        torch.cat([last_nodes, transformed_nodes], 2),
        torch.cat([x.flatten(2).mean(2) for x in transformed], 1),
    )
    edges = head.graph.correlation(nodes, guidance)
    received = leaky_relu(head.graph.convolution(leaky_relu(edges @ nodes, 0.2)), 0.2)
    all_logits = (nodes + received) @ head.graph.classifier.weight.T + head.graph.classifier.bias  # (N, C, C)
    torch.testing.assert_close(relations.semantic, all_logits.diagonal(dim1=1, dim2=2))


def test_semantic_relation_has_no_gradient_into_the_transformer() -> None:
    head, (entering, last) = build(), maps()
    head(entering, last).semantic.sum().backward()
    without_gradient = {name for name, p in head.named_parameters() if p.grad is None}
    assert {name.split(".")[0] for name in without_gradient} == {"scales", "transformer", "structural"}
    assert head.scores.weight.grad is not None  # from the nodes of the last maps
    assert (head.scores.weight.grad != 0).any()


def test_scores_of_transformed_nodes_have_no_gradient() -> None:
    head, (entering, last) = build(), maps()
    with torch.no_grad():
        head.graph.classifier.weight[:, :6] = 0  # uses only the second half of a node
        head.graph.convolution.weight.zero_()
        head.graph.convolution.bias.fill_(1.0)
    head(entering, last).semantic.sum().backward()
    assert head.scores.weight.grad is None or (head.scores.weight.grad == 0).all()


@pytest.mark.parametrize("sides", [(28, 14), (7, 7), (4, 2), (2, 1), (1, 1), (2, 4)])
def test_any_pair_of_sides(sides: tuple[int, int]) -> None:
    head = DualRelation(4, 5, 3, width=6, heads=2, feed_forward=7).double().train()
    for images in (1, 3):
        relations = head(*maps(images, sides))
        assert all(logits.shape == (images, 3) and logits.isfinite().all() for logits in relations)
        sum(relations, start=torch.zeros(())).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in head.parameters())


@pytest.mark.parametrize("batch_attention", [False, True])
@torch.no_grad()
def test_logits_depend_on_the_batch_only_with_batch_attention(batch_attention: bool) -> None:
    head, (entering, last) = build(batch_attention=batch_attention), maps(images=4)
    batched: Relations = head(entering, last)
    single: Relations = head(entering[:1], last[:1])
    assert torch.allclose(batched.structural[:1], single.structural) is not batch_attention
    assert torch.allclose(batched.semantic[:1], single.semantic) is not batch_attention
    torch.testing.assert_close(batched.constraint[:1], single.constraint)


def test_gradients() -> None:
    head = build()
    inputs = tuple(x.requires_grad_() for x in maps(images=1, sides=(2, 1)))
    assert torch.autograd.gradcheck(lambda entering, last: head(entering, last).structural, inputs)
    assert torch.autograd.gradcheck(lambda entering, last: head(entering, last).constraint, inputs)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.2 * x)


def image_graph(classes: int = 3) -> ImageGraph:
    """Build a float64 graph with random parameters, because nodes are independent in a new one."""
    torch.manual_seed(0)
    graph = ImageGraph(node=4, guidance=6, classes=classes).double().eval()
    with torch.no_grad():
        for parameter in graph.parameters():
            parameter.normal_(std=0.7)
        graph.norm.running_mean = torch.randn(6, dtype=torch.float64)
        graph.norm.running_var = torch.rand(6, dtype=torch.float64) + 0.5
    return graph


def inputs(images: int = 2, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    nodes = torch.randn(images, classes, 4, generator=generator, dtype=torch.float64)
    return nodes, torch.randn(images, 6, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("size", "share", "count"),
    [((14, 14), 0.05, 10), ((7, 7), 0.05, 2), ((2, 2), 0.05, 1), ((1, 1), 0.05, 1), ((3, 2), 0.5, 3), ((3, 3), 1.0, 9)],
)
def test_top_mean_averages_the_highest_scores(size: tuple[int, int], share: float, count: int) -> None:
    scores = torch.randn(2, 3, *size)
    measured = top_mean(scores, share)
    assert measured.shape == (2, 3)
    for n in range(2):
        for c in range(3):
            highest = sorted(scores[n, c].flatten().tolist())[-count:]
            assert measured[n, c].item() == pytest.approx(sum(highest) / count, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5])
def test_share_out_of_range_is_an_error(share: float) -> None:
    with pytest.raises(ValueError, match="share"):
        top_mean(torch.zeros(1, 1, 2, 2), share)


def test_only_the_highest_scores_have_a_gradient() -> None:
    scores = torch.tensor([[[[1.0, 5.0], [4.0, 2.0]]]], requires_grad=True)
    (gradient,) = torch.autograd.grad(top_mean(scores, 0.5).sum(), scores)
    assert gradient.tolist() == [[[[0.0, 0.5], [0.5, 0.0]]]]


def test_gradients_of_top_mean() -> None:
    scores = torch.randn(1, 2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: top_mean(x, 0.4), scores)


def test_half_precision_scores_are_averaged_in_float32() -> None:
    assert top_mean(torch.ones(1, 1, 2, 2, dtype=torch.bfloat16), 0.5).dtype == torch.float32


def test_class_nodes_match_loops() -> None:
    torch.manual_seed(0)
    maps, scores = torch.randn(2, 4, 3, 2), torch.randn(2, 5, 3, 2)
    measured = class_nodes(maps, scores)
    assert measured.shape == (2, 5, 4)
    for n in range(2):
        for c in range(5):
            expected = torch.zeros(4)
            for r in range(3):
                for k in range(2):
                    expected += sigmoid(scores[n, c, r, k].item()) * maps[n, :, r, k]
            torch.testing.assert_close(measured[n, c], expected)


def test_gradients_of_class_nodes() -> None:
    maps, scores = (torch.randn(1, 2, 2, 2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(class_nodes, (maps, scores))


def reference_correlation(graph: ImageGraph, nodes: Tensor, guidance: Tensor) -> Tensor:
    """Compute the edges of one image in loops."""
    hidden = graph.guide.weight @ guidance + graph.guide.bias
    mean, variance = graph.norm.running_mean, graph.norm.running_var
    assert mean is not None
    assert variance is not None
    guide = leaky((hidden - mean) / torch.sqrt(variance + graph.norm.eps) * graph.norm.weight + graph.norm.bias)
    edges = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
    for i in range(len(nodes)):
        for j in range(len(nodes)):
            weight = graph.edges.weight[j]
            edges[i, j] = sigmoid(float(weight[:6] @ guide + weight[6:] @ nodes[i] + graph.edges.bias[j]))
    return edges


@torch.no_grad()
def test_edges_and_logits_match_loops() -> None:
    graph, (nodes, guidance) = image_graph(), inputs()
    edges, logits = graph.correlation(nodes, guidance), graph(nodes, guidance)
    for n in range(2):
        expected = reference_correlation(graph, nodes[n], guidance[n])
        torch.testing.assert_close(edges[n], expected)
        for i in range(3):
            messages = torch.zeros(4, dtype=torch.float64)
            for j in range(3):
                messages += expected[i, j] * nodes[n, j]
            received = leaky(graph.convolution.weight @ leaky(messages) + graph.convolution.bias)
            logit = graph.classifier.weight[i] @ (nodes[n, i] + received) + graph.classifier.bias[i]
            torch.testing.assert_close(logits[n, i], logit)


def test_edges_differ_between_images_and_are_directed() -> None:
    edges = image_graph().correlation(*inputs())
    assert not torch.allclose(edges[0], edges[1])
    assert not torch.allclose(edges[0], edges[0].T)


def test_gradients_of_the_graph() -> None:
    nodes, guidance = inputs()
    assert torch.autograd.gradcheck(image_graph(), (nodes.requires_grad_(), guidance.requires_grad_()))


@torch.no_grad()
def test_new_graph_classifies_each_node_independently() -> None:
    graph, (nodes, guidance) = ImageGraph(node=4, guidance=6, classes=3).double(), inputs()
    expected = torch.einsum("ncv,cv->nc", nodes, graph.classifier.weight) + graph.classifier.bias
    torch.testing.assert_close(graph(nodes, guidance), expected)


def test_every_parameter_changes_in_the_first_steps() -> None:
    graph, (nodes, guidance) = ImageGraph(node=4, guidance=6, classes=3).double(), inputs()
    before = {name: value.detach().clone() for name, value in graph.named_parameters()}
    optimizer = torch.optim.SGD(graph.parameters(), lr=0.5)
    for _ in range(2):
        graph(nodes, guidance).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    unchanged = [name for name, value in graph.named_parameters() if torch.equal(value, before[name])]
    # Batch normalization cancels the bias before it.
    assert [name for name in unchanged if name != "guide.bias"] == []


@torch.no_grad()
def test_single_image_uses_running_statistics() -> None:
    graph, (nodes, guidance) = image_graph(), inputs(images=1)
    expected = graph(nodes, guidance)
    torch.testing.assert_close(graph.train()(nodes, guidance), expected)
    assert graph.norm.num_batches_tracked == 0


@torch.no_grad()
def test_batches_use_their_own_statistics() -> None:
    graph, (nodes, guidance) = image_graph(), inputs(images=5)
    expected = graph(nodes, guidance)
    assert not torch.allclose(graph.train()(nodes, guidance), expected)
    assert graph.norm.num_batches_tracked == 1


def test_autocast_does_not_change_the_graph() -> None:
    graph, (nodes, guidance) = image_graph().float(), inputs()
    expected = graph(nodes.float(), guidance.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(graph(nodes.float(), guidance.float()), expected)
        assert graph(nodes.bfloat16(), guidance.bfloat16()).dtype == torch.float32
