import re
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from helpers.images import label_space
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder, PrecomputedFeatures, hook_stage_inputs, split_encoder, stages
from probmcl.errors import DataError
from probmcl.heads.graph import LateralConnection, normalize_adjacency, superimposed_graph
from probmcl.losses import binary_cross_entropy
from probmcl.methods.kssnet import Config, KSSNet

SMALL = Config(vector_size=5)


def space_with_counts() -> LabelSpace:
    """Return counts in which every dog has a lead and no image has a unicorn."""
    labels = np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], *[[0, 1, 0, 0]] * 3])
    return LabelSpace.from_labels(["dog", "lead", "traffic light", "unicorn"], labels)


def build(config: Config = SMALL, space: LabelSpace | None = None) -> KSSNet:
    torch.manual_seed(0)
    return KSSNet(Encoder("test_resnet", image_size=64), space or space_with_counts(), config).eval()


def randomized(method: KSSNet) -> KSSNet:
    """Give the connections random weights, which are initially 0."""
    for connection in connections_of(method):
        nn.init.normal_(connection.back.weight)
    return method


def connections_of(method: KSSNet) -> list[LateralConnection]:
    connections = list(method.connections)
    assert all(isinstance(connection, LateralConnection) for connection in connections)
    return connections  # type: ignore[return-value]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    vocabulary = ("unicorn", "light", "lead", "dog", "traffic")
    path.write_text("".join(f"{word} {k} {k / 2} 0.1 -1 2\n" for k, word in enumerate(vocabulary)))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "knowledge.csv"
    path.write_text("start,end,weight\ndog,unicorn,0.8\n")
    return path


@pytest.mark.parametrize("scale", ["even", "published"])
def test_logits_match_the_network_written_out(scale: Literal["even", "published"]) -> None:
    method, images = randomized(build(Config(vector_size=5, scale=scale))), torch.rand(3, 3, 64, 64)
    model, (first, second, third) = method.encoder.model, connections_of(method)
    *lateral, last = method.embeddings(method.vectors, method.graph)

    def factor(size: int) -> float:
        return size**-0.5 if scale == "even" else 1.0

    def connected(maps: Tensor, connection: LateralConnection, embeddings: Tensor) -> Tensor:
        shared = torch.einsum("nkhw,ck->nchw", maps, embeddings) * factor(maps.shape[1])
        return maps + torch.einsum("nchw,kc->nkhw", shared, connection.back.weight[:, :, 0, 0])

    with torch.no_grad():
        maps = model.layer1(model.maxpool(model.act1(model.bn1(model.conv1(images)))))
        maps = model.layer2(connected(maps, first, lateral[0]))
        maps = model.layer3(connected(maps, second, lateral[1]))
        features = model.layer4(connected(maps, third, lateral[2])).mean((2, 3))
        linear = method.classifier.linear
        expected = features @ linear.weight.T + linear.bias + factor(96) * features @ last.T
        torch.testing.assert_close(method.logits(images), expected, rtol=1e-4, atol=1e-4)


def test_widths_follow_the_encoder_stages() -> None:
    with torch.device("meta"):
        method = KSSNet(Encoder("resnet101", image_size=448), label_space(80))
    widths = [300, 256, 512, 1024, 2048]
    shapes = {key: tuple(p.shape) for key, p in method.named_parameters()}
    for number, (before, after) in enumerate(pairwise(widths)):
        inner = (before + after) // 8
        assert shapes[f"embeddings.convolutions.{number}.first"] == (before, inner)
        assert shapes[f"embeddings.convolutions.{number}.second"] == (inner, after)
    assert [tuple(c.back.weight.shape) for c in connections_of(method)] == [(w, 80, 1, 1) for w in widths[1:4]]
    assert [stage.module for stage in stages(method.encoder)[-3:]] == ["layer2", "layer3", "layer4"]  # after 1, 2, 3


def test_new_connections_do_not_change_the_features() -> None:
    method, images = build(), torch.rand(2, 3, 64, 64)
    inputs_seen: list[Tensor] = []
    method.classifier.register_forward_pre_hook(lambda module, inputs: inputs_seen.append(inputs[0]))
    method.logits(images)
    assert torch.equal(inputs_seen[0], method.encoder(images))
    assert not torch.equal(randomized(method).logits(images), build().logits(images))


def test_initial_size_of_embeddings() -> None:
    torch.manual_seed(0)
    encoder, sizes = Encoder("resnet18", image_size=64), {}
    for scale in ("even", "published"):
        method = KSSNet(encoder, label_space(20), Config(scale=scale))
        sizes[scale] = [e.square().mean().sqrt().item() for e in method.embeddings(method.vectors, method.graph)]
    assert min(sizes["even"]) > 0.15
    assert max(sizes["even"]) < 0.5
    assert sizes["published"][-1] < 0.05


def test_graph_is_superimposed_and_not_learned(table: Path) -> None:
    method, space = build(Config(vector_size=5, knowledge=str(table))), space_with_counts()
    related = np.zeros((4, 4))
    related[0, 3] = related[3, 0] = 0.8
    expected = superimposed_graph(
        space.counts, space.cooccurrence, related, cooccurrence_weight=0.5, smallest_edge=0.03, neighbor_share=0.4
    )
    assert torch.equal(method.graph, normalize_adjacency(expected))
    assert method.graph[0, 3] > 0
    assert build().graph[0, 3] == 0
    assert "graph" in method.state_dict()
    assert "graph" not in dict(method.named_parameters())


def test_loss_is_the_binary_cross_entropy_of_known_labels() -> None:
    method, images = build(), torch.rand(5, 3, 64, 64)
    labels, known = (torch.rand(5, 4) < 0.5).float(), torch.rand(5, 4) < 0.7
    expected = binary_cross_entropy(method.logits(images), labels, known)
    torch.testing.assert_close(method(images[None], labels, known).loss, expected)


def test_encoder_and_graph_run_once_per_step() -> None:
    method, runs = build(), []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append("encoder"))
    method.embeddings.register_forward_hook(lambda *_: runs.append("graph"))
    method(torch.rand(2, 2, 3, 64, 64), torch.zeros(2, 4))
    assert sorted(runs) == ["encoder", "graph"]


def test_dropout_is_active_only_in_training() -> None:
    method, images = build(Config(vector_size=5, dropout=0.9)), torch.rand(2, 3, 64, 64)
    assert torch.equal(method.logits(images), method.logits(images))
    method.train().encoder.eval()
    assert not torch.equal(method.logits(images), method.logits(images))


def test_vectors_are_fixed_with_a_file_and_learned_otherwise(words: Path) -> None:
    fixed, learned = build(Config(vectors=str(words), vector_size=5)), build()
    assert fixed.vectors[:, 0].tolist() == [3, 2, 2.5, 0]  # traffic is 4, light is 1
    assert "vectors" not in dict(fixed.named_parameters())
    assert "vectors" in dict(learned.named_parameters())
    assert set(fixed.state_dict()) == set(learned.state_dict())


def test_content_of_files_is_part_of_the_state(words: Path, table: Path) -> None:
    config = Config(vectors=str(words), knowledge=str(table), vector_size=5)
    assert {name for name in KSSNet.files if getattr(config, name)} == {"vectors", "knowledge"}
    trained = randomized(build(config))
    empty = LabelSpace(space_with_counts().names, np.zeros(4, dtype=np.int64), np.zeros((4, 4), dtype=np.int64))
    loaded = build(SMALL, empty)
    assert not torch.equal(loaded.graph, trained.graph)
    loaded.load_state_dict(trained.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(loaded.logits(images), trained.logits(images))


def test_knowledge_about_other_classes_raises(table: Path) -> None:
    with pytest.raises(DataError, match="row 2: 'dog' and 'unicorn'"):
        build(Config(knowledge=str(table)), label_space())


ENCODERS = ("test_resnet", "test_convnext", "test_vit", "test_mambaout", "test_efficientnet", "mobilenetv3_small_100")


@pytest.mark.parametrize("name", ENCODERS)
def test_all_parameters_of_any_encoder_with_stages_are_trained(name: str) -> None:
    """This includes layers after the maps: the norm of ConvNeXt and the last layer of MobileNetV3."""
    method = KSSNet(Encoder(name, image_size=64), space_with_counts(), SMALL)
    images, labels = torch.rand(1, 2, 3, 64, 64), torch.ones(2, 4)
    assert method.eval().logits(images[0]).shape == (2, 4)
    method(images, labels).loss.backward()
    assert all(p.requires_grad and p.grad is not None for p in method.parameters())
    assert all(connection.back.weight.grad.abs().max() > 0 for connection in connections_of(method))  # type: ignore[union-attr]


def test_frozen_parameters_stay_frozen() -> None:
    encoder = Encoder("test_convnext", image_size=64)
    encoder.model.stem.requires_grad_(False)
    frozen = {key for key, p in KSSNet(encoder, space_with_counts(), SMALL).named_parameters() if not p.requires_grad}
    assert frozen == {f"encoder.model.stem.{key}" for key, _ in encoder.model.stem.named_parameters()}


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", "mobilenetv3_small_100"])
def test_trained_tail_gives_the_same_logits_on_the_full_encoder(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(name, image_size=64).eval()
    cut = split_encoder(encoder)
    assert cut is not None
    method, images = KSSNet(cut.tail, space_with_counts(), SMALL), torch.rand(4, 3, 64, 64)
    frozen_connections = [
        not any(p.requires_grad for p in connection.parameters()) for connection in connections_of(method)
    ]
    assert frozen_connections == [True, True, False]
    activations, labels = cut.trunk(images)[None], (torch.rand(4, 4) < 0.5).float()
    optimizer = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    method.train()
    for _ in range(5):
        optimizer.zero_grad()
        method(activations, labels).loss.backward()
        assert all(p.grad is not None for p in method.parameters() if p.requires_grad)
        optimizer.step()
    assert (connections_of(method)[2].back.weight != 0).any()
    full = KSSNet(encoder, space_with_counts(), SMALL)
    frozen = {f"encoder.{key}": value for key, value in encoder.state_dict().items()}
    full.load_state_dict(frozen | method.state_dict(), strict=True)
    expected = method.eval().logits(activations[0])
    torch.testing.assert_close(full.eval().logits(images), expected, rtol=1e-4, atol=1e-4)


def test_connections_are_active_only_in_logits() -> None:
    method, images = randomized(build()), torch.rand(2, 3, 64, 64)
    before = method.encoder(images)
    method.logits(images)
    assert torch.equal(method.encoder(images), before)
    with hook_stage_inputs(method.encoder, {stages(method.encoder)[-1]: torch.zeros_like}):
        assert not torch.equal(method.encoder(images), before)


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_number_of_connections(connections: int) -> None:
    method = build(Config(vector_size=5, connections=connections))
    assert len(method.connections) == connections
    assert method.logits(torch.rand(2, 3, 64, 64)).shape == (2, 4)


def test_encoders_without_maps_or_stages_raise() -> None:
    with pytest.raises(ValueError, match=r"^kssnet needs feature maps"):
        KSSNet(PrecomputedFeatures(4), space_with_counts())
    with pytest.raises(ValueError, match=r"^kssnet .* 9 stages.*test_resnet"):
        build(Config(connections=9))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("vector_size", 0),
        ("connections", 0),
        ("cooccurrence_weight", 1.5),
        ("smallest_edge", -0.1),
        ("neighbor_share", 1.0),
        ("dropout", 1.0),
    ],
)
def test_settings_out_of_range_raise(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{setting}={value} must be ")):
        Config(**{setting: value})  # type: ignore[arg-type]
