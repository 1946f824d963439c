from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate

from probmcl.explain import Explanation, Explanations
from probmcl.explain.explanations import enlarge

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
