from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from probmcl.errors import RunError
from probmcl.neighbors import TrainingImages
from probmcl.neighbors.training_images import common_image_folder, relative_path


def made(count: int = 50) -> TrainingImages:
    torch.manual_seed(0)
    labels = torch.rand(count, 3) < 0.5
    paths = tuple(f"ü {number}.jpg" for number in range(count))
    return TrainingImages(paths, torch.randn(count, 8).half(), labels, torch.ones_like(labels))


def test_a_file_has_paths_labels_and_features_in_half_precision(tmp_path: Path) -> None:
    images = made()
    images.save(tmp_path / "file.safetensors")
    loaded = TrainingImages.load(tmp_path / "file.safetensors")
    assert loaded.paths == images.paths
    assert loaded.features.dtype == torch.float16
    assert torch.equal(loaded.features, images.features)
    assert torch.equal(loaded.labels, images.labels)


def test_nearest_images_have_the_highest_cosine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probmcl.neighbors.training_images.BLOCK", 7)
    images, queries = made(), torch.randn(4, 8)
    rows, similarity = images.nearest(queries, k=3)
    cosine = torch.nn.functional.cosine_similarity(queries[:, None], images.features.float()[None], dim=2)
    assert torch.equal(rows, cosine.topk(3).indices)
    torch.testing.assert_close(similarity, cosine.topk(3).values)


def test_there_are_never_more_neighbors_than_images() -> None:
    assert made(2).nearest(torch.randn(1, 8), k=5)[0].shape == (1, 2)


def test_a_damaged_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"nothing")
    with pytest.raises(RunError, match="cannot be read"):
        TrainingImages.load(tmp_path / "file")


@pytest.mark.parametrize(
    "change",
    [
        {"paths": tuple(range(50))},
        {"paths": ("a.jpg",) * 49},
        {"features": torch.ones(50)},
        {"features": torch.ones(49, 8)},
        {"labels": torch.ones(50, 2) > 0},
        {"known": torch.ones(50, 3, 1) > 0},
        {"known": torch.ones(50, 3)},
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_a_wrong_type_or_shape_is_an_error(change: dict[str, Any], tmp_path: Path) -> None:
    replace(made(), **change).save(tmp_path / "file")
    with pytest.raises(RunError, match=r"file cannot be read \(its "):
        TrainingImages.load(tmp_path / "file")


def test_another_number_of_classes_is_an_error(tmp_path: Path) -> None:
    made().save(tmp_path / "file")
    TrainingImages.load(tmp_path / "file", classes=3)
    with pytest.raises(RunError, match=r"file cannot be read \(it has 3 classes; the run has 4\)"):
        TrainingImages.load(tmp_path / "file", classes=4)


@pytest.mark.parametrize(
    ("features", "problem"),
    [(torch.ones(50, 5), "5 numbers; those of the encoder have 8"), (torch.full((50, 8), torch.nan), "are NaN")],
)
def test_features_that_cannot_be_compared_are_an_error(features: torch.Tensor, problem: str) -> None:
    with pytest.raises(RunError, match=rf"neighbors\.safetensors: its features .*{problem}"):
        replace(made(), features=features).nearest(torch.ones(1, 8), k=3)


def test_paths_are_relative_to_the_folder_of_all_images() -> None:
    paths = ["/data/photos/a/1.jpg", "/data/photos/2.jpg"]
    assert [relative_path(path, common_image_folder(paths)) for path in paths] == ["a/1.jpg", "2.jpg"]
    assert common_image_folder(["1.jpg"]) == Path()
