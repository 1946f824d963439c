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


def counted() -> LabelSpace:
    """Dogs are always on leads, and nobody has seen a unicorn."""
    labels = np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], *[[0, 1, 0, 0]] * 3])
    return LabelSpace.from_labels(["dog", "lead", "traffic light", "unicorn"], labels)


def build(config: Config = SMALL, space: LabelSpace | None = None) -> KSSNet:
    torch.manual_seed(0)
    return KSSNet(Encoder("test_resnet", image_size=64), space or counted(), config).eval()


def taught(method: KSSNet) -> KSSNet:
    """With connections that add something."""
    for connection in of(method):
        nn.init.normal_(connection.back.weight)
    return method


def of(method: KSSNet) -> list[LateralConnection]:
    connections = list(method.connections)
    assert all(isinstance(connection, LateralConnection) for connection in connections)
    return connections  # type: ignore[return-value]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    there = ("unicorn", "light", "lead", "dog", "traffic")
    path.write_text("".join(f"{word} {k} {k / 2} 0.1 -1 2\n" for k, word in enumerate(there)))
    return path


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "knowledge.csv"
    path.write_text("start,end,weight\ndog,unicorn,0.8\n")
    return path


@pytest.mark.parametrize("scale", ["even", "published"])
def test_logits_are_those_of_the_network_written_out(scale: Literal["even", "published"]) -> None:
    method, images = taught(build(Config(vector_size=5, scale=scale))), torch.rand(3, 3, 64, 64)
    model, (first, second, third) = method.encoder.model, of(method)
    *lateral, last = method.embeddings(method.vectors, method.graph)

    def factor(size: int) -> float:
        return size**-0.5 if scale == "even" else 1.0

    def reached(maps: Tensor, connection: LateralConnection, embeddings: Tensor) -> Tensor:
        shared = torch.einsum("nkhw,ck->nchw", maps, embeddings) * factor(maps.shape[1])
        return maps + torch.einsum("nchw,kc->nkhw", shared, connection.back.weight[:, :, 0, 0])

    with torch.no_grad():
        maps = model.layer1(model.maxpool(model.act1(model.bn1(model.conv1(images)))))
        maps = model.layer2(reached(maps, first, lateral[0]))
        maps = model.layer3(reached(maps, second, lateral[1]))
        features = model.layer4(reached(maps, third, lateral[2])).mean((2, 3))
        linear = method.classifier.linear
        expected = features @ linear.weight.T + linear.bias + factor(96) * features @ last.T
        torch.testing.assert_close(method.logits(images), expected, rtol=1e-4, atol=1e-4)


def test_widths_follow_the_stages_as_in_the_published_network() -> None:
    with torch.device("meta"):
        method = KSSNet(Encoder("resnet101", image_size=448), label_space(80))
    widths = [300, 256, 512, 1024, 2048]
    shapes = {key: tuple(p.shape) for key, p in method.named_parameters()}
    for number, (before, after) in enumerate(pairwise(widths)):
        inner = (before + after) // 8
        assert shapes[f"embeddings.convolutions.{number}.first"] == (before, inner)
        assert shapes[f"embeddings.convolutions.{number}.second"] == (inner, after)
    assert [tuple(c.back.weight.shape) for c in of(method)] == [(w, 80, 1, 1) for w in widths[1:4]]
    assert [stage.module for stage in stages(method.encoder)[-3:]] == ["layer2", "layer3", "layer4"]  # after 1, 2, 3


def test_a_new_one_leaves_the_encoder_as_it_was() -> None:
    method, images = build(), torch.rand(2, 3, 64, 64)
    seen: list[Tensor] = []
    method.classifier.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    method.logits(images)
    assert torch.equal(seen[0], method.encoder(images))
    assert not torch.equal(taught(method).logits(images), build().logits(images))


def test_embeddings_start_of_even_size_or_as_published() -> None:
    torch.manual_seed(0)
    encoder, sizes = Encoder("resnet18", image_size=64), {}
    for scale in ("even", "published"):
        method = KSSNet(encoder, label_space(20), Config(scale=scale))
        sizes[scale] = [e.square().mean().sqrt().item() for e in method.embeddings(method.vectors, method.graph)]
    assert min(sizes["even"]) > 0.15
    assert max(sizes["even"]) < 0.5
    assert sizes["published"][-1] < 0.05


def test_the_graph_is_superimposed_and_is_not_learned(table: Path) -> None:
    method, space = build(Config(vector_size=5, knowledge=str(table))), counted()
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


def test_the_loss_is_the_binary_cross_entropy_of_the_known_labels() -> None:
    method, images = build(), torch.rand(5, 3, 64, 64)
    labels, known = (torch.rand(5, 4) < 0.5).float(), torch.rand(5, 4) < 0.7
    expected = binary_cross_entropy(method.logits(images), labels, known)
    torch.testing.assert_close(method(images[None], labels, known).loss, expected)


def test_encoder_and_graph_run_once_in_a_step() -> None:
    method, runs = build(), []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append("encoder"))
    method.embeddings.register_forward_hook(lambda *_: runs.append("graph"))
    method(torch.rand(2, 2, 3, 64, 64), torch.zeros(2, 4))
    assert sorted(runs) == ["encoder", "graph"]


def test_dropout_is_on_in_training_and_off_otherwise() -> None:
    method, images = build(Config(vector_size=5, dropout=0.9)), torch.rand(2, 3, 64, 64)
    assert torch.equal(method.logits(images), method.logits(images))
    method.train().encoder.eval()
    assert not torch.equal(method.logits(images), method.logits(images))


def test_vectors_of_a_file_are_fixed_and_those_without_are_learned(words: Path) -> None:
    fixed, learned = build(Config(vectors=str(words), vector_size=5)), build()
    assert fixed.vectors[:, 0].tolist() == [3, 2, 2.5, 0]  # traffic is 4, light is 1
    assert "vectors" not in dict(fixed.named_parameters())
    assert "vectors" in dict(learned.named_parameters())
    assert set(fixed.state_dict()) == set(learned.state_dict())


def test_files_are_said_to_be_files_and_what_they_held_is_in_the_state(words: Path, table: Path) -> None:
    config = Config(vectors=str(words), knowledge=str(table), vector_size=5)
    assert {name for name in KSSNet.files if getattr(config, name)} == {"vectors", "knowledge"}
    trained = taught(build(config))
    empty = LabelSpace(counted().names, np.zeros(4, dtype=np.int64), np.zeros((4, 4), dtype=np.int64))
    loaded = build(SMALL, empty)
    assert not torch.equal(loaded.graph, trained.graph)
    loaded.load_state_dict(trained.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(loaded.logits(images), trained.logits(images))


def test_knowledge_of_other_classes_is_an_error(table: Path) -> None:
    with pytest.raises(DataError, match="row 2: 'dog' and 'unicorn' are not two classes of the data"):
        build(Config(knowledge=str(table)), label_space())


ENCODERS = ("test_resnet", "test_convnext", "test_vit", "test_mambaout", "test_efficientnet", "mobilenetv3_small_100")


@pytest.mark.parametrize("name", ENCODERS)
def test_any_encoder_with_stages_learns_as_a_whole(name: str) -> None:
    """Also what lies beyond the maps: the norm of ConvNeXt, the last layer of MobileNetV3."""
    method = KSSNet(Encoder(name, image_size=64), counted(), SMALL)
    images, labels = torch.rand(1, 2, 3, 64, 64), torch.ones(2, 4)
    assert method.eval().logits(images[0]).shape == (2, 4)
    method(images, labels).loss.backward()
    assert all(p.requires_grad and p.grad is not None for p in method.parameters())
    assert all(connection.back.weight.grad.abs().max() > 0 for connection in of(method))  # type: ignore[union-attr]


def test_what_was_frozen_before_stays_so() -> None:
    encoder = Encoder("test_convnext", image_size=64)
    encoder.model.stem.requires_grad_(False)
    frozen = {key for key, p in KSSNet(encoder, counted(), SMALL).named_parameters() if not p.requires_grad}
    assert frozen == {f"encoder.model.stem.{key}" for key, _ in encoder.model.stem.named_parameters()}


@pytest.mark.parametrize("name", ["test_resnet", "test_convnext", "test_efficientnet", "mobilenetv3_small_100"])
def test_what_a_tail_has_learned_is_the_same_on_the_whole_encoder(name: str) -> None:
    torch.manual_seed(0)
    encoder = Encoder(name, image_size=64).eval()
    cut = split_encoder(encoder)
    assert cut is not None
    method, images = KSSNet(cut.tail, counted(), SMALL), torch.rand(4, 3, 64, 64)
    resting = [not any(p.requires_grad for p in connection.parameters()) for connection in of(method)]
    assert resting == [True, True, False]
    activations, labels = cut.trunk(images)[None], (torch.rand(4, 4) < 0.5).float()
    moves = torch.optim.Adam([p for p in method.parameters() if p.requires_grad], lr=1e-3)
    method.train()
    for _ in range(5):
        moves.zero_grad()
        method(activations, labels).loss.backward()
        assert all(p.grad is not None for p in method.parameters() if p.requires_grad)
        moves.step()
    assert (of(method)[2].back.weight != 0).any()
    whole = KSSNet(encoder, counted(), SMALL)
    frozen = {f"encoder.{key}": value for key, value in encoder.state_dict().items()}
    whole.load_state_dict(frozen | method.state_dict(), strict=True)
    expected = method.eval().logits(activations[0])
    torch.testing.assert_close(whole.eval().logits(images), expected, rtol=1e-4, atol=1e-4)


def test_the_connections_act_only_while_logits_are_computed() -> None:
    method, images = taught(build()), torch.rand(2, 3, 64, 64)
    before = method.encoder(images)
    method.logits(images)
    assert torch.equal(method.encoder(images), before)
    with hook_stage_inputs(method.encoder, {stages(method.encoder)[-1]: torch.zeros_like}):
        assert not torch.equal(method.encoder(images), before)


@pytest.mark.parametrize("connections", [1, 2, 4])
def test_another_number_of_connections(connections: int) -> None:
    method = build(Config(vector_size=5, connections=connections))
    assert len(method.connections) == connections
    assert method.logits(torch.rand(2, 3, 64, 64)).shape == (2, 4)


def test_stored_features_and_encoders_without_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="kssnet needs feature maps"):
        KSSNet(PrecomputedFeatures(4), counted())
    with pytest.raises(ValueError, match=r"^kssnet needs .* last 9 stages.* test_resnet"):
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
def test_settings_out_of_range_are_refused(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{setting}={value} must be ")):
        Config(**{setting: value})  # type: ignore[arg-type]
