import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from probmcl.inference.predictions import Predictions, partial_path, refuse_output, write_predictions

NAMES = ("cat", 'sofa, "red"', "ünlü")


def block(*paths: str, broken: int | None = None, names: tuple[str, ...] = NAMES) -> Predictions:
    scores = np.random.default_rng(len(paths)).random((len(paths), len(names)), dtype=np.float32)
    errors = {}
    if broken is not None:
        scores[broken] = np.nan
        errors[Path(paths[broken])] = "the file is empty"
    return Predictions(names, tuple(map(Path, paths)), scores, 0.5, errors)


def test_decision_is_above_threshold_and_false_for_unreadable_images() -> None:
    scores = np.array([[0.5, 0.50001, 0.2], [np.nan, np.nan, np.nan]], dtype=np.float32)
    predictions = Predictions(NAMES, (Path("a"), Path("b")), scores, 0.5, {Path("b"): "no"})
    assert predictions.labels.tolist() == [[False, True, False], [False, False, False]]


def test_csv_has_probabilities_and_decisions(tmp_path: Path) -> None:
    predictions = block("a,b.jpg", "broken.jpg", "two\nlines.jpg", broken=1)
    predictions.to_csv(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "error", *NAMES, *(f"{name}:decision" for name in NAMES)]
    assert [row["path"] for row in rows] == ["a,b.jpg", "broken.jpg", "two\nlines.jpg"]
    assert [row["error"] for row in rows] == ["", "the file is empty", ""]
    assert set(rows[1].values()) == {"broken.jpg", "the file is empty", ""}
    for number in (0, 2):
        read = [float(rows[number][name]) for name in NAMES]
        np.testing.assert_allclose(read, predictions.scores[number], rtol=1e-5)
        assert [rows[number][f"{name}:decision"] == "1" for name in NAMES] == predictions.labels[number].tolist()


def test_json_has_null_for_unreadable_images(tmp_path: Path) -> None:
    predictions = block("a.jpg", "broken.jpg", broken=1)
    predictions.to_json(tmp_path / "predictions.json")
    content = json.loads((tmp_path / "predictions.json").read_text())
    assert (content["names"], content["threshold"]) == (list(NAMES), 0.5)
    readable, broken = content["images"]
    assert (readable["path"], readable["error"]) == ("a.jpg", None)
    np.testing.assert_allclose([readable["probabilities"][name] for name in NAMES], predictions.scores[0], rtol=1e-5)
    assert [readable["decisions"][name] for name in NAMES] == predictions.labels[0].tolist()
    assert broken == {"path": "broken.jpg", "error": "the file is empty", "probabilities": None, "decisions": None}


@pytest.mark.parametrize("suffix", [".csv", ".json", ".CSV"])
def test_writing_in_blocks_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    blocks = [block("a.jpg", "b.jpg", broken=0), block("c.jpg")]
    write_predictions(tmp_path / f"parts{suffix}", blocks)
    write_predictions(tmp_path / f"whole{suffix}", [Predictions.concatenate(NAMES, 0.5, blocks)])
    assert (tmp_path / f"parts{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_concatenate_keeps_the_order() -> None:
    blocks = [block("a.jpg", "b.jpg", broken=0), block("c.jpg")]
    predictions = Predictions.concatenate(NAMES, 0.5, blocks)
    assert predictions.paths == (Path("a.jpg"), Path("b.jpg"), Path("c.jpg"))
    np.testing.assert_array_equal(predictions.scores, np.concatenate([blocks[0].scores, blocks[1].scores]))
    assert predictions.errors == {Path("a.jpg"): "the file is empty"}
    assert Predictions.concatenate(NAMES, 0.5, []).scores.shape == (0, 3)


def test_undecodable_file_name_keeps_its_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    block(name).to_csv(tmp_path / "predictions.csv")
    assert b"caf\xe9.jpg" in (tmp_path / "predictions.csv").read_bytes()
    block(name).to_json(tmp_path / "predictions.json")
    assert os.fsencode(json.loads((tmp_path / "predictions.json").read_text())["images"][0]["path"]) == b"caf\xe9.jpg"


def test_class_with_the_name_of_a_column_is_rejected_only_in_csv(tmp_path: Path) -> None:
    for name in ("path", "error", "cat:decision"):
        with pytest.raises(ValueError, match=rf"class '{name}' .* \.json"):
            block("a.jpg", names=("cat", name)).to_csv(tmp_path / "predictions.csv")
    assert not list(tmp_path.iterdir())
    block("a.jpg", names=("cat", "path")).to_json(tmp_path / "predictions.json")


def test_existing_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "predictions.csv").write_text("precious")
    (tmp_path / "begun.csv.part").write_text("precious too")
    for name, message in (("predictions.csv", r"predictions\.csv already exists"), ("begun.csv", r"begun\.csv\.part")):
        with pytest.raises(FileExistsError, match=message):
            block("a.jpg").to_csv(tmp_path / name)
        with pytest.raises(FileExistsError, match=message):
            refuse_output(tmp_path / name)
    assert (tmp_path / "predictions.csv").read_text() == "precious"
    assert (tmp_path / "begun.csv.part").read_text() == "precious too"


def test_file_created_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    def blocks() -> Iterator[Predictions]:
        yield block("a.jpg")
        (tmp_path / "predictions.csv").write_text("precious")

    with pytest.raises(FileExistsError, match=r"the predictions are in .*predictions\.csv\.part"):
        write_predictions(tmp_path / "predictions.csv", blocks())
    assert (tmp_path / "predictions.csv").read_text() == "precious"
    assert "a.jpg" in partial_path(tmp_path / "predictions.csv").read_text()


def test_unknown_suffix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"predictions\.xlsx: .* \.csv or \.json"):
        write_predictions(tmp_path / "predictions.xlsx", [block("a.jpg")])


def test_error_leaves_a_partial_file_only_after_the_first_block(tmp_path: Path) -> None:
    def failing(blocks: int) -> Iterator[Predictions]:
        for _ in range(blocks):
            yield block("a.jpg")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        write_predictions(tmp_path / "deep" / "predictions.csv", failing(0))
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="gone"):
        write_predictions(tmp_path / "deep" / "predictions.csv", failing(2))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["predictions.csv.part"]
    assert partial_path(tmp_path / "deep" / "predictions.csv").read_text().count("a.jpg") == 2
