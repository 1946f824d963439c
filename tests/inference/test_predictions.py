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


def test_a_decision_is_a_probability_above_the_threshold_and_never_one_of_a_broken_image() -> None:
    scores = np.array([[0.5, 0.50001, 0.2], [np.nan, np.nan, np.nan]], dtype=np.float32)
    said = Predictions(NAMES, (Path("a"), Path("b")), scores, 0.5, {Path("b"): "no"})
    assert said.labels.tolist() == [[False, True, False], [False, False, False]]


def test_a_table_has_a_probability_and_a_decision_for_each_class(tmp_path: Path) -> None:
    said = block("a,b.jpg", "broken.jpg", "two\nlines.jpg", broken=1)
    said.to_csv(tmp_path / "said.csv")
    with (tmp_path / "said.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "error", *NAMES, *(f"{name}:decision" for name in NAMES)]
    assert [row["path"] for row in rows] == ["a,b.jpg", "broken.jpg", "two\nlines.jpg"]
    assert [row["error"] for row in rows] == ["", "the file is empty", ""]
    assert set(rows[1].values()) == {"broken.jpg", "the file is empty", ""}
    for number in (0, 2):
        read = [float(rows[number][name]) for name in NAMES]
        np.testing.assert_allclose(read, said.scores[number], rtol=1e-5)
        assert [rows[number][f"{name}:decision"] == "1" for name in NAMES] == said.labels[number].tolist()


def test_json_has_the_same_and_null_for_what_is_not_there(tmp_path: Path) -> None:
    said = block("a.jpg", "broken.jpg", broken=1)
    said.to_json(tmp_path / "said.json")
    content = json.loads((tmp_path / "said.json").read_text())
    assert (content["names"], content["threshold"]) == (list(NAMES), 0.5)
    whole, broken = content["images"]
    assert (whole["path"], whole["error"]) == ("a.jpg", None)
    np.testing.assert_allclose([whole["probabilities"][name] for name in NAMES], said.scores[0], rtol=1e-5)
    assert [whole["decisions"][name] for name in NAMES] == said.labels[0].tolist()
    assert broken == {"path": "broken.jpg", "error": "the file is empty", "probabilities": None, "decisions": None}


@pytest.mark.parametrize("suffix", [".csv", ".json", ".CSV"])
def test_writing_block_by_block_gives_the_same_file_as_writing_all_at_once(tmp_path: Path, suffix: str) -> None:
    blocks = [block("a.jpg", "b.jpg", broken=0), block("c.jpg")]
    write_predictions(tmp_path / f"parts{suffix}", blocks)
    write_predictions(tmp_path / f"whole{suffix}", [Predictions.concatenate(NAMES, 0.5, blocks)])
    assert (tmp_path / f"parts{suffix}").read_bytes() == (tmp_path / f"whole{suffix}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_blocks_are_joined_in_order() -> None:
    blocks = [block("a.jpg", "b.jpg", broken=0), block("c.jpg")]
    said = Predictions.concatenate(NAMES, 0.5, blocks)
    assert said.paths == (Path("a.jpg"), Path("b.jpg"), Path("c.jpg"))
    np.testing.assert_array_equal(said.scores, np.concatenate([blocks[0].scores, blocks[1].scores]))
    assert said.errors == {Path("a.jpg"): "the file is empty"}
    assert Predictions.concatenate(NAMES, 0.5, []).scores.shape == (0, 3)


def test_a_file_name_that_is_no_text_keeps_its_bytes(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.jpg")
    block(name).to_csv(tmp_path / "said.csv")
    assert b"caf\xe9.jpg" in (tmp_path / "said.csv").read_bytes()
    block(name).to_json(tmp_path / "said.json")
    assert os.fsencode(json.loads((tmp_path / "said.json").read_text())["images"][0]["path"]) == b"caf\xe9.jpg"


def test_a_class_called_as_a_column_is_refused_in_a_table_only(tmp_path: Path) -> None:
    for name in ("path", "error", "cat:decision"):
        with pytest.raises(ValueError, match=rf"class '{name}' has the name of another column; write .json"):
            block("a.jpg", names=("cat", name)).to_csv(tmp_path / "said.csv")
    assert not list(tmp_path.iterdir())
    block("a.jpg", names=("cat", "path")).to_json(tmp_path / "said.json")


def test_nothing_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "said.csv").write_text("precious")
    (tmp_path / "begun.csv.part").write_text("precious too")
    for name, said in (("said.csv", "exists already"), ("begun.csv", "another command writes it now")):
        with pytest.raises(FileExistsError, match=said):
            block("a.jpg").to_csv(tmp_path / name)
        with pytest.raises(FileExistsError, match=said):
            refuse_output(tmp_path / name)
    assert (tmp_path / "said.csv").read_text() == "precious"
    assert (tmp_path / "begun.csv.part").read_text() == "precious too"


def test_a_file_that_appears_meanwhile_is_not_written_over(tmp_path: Path) -> None:
    def blocks() -> Iterator[Predictions]:
        yield block("a.jpg")
        (tmp_path / "said.csv").write_text("precious")

    with pytest.raises(FileExistsError, match=r"the predictions are in .*said\.csv\.part"):
        write_predictions(tmp_path / "said.csv", blocks())
    assert (tmp_path / "said.csv").read_text() == "precious"
    assert "a.jpg" in partial_path(tmp_path / "said.csv").read_text()


def test_another_suffix_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"said\.xlsx: its name has to end in \.csv or \.json"):
        write_predictions(tmp_path / "said.xlsx", [block("a.jpg")])


def test_what_goes_wrong_at_once_leaves_no_file_and_later_a_part(tmp_path: Path) -> None:
    def failing(whole: int) -> Iterator[Predictions]:
        for _ in range(whole):
            yield block("a.jpg")
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="gone"):
        write_predictions(tmp_path / "deep" / "said.csv", failing(0))
    assert not list(tmp_path.iterdir())
    with pytest.raises(OSError, match="gone"):
        write_predictions(tmp_path / "deep" / "said.csv", failing(2))
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["said.csv.part"]
    assert partial_path(tmp_path / "deep" / "said.csv").read_text().count("a.jpg") == 2
