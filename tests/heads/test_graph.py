import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.heads.graph import (
    EmbeddingClassifier,
    GraphConvolution,
    LabelEmbeddings,
    LateralConnection,
    LowRankConvolution,
    label_graph,
    label_nodes,
    normalize_adjacency,
    superimposed_graph,
)


def random_label_space(classes: int = 6, images: int = 40, seed: int = 0) -> LabelSpace:
    labels = (np.random.default_rng(seed).random((images, classes)) < 0.45).astype(np.float64)
    labels[:, 0] = np.maximum(labels[:, 0], labels[:, 1])  # class 1 never occurs without class 0
    labels[:, -1] = 0  # the last class never occurs
    return LabelSpace.from_labels([f"class {k}" for k in range(classes)], labels)


def reference_graph(counts: ndarray, cooccurrence: ndarray, threshold: float, share: float) -> list[list[float]]:
    """Compute the normalized graph as in the published code, with weights p/(1−p) and 1, in loops."""
    classes = range(len(counts))
    edge = [[float(counts[i] > 0 and cooccurrence[i, j] / counts[i] >= threshold) for j in classes] for i in classes]
    in_degree = [sum(edge[i][j] for i in classes) for j in classes]
    a = [[share / (1 - share) * edge[i][j] / (in_degree[j] or 1) + float(i == j) for j in classes] for i in classes]
    scale = [1 / math.sqrt(sum(row)) for row in a]
    return [[scale[i] * a[j][i] * scale[j] for j in classes] for i in classes]


@pytest.mark.parametrize(("threshold", "share"), [(0.4, 0.2), (0.5, 0.6), (1.0, 0.2), (0.01, 0.0)])
def test_label_graph_matches_the_published_code(threshold: float, share: float) -> None:
    for seed in range(5):
        space = random_label_space(seed=seed)
        graph = normalize_adjacency(
            label_graph(space.counts, space.cooccurrence, threshold=threshold, neighbor_share=share)
        )
        expected = torch.tensor(reference_graph(space.counts, space.cooccurrence, threshold, share))
        torch.testing.assert_close(graph, expected)
        assert graph.is_contiguous()


def test_example_has_directed_edges_and_an_isolated_class() -> None:
    space = random_label_space()
    graph = label_graph(space.counts, space.cooccurrence, threshold=0.4, neighbor_share=0.2)
    edges = (graph > 0) & ~torch.eye(6, dtype=torch.bool)
    assert edges[1, 0]
    assert (edges != edges.T).any()
    assert not edges[:, -1].any()
    assert not edges[-1].any()


def test_neighbor_share() -> None:
    space = random_label_space()
    graph = label_graph(space.counts, space.cooccurrence, threshold=0.4, neighbor_share=0.2)
    assert graph.diagonal().tolist() == pytest.approx([0.8] * 6)
    columns = graph.sum(0)
    assert set(columns.round(decimals=5).tolist()) == set(torch.tensor([1.0, 0.8]).tolist())
    assert columns[-1] == graph[-1, -1]


def test_threshold_is_inclusive() -> None:
    for cooccurrence, count, threshold in ((2, 5, 0.4), (3, 10, 0.3), (7, 10, 0.7), (6, 10, 0.6), (1, 1, 1.0)):
        pair = np.array([[0, cooccurrence], [cooccurrence, 0]])
        graph = label_graph(np.array([count, 10**6]), pair, threshold=threshold, neighbor_share=0.2)
        assert graph[0, 1] > 0
        assert graph[1, 0] == 0


def test_graph_without_labels_is_the_identity() -> None:
    empty = np.zeros(3, dtype=np.int64), np.zeros((3, 3), dtype=np.int64)
    graph = normalize_adjacency(label_graph(*empty, threshold=0.4, neighbor_share=0.2))
    torch.testing.assert_close(graph, torch.eye(3))


@pytest.mark.parametrize(("threshold", "share"), [(0.0, 0.2), (1.1, 0.2), (0.4, 1.0), (0.4, -0.1)])
def test_settings_out_of_range_are_an_error(threshold: float, share: float) -> None:
    space = random_label_space()
    with pytest.raises(ValueError, match=r"threshold|neighbor_share"):
        label_graph(space.counts, space.cooccurrence, threshold=threshold, neighbor_share=share)


def test_convolution_matches_loops() -> None:
    torch.manual_seed(0)
    convolution = GraphConvolution(4, 3).double()
    nodes, graph = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, 5, dtype=torch.float64)
    measured = convolution(nodes, graph)
    assert measured.shape == (5, 3)
    for i in range(5):
        for k in range(3):
            expected = sum(
                graph[i, j].item() * nodes[j, f].item() * convolution.weight[f, k].item()
                for j in range(5)
                for f in range(4)
            )
            assert measured[i, k].item() == pytest.approx(expected, rel=1e-9)


def test_gradients_of_a_convolution() -> None:
    convolution, graph = GraphConvolution(4, 3).double(), torch.rand(5, 5, dtype=torch.float64)
    nodes = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: convolution(x, graph), (nodes, convolution.weight))


def test_autocast_does_not_change_the_convolution() -> None:
    convolution, nodes = GraphConvolution(40, 30), torch.randn(5, 40)
    expected = convolution(nodes, torch.eye(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(convolution(nodes, torch.eye(5)), expected)
        assert convolution(nodes.bfloat16(), torch.eye(5)).dtype == torch.float32


def test_initialization_of_the_convolution() -> None:
    torch.manual_seed(0)
    weight = GraphConvolution(50, 400).weight
    assert weight.shape == (50, 400)
    assert weight.abs().max() <= 0.05
    assert weight.std().item() == pytest.approx(0.05 / math.sqrt(3), rel=0.05)


def random_knowledge(classes: int = 6, seed: int = 0) -> ndarray:
    """Return random symmetric knowledge about a third of the pairs."""
    rng = np.random.default_rng(seed)
    half = np.triu(rng.random((classes, classes)) * (rng.random((classes, classes)) < 0.35), 1)
    symmetric: ndarray = half + half.T
    return symmetric


def reference_superimposed(
    space: LabelSpace, knowledge: ndarray, weight: float, smallest: float, share: float
) -> ndarray:
    """Compute the normalized superimposed graph as in the published code, in loops."""
    classes = range(len(space))
    a = np.zeros((len(space), len(space)))
    for i in classes:
        for j in classes:
            product = space.counts[i] * space.counts[j]
            cooccurrence = space.cooccurrence[i, j] / math.sqrt(product) if product else 0.0
            mixed = weight * cooccurrence + (1 - weight) * knowledge[i, j]
            a[i, j] = share * (0.0 if mixed < smallest else mixed) + (1 - share) * float(i == j)
    degree = [sum(a[i, j] for i in classes) for j in classes]
    return np.array([[a[i, j] / math.sqrt(degree[i]) / math.sqrt(degree[j]) for j in classes] for i in classes])


def superimposed(
    space: LabelSpace, knowledge: ndarray | None, weight: float = 0.5, smallest: float = 0.03, share: float = 0.4
) -> Tensor:
    return superimposed_graph(
        space.counts,
        space.cooccurrence,
        knowledge,
        cooccurrence_weight=weight,
        smallest_edge=smallest,
        neighbor_share=share,
    )


@pytest.mark.parametrize(
    ("weight", "smallest", "share"), [(0.5, 0.03, 0.4), (0.8, 0.2, 0.4), (0.0, 0.1, 0.9), (1.0, 0.0, 0.0)]
)
def test_superimposed_graph_matches_loops(weight: float, smallest: float, share: float) -> None:
    for seed in range(3):
        space, knowledge = random_label_space(seed=seed), random_knowledge(seed=seed)
        graph = normalize_adjacency(superimposed(space, knowledge, weight, smallest, share))
        expected = reference_superimposed(space, knowledge, weight, smallest, share)
        torch.testing.assert_close(graph, torch.from_numpy(expected).float())
        torch.testing.assert_close(graph, graph.T)


def test_superimposed_graph_without_knowledge() -> None:
    space = random_label_space()
    without_knowledge = superimposed(space, None, weight=0.3)
    assert torch.equal(without_knowledge, superimposed(space, np.zeros((6, 6)), weight=1.0))
    assert (without_knowledge[:5, :5] > 0).all()
    assert without_knowledge[5].tolist() == pytest.approx([0, 0, 0, 0, 0, 0.6])  # the class that never occurs


def test_smallest_edge_is_inclusive_and_knowledge_connects_absent_classes() -> None:
    unseen = LabelSpace(("a", "b", "c"), np.zeros(3, dtype=np.int64), np.zeros((3, 3), dtype=np.int64))
    knowledge = np.array([[0, 0.06, 0.059], [0.06, 0, 1], [0.059, 1, 0]])
    expected = torch.tensor([[0.6, 0.012, 0.0], [0.012, 0.6, 0.2], [0.0, 0.2, 0.6]])
    torch.testing.assert_close(superimposed(unseen, knowledge), expected)


@pytest.mark.parametrize(
    ("setting", "name", "value"),
    [
        ("weight", "cooccurrence_weight", 1.1),
        ("weight", "cooccurrence_weight", -0.1),
        ("smallest", "smallest_edge", -0.1),
        ("share", "neighbor_share", 1.0),
    ],
)
def test_superimposed_settings_out_of_range_are_an_error(setting: str, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        superimposed(random_label_space(), random_knowledge(), **{setting: value})


def test_label_nodes_are_learned_or_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("cat 1 2\ndog 3 4\n")
    fixed, learned = label_nodes(["dog", "cat"], size=2, file=str(file)), label_nodes(["dog", "cat"], size=4000)
    assert fixed.tolist() == [[3, 4], [1, 2]]
    assert not fixed.requires_grad
    assert learned.shape == (2, 4000)
    assert learned.requires_grad
    assert learned.std().item() == pytest.approx(0.3, rel=0.05)


def test_low_rank_convolution_matches_a_full_convolution() -> None:
    torch.manual_seed(0)
    convolution, plain = LowRankConvolution(4, 3, even=False).double(), GraphConvolution(4, 3).double()
    plain.weight = torch.nn.Parameter(convolution.first @ convolution.second)
    nodes, graph = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, 5, dtype=torch.float64)
    torch.testing.assert_close(convolution(nodes, graph), plain(nodes, graph) + convolution.bias[None])


@pytest.mark.parametrize(("before", "after", "inner"), [(300, 256, 69), (300, 24, 40), (16, 24, 32), (1024, 2048, 384)])
def test_rank_is_an_eighth_and_at_least_32(before: int, after: int, inner: int) -> None:
    convolution = LowRankConvolution(before, after)
    assert convolution.first.shape == (before, inner)
    assert convolution.second.shape == (inner, after)
    assert convolution.bias.shape == (after,)


def test_even_initialization_preserves_variance() -> None:
    torch.manual_seed(0)
    convolution, nodes = LowRankConvolution(400, 800), torch.randn(200, 400)
    after = convolution(torch.nn.functional.leaky_relu(nodes, 0.2), torch.eye(200))
    assert after.square().mean().item() == pytest.approx(1, rel=0.1)
    assert not convolution.bias.any()


def test_published_initialization_of_low_rank_weights() -> None:
    torch.manual_seed(0)
    convolution = LowRankConvolution(400, 400, even=False)  # rank 100
    for weight, bound in ((convolution.first, 0.1), (convolution.second, 0.05), (convolution.bias, 0.05)):
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_autocast_does_not_change_the_low_rank_convolution() -> None:
    convolution, nodes = LowRankConvolution(40, 30), torch.randn(5, 40)
    expected = convolution(nodes, torch.eye(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(convolution(nodes, torch.eye(5)), expected)


def test_label_embeddings_match_loops() -> None:
    torch.manual_seed(0)
    embeddings = LabelEmbeddings([4, 3, 5, 2], even=False).double()
    nodes, graph = torch.randn(6, 4, dtype=torch.float64), torch.rand(6, 6, dtype=torch.float64)
    outputs = embeddings(nodes, graph)
    assert [e.shape for e in outputs] == [(6, 3), (6, 5), (6, 2)]
    inner = nodes
    for output, layer in zip(outputs, embeddings.convolutions, strict=True):
        assert isinstance(layer, LowRankConvolution)
        raw = torch.zeros(6, len(layer.bias), dtype=torch.float64)
        weight = layer.first @ layer.second
        for i in range(6):
            for j in range(6):
                raw[i] += graph[i, j] * (inner[j] @ weight)
            raw[i] += layer.bias
        torch.testing.assert_close(output, raw.tanh())
        inner = torch.where(raw > 0, raw, 0.2 * raw)
    assert (raw < 0).any()


def test_gradients_of_label_embeddings() -> None:
    torch.manual_seed(0)
    embeddings, graph = LabelEmbeddings([4, 3, 2]).double(), torch.rand(5, 5, dtype=torch.float64)
    nodes = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tuple(embeddings(x, graph)), (nodes,))
    sum(e.sum() for e in embeddings(nodes, graph)).backward()
    assert all(p.grad is not None and (p.grad != 0).any() for p in embeddings.parameters())


def random_connection(*, scale: float = 1.0) -> LateralConnection:
    """Build a connection with random weights, because a new one returns its input."""
    torch.manual_seed(0)
    learned = LateralConnection(channels=5, classes=3, scale=scale).double()
    torch.nn.init.normal_(learned.back.weight)
    return learned


def randn64(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("side", [1, 3])
def test_lateral_connection_matches_loops(scale: float, side: int) -> None:
    learned, maps, embeddings = random_connection(scale=scale), randn64(2, 5, side, side + 1), randn64(3, 5)
    measured = learned(maps, embeddings)
    assert measured.shape == maps.shape
    back = learned.back.weight[:, :, 0, 0]  # (K, C)
    for n in range(2):
        for y in range(side):
            for x in range(side + 1):
                position = maps[n, :, y, x]
                similarity = [scale * sum(position[k] * embeddings[c, k] for k in range(5)) for c in range(3)]
                for k in range(5):
                    expected = position[k] + sum(back[k, c] * similarity[c] for c in range(3))
                    torch.testing.assert_close(measured[n, k, y, x], expected)


def test_new_lateral_connection_is_the_identity_with_gradients() -> None:
    new, maps, embeddings = LateralConnection(5, 3), torch.rand(2, 5, 4, 4), torch.rand(3, 5)
    assert torch.equal(new(maps, embeddings), maps)
    (new(maps, embeddings) ** 2).sum().backward()
    assert new.back.weight.grad is not None
    assert (new.back.weight.grad != 0).all()


def test_gradients_of_the_lateral_connection() -> None:
    learned, maps, embeddings = (
        random_connection(),
        randn64(2, 5, 2, 2).requires_grad_(),
        randn64(3, 5).requires_grad_(),
    )
    assert torch.autograd.gradcheck(learned, (maps, embeddings))


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_embedding_classifier_matches_loops(scale: float) -> None:
    torch.manual_seed(0)
    classifier = EmbeddingClassifier(5, 3, scale=scale).double().eval()
    features, embeddings = randn64(4, 5), randn64(3, 5)
    measured = classifier(features, embeddings)
    for n in range(4):
        for c in range(3):
            total_weight = classifier.linear.weight[c] + scale * embeddings[c]
            expected = sum(features[n, d] * total_weight[d] for d in range(5)) + classifier.linear.bias[c]
            torch.testing.assert_close(measured[n, c], expected)


def test_gradients_of_the_embedding_classifier() -> None:
    classifier = EmbeddingClassifier(5, 3).double().eval()
    assert torch.autograd.gradcheck(classifier, (randn64(4, 5).requires_grad_(), randn64(3, 5).requires_grad_()))


def test_both_terms_share_the_dropout_mask() -> None:
    torch.manual_seed(0)
    classifier = EmbeddingClassifier(200, 1).train()
    opposite = -classifier.linear.weight.detach()
    logits = classifier(torch.rand(3, 200), opposite)
    torch.testing.assert_close(logits, classifier.linear.bias.expand(3, 1), atol=1e-4, rtol=0)
    assert not torch.equal(classifier(torch.ones(1, 200), 0 * opposite), classifier(torch.ones(1, 200), 0 * opposite))
