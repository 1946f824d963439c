"""Explanations of predictions: a heat map for each image and label."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate

from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run
from probmcl.errors import OptionError
from probmcl.explain import Explanation, Explanations
from probmcl.explain.explanations import enlarge
from probmcl.inference import Model, load

RNG = np.random.default_rng(0)


def explanation(name: str, *labels: str) -> Explanation:
    maps = {label: RNG.random((3, 4), dtype=np.float32) for label in labels}
    return Explanation(Path(name), maps, {"cat": 0.9, "dog": 0.2}, ("cat",))


def test_enlarging_equals_bilinear_interpolation() -> None:
    heat = RNG.random((5, 7), dtype=np.float32)
    expected = interpolate(torch.from_numpy(heat)[None, None], (40, 63), mode="bilinear")[0, 0]
    np.testing.assert_allclose(enlarge(heat, width=63, height=40), expected, atol=1e-6)


def test_npz_has_one_row_per_map(tmp_path: Path) -> None:
    unreadable = Explanation(Path("c.jpg"), {}, {}, error="the file is empty")
    images = (explanation("a.jpg", "cat", "dog"), unreadable, explanation("b.jpg", "dog"))
    explanations = Explanations(("cat", "dog"), images)
    explanations.to_npz(tmp_path / "maps.npz")
    with np.load(tmp_path / "maps.npz") as file:
        assert file["path"].tolist() == ["a.jpg", "a.jpg", "b.jpg"]
        assert file["label"].tolist() == ["cat", "dog", "dog"]
        assert file["probability"].tolist() == [0.9, 0.2, 0.2]
        assert file["maps"].dtype == np.float32
        assert np.array_equal(file["maps"][2], images[2].maps["dog"])
    assert explanations.errors == {Path("c.jpg"): "the file is empty"}
    assert [image.path for image in explanations] == list(explanations.paths)
    assert "c.jpg: ERROR: the file is empty" in repr(explanations)


def test_no_map_at_all_can_be_written(tmp_path: Path) -> None:
    Explanations(("cat",), (explanation("a.jpg"),)).to_npz(tmp_path / "maps.npz")
    with np.load(tmp_path / "maps.npz") as file:
        assert len(file["maps"]) == len(file["path"]) == 0


def test_only_selects_labels() -> None:
    image = explanation("a.jpg", "cat", "dog")
    assert list(image.only(["dog"]).maps) == ["dog"]
    assert image.only(["dog"]).probabilities == image.probabilities


@pytest.fixture
def model(tmp_path: Path) -> Model:
    made_run(tmp_path / "run")
    colored_records(tmp_path / "photos", train=6, val=0, test=0)
    return load(tmp_path / "run", device="cpu")


@pytest.fixture
def photos(model: Model) -> Path:
    return model.folder.parent / "photos"


def test_decided_labels_are_those_of_predict(model: Model, photos: Path) -> None:
    predictions = model.predict(photos, threshold=0.6, workers=0)
    explanations = model.explain(photos, threshold=0.6, workers=0)
    assert explanations.paths == predictions.paths
    assert explanations.names == NAMES
    assert len({len(image.maps) for image in explanations}) > 1
    for explanation, prediction in zip(explanations, predictions, strict=True):
        assert tuple(explanation.maps) == explanation.decided == prediction.labels
        assert explanation.probabilities == pytest.approx(prediction.probabilities, abs=1e-5)
        assert all(heat.dtype == np.float32 and heat.shape == (1, 1) for heat in explanation.maps.values())


def test_maps_do_not_depend_on_batches_and_requested_labels(model: Model, photos: Path) -> None:
    everything = model.explain(photos, labels="all", workers=0)
    for batch_size in (1, 4):
        for image, same in zip(everything, model.explain(photos, workers=0, batch_size=batch_size), strict=True):
            assert list(image.maps) == list(NAMES)
            for label, heat in same.maps.items():
                np.testing.assert_allclose(heat, image.maps[label], rtol=1e-3, atol=1e-5)
    chosen = model.explain(photos, labels=["blue", "red", "blue"], workers=0)
    for image, same in zip(everything, chosen, strict=True):
        assert list(same.maps) == ["blue", "red"]
        np.testing.assert_allclose(same.maps["blue"], image.maps["blue"], rtol=1e-3, atol=1e-5)


def test_unreadable_images_keep_their_place(model: Model, photos: Path) -> None:
    (photos / "2.png").write_bytes(b"")
    explanations = model.explain([photos, "missing.jpg"], labels="all", workers=0, batch_size=3)
    assert explanations.errors == {photos / "2.png": "the file is empty", Path("missing.jpg"): "does not exist"}
    assert [len(image.maps) for image in explanations] == [3, 3, 0, 3, 3, 3, 0]
    assert not model.explain("missing.jpg", workers=0)[0].probabilities


def test_images_in_memory_can_be_explained(model: Model) -> None:
    (explanation,) = model.explain(Image.new("RGB", (40, 30), (200, 0, 0)), labels=["green"])
    assert explanation.path == Path("image 0")
    assert explanation.enlarged("green", width=40, height=30).shape == (30, 40)


def test_the_model_is_unchanged(model: Model, photos: Path) -> None:
    before = {key: value.clone() for key, value in model.classifier.state_dict().items()}
    scores = model.predict(photos, workers=0).scores
    model.explain(photos, labels="all", workers=0)
    assert all(p.grad is None and p.requires_grad for p in model.classifier.parameters())
    assert all(torch.equal(value, before[key]) for key, value in model.classifier.state_dict().items())
    assert np.array_equal(model.predict(photos, workers=0).scores, scores)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["red", "gren"], "contains 'gren', which is not a class of the model; did you mean 'green'?"),
        ("red", 'must be "decided", "all" or a list of class names'),
    ],
)
def test_invalid_labels_are_refused_before_images_are_read(model: Model, labels: list[str], message: str) -> None:
    with pytest.raises(OptionError) as error:
        model.explain("nowhere/", labels=labels)
    assert message in str(error.value)
