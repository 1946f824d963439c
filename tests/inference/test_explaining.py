from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run
from probmcl.errors import OptionError
from probmcl.inference import Model, load


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
