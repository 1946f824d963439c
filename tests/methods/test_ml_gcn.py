import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.images import label_space
from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.errors import DataError
from probmcl.heads.graph import label_graph, normalize_adjacency
from probmcl.losses import binary_cross_entropy
from probmcl.methods.ml_gcn import MLGCN, Config

SMALL = Config(vector_size=5, hidden=7)


def space_with_counts() -> LabelSpace:
    """Return counts in which every dog has a lead and no image has a unicorn."""
    labels = np.array([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], *[[0, 1, 0, 0]] * 3])
    return LabelSpace.from_labels(["dog", "lead", "traffic light", "unicorn"], labels)


def build(config: Config = SMALL, space: LabelSpace | None = None) -> MLGCN:
    torch.manual_seed(0)
    return MLGCN(Encoder("test_resnet", image_size=64), space or space_with_counts(), config).eval()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "glove.txt"
    words = ("the", "unicorn", "light", "lead", "dog", "traffic")
    path.write_text("".join(f"{word} {k} {k / 2} 0.1 -1 2\n" for k, word in enumerate(words)))
    return path


def slow_logits(method: MLGCN, maps: Tensor) -> Tensor:
    def convolve(nodes: Tensor, weight: Tensor) -> Tensor:
        classes = range(len(nodes))
        return (
            torch.stack([sum((method.graph[i, j] * nodes[j] for j in classes), torch.zeros(())) for i in classes])
            @ weight
        )

    hidden = convolve(method.vectors, method.first.weight)
    hidden = torch.where(hidden > 0, hidden, 0.2 * hidden)
    vectors = convolve(hidden, method.second.weight)
    pooled = torch.tensor([[channel.max() for channel in image] for image in maps])
    return torch.tensor([[(x * w).sum() for w in vectors] for x in pooled])


def test_logits_match_a_loop() -> None:
    method, images = build(), torch.rand(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(method.logits(images), slow_logits(method, method.encoder.maps(images)))


def test_graph_is_computed_from_label_counts_and_not_learned() -> None:
    method, space = build(), space_with_counts()
    expected = normalize_adjacency(label_graph(space.counts, space.cooccurrence, threshold=0.4, neighbor_share=0.2))
    assert torch.equal(method.graph, expected)
    assert (method.graph > 0).tolist() == [  # a row has the classes that a class receives from
        [True, False, False, False],
        [True, True, True, False],
        [False, False, True, False],
        [False, False, False, True],
    ]
    assert "graph" in method.state_dict()
    assert "graph" not in dict(method.named_parameters())


def test_loss_is_the_binary_cross_entropy_of_known_labels() -> None:
    method, images = build(), torch.rand(5, 3, 64, 64)
    labels, known = (torch.rand(5, 4) < 0.5).float(), torch.rand(5, 4) < 0.7
    expected = binary_cross_entropy(method.logits(images), labels, known)
    torch.testing.assert_close(method(images[None], labels, known).loss, expected)


def test_encoder_runs_once_per_step() -> None:
    method, runs = build(), []
    method.encoder.model.layer4.register_forward_hook(lambda *_: runs.append(1))
    method(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 4))
    assert runs == [1]


def test_vectors_are_fixed_with_a_file_and_learned_otherwise(file: Path) -> None:
    fixed, learned = build(Config(vectors=str(file), vector_size=5, hidden=7)), build()
    assert fixed.vectors[:, 0].tolist() == [4, 3, 3.5, 1]  # traffic is 5, light is 2
    assert "vectors" not in dict(fixed.named_parameters())
    assert "vectors" in dict(learned.named_parameters())
    assert set(fixed.state_dict()) == set(learned.state_dict())
    fixed.train()(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 4)).loss.backward()
    assert not fixed.vectors.requires_grad
    learned(torch.rand(1, 2, 3, 64, 64), torch.zeros(2, 4)).loss.backward()
    assert learned.vectors.grad is not None
    assert (learned.vectors.grad != 0).any()


def test_learned_vectors_start_small() -> None:
    vectors = build(Config()).vectors
    assert vectors.shape == (4, 300)
    assert vectors.std().item() == pytest.approx(0.3, rel=0.1)


def test_class_without_a_word_vector_raises(file: Path) -> None:
    with pytest.raises(DataError, match="'class' in class 'class 0'"):
        build(Config(vectors=str(file), vector_size=5), label_space())


def test_state_can_be_loaded_without_the_file_and_the_counts(file: Path) -> None:
    trained = build(Config(vectors=str(file), vector_size=5, hidden=7))
    empty = LabelSpace(space_with_counts().names, np.zeros(4, dtype=np.int64), np.zeros((4, 4), dtype=np.int64))
    loaded = build(SMALL, empty)
    assert not torch.equal(loaded.graph, trained.graph)
    loaded.load_state_dict(trained.state_dict())
    images = torch.rand(2, 3, 64, 64)
    assert torch.equal(loaded.logits(images), trained.logits(images))


def test_number_of_parameters_is_as_published() -> None:
    with torch.device("meta"):
        encoder = Encoder("resnet101", image_size=448)
        trunk = sum(p.numel() for p in encoder.parameters())
    method = MLGCN(encoder, label_space(9))
    convolutions = 300 * 1024 + 1024 * 2048
    learned = sum(p.numel() for p in method.parameters())
    assert learned - method.vectors.numel() == trunk + convolutions == 44_904_512  # with vectors from a file
    assert method.vectors.numel() == 9 * 300


@pytest.mark.parametrize(
    ("setting", "value"), [("vector_size", 0), ("hidden", 0), ("threshold", 0.0), ("neighbor_share", 1.0)]
)
def test_settings_out_of_range_raise(setting: str, value: float) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{setting}={value} must be ")):
        Config(**{setting: value})  # type: ignore[arg-type]
