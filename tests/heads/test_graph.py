import math

import numpy as np
import pytest
import torch
from numpy import ndarray

from probmcl.data.records import LabelSpace
from probmcl.heads import GraphConvolution, label_graph, normalised


def counted(classes: int = 6, images: int = 40, seed: int = 0) -> LabelSpace:
    labels = (np.random.default_rng(seed).random((images, classes)) < 0.45).astype(np.float64)
    labels[:, 0] = np.maximum(labels[:, 0], labels[:, 1])  # the second never comes without the first
    labels[:, -1] = 0  # and the last never
    return LabelSpace.from_labels([f"class {k}" for k in range(classes)], labels)


def slow_graph(counts: ndarray, together: ndarray, threshold: float, share: float) -> list[list[float]]:
    """As the published code computes it, with p/(1−p) beside 1, entry by entry, then normalised."""
    classes = range(len(counts))
    edge = [[float(counts[i] > 0 and together[i, j] / counts[i] >= threshold) for j in classes] for i in classes]
    into = [sum(edge[i][j] for i in classes) for j in classes]
    a = [[share / (1 - share) * edge[i][j] / (into[j] or 1) + float(i == j) for j in classes] for i in classes]
    scale = [1 / math.sqrt(sum(row)) for row in a]
    return [[scale[i] * a[j][i] * scale[j] for j in classes] for i in classes]


@pytest.mark.parametrize(("threshold", "share"), [(0.4, 0.2), (0.5, 0.6), (1.0, 0.2), (0.01, 0.0)])
def test_the_graph_is_the_published_one_written_out(threshold: float, share: float) -> None:
    for seed in range(5):
        space = counted(seed=seed)
        graph = normalised(label_graph(space.counts, space.cooccurrence, threshold=threshold, neighbour_share=share))
        expected = torch.tensor(slow_graph(space.counts, space.cooccurrence, threshold, share))
        torch.testing.assert_close(graph, expected)
        assert graph.is_contiguous()


def test_the_test_has_edges_in_one_direction_and_classes_without_any() -> None:
    space = counted()
    graph = label_graph(space.counts, space.cooccurrence, threshold=0.4, neighbour_share=0.2)
    edges = (graph > 0) & ~torch.eye(6, dtype=torch.bool)
    assert edges[1, 0]
    assert (edges != edges.T).any()
    assert not edges[:, -1].any()
    assert not edges[-1].any()


def test_a_class_keeps_its_share_and_its_neighbours_share_the_rest() -> None:
    space = counted()
    graph = label_graph(space.counts, space.cooccurrence, threshold=0.4, neighbour_share=0.2)
    assert graph.diagonal().tolist() == pytest.approx([0.8] * 6)
    columns = graph.sum(0)
    assert set(columns.round(decimals=5).tolist()) == set(torch.tensor([1.0, 0.8]).tolist())
    assert columns[-1] == graph[-1, -1]


def test_the_threshold_itself_is_an_edge() -> None:
    for together, of, threshold in ((2, 5, 0.4), (3, 10, 0.3), (7, 10, 0.7), (6, 10, 0.6), (1, 1, 1.0)):
        pair = np.array([[0, together], [together, 0]])
        graph = label_graph(np.array([of, 10**6]), pair, threshold=threshold, neighbour_share=0.2)
        assert graph[0, 1] > 0
        assert graph[1, 0] == 0


def test_without_any_labels_every_class_is_alone() -> None:
    nothing = np.zeros(3, dtype=np.int64), np.zeros((3, 3), dtype=np.int64)
    graph = normalised(label_graph(*nothing, threshold=0.4, neighbour_share=0.2))
    torch.testing.assert_close(graph, torch.eye(3))


@pytest.mark.parametrize(("threshold", "share"), [(0.0, 0.2), (1.1, 0.2), (0.4, 1.0), (0.4, -0.1)])
def test_settings_out_of_range_are_refused(threshold: float, share: float) -> None:
    space = counted()
    with pytest.raises(ValueError, match=f"threshold={threshold}, neighbour_share={share}"):
        label_graph(space.counts, space.cooccurrence, threshold=threshold, neighbour_share=share)


def test_a_convolution_is_a_loop_over_neighbours() -> None:
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


def test_a_convolution_is_as_exact_under_autocast() -> None:
    convolution, nodes = GraphConvolution(40, 30), torch.randn(5, 40)
    expected = convolution(nodes, torch.eye(5))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(convolution(nodes, torch.eye(5)), expected)
        assert convolution(nodes.bfloat16(), torch.eye(5)).dtype == torch.float32


def test_weights_start_uniform_by_the_size_of_the_output() -> None:
    torch.manual_seed(0)
    weight = GraphConvolution(50, 400).weight
    assert weight.shape == (50, 400)
    assert weight.abs().max() <= 0.05
    assert weight.std().item() == pytest.approx(0.05 / math.sqrt(3), rel=0.05)
