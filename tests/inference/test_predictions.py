import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

import probmcl.data
from helpers.images import colored_records
from probmcl.errors import DataError, OptionError, ProbmclError
from probmcl.inference import Predictions
from probmcl.inference.prediction_files import partial_path, refuse_output, write_predictions

NAMES = ("cat", 'sofa, "red"', "ünlü")


def block(*paths: str, broken: int | None = None, names: tuple[str, ...] = NAMES) -> Predictions:
    scores = np.random.default_rng(len(paths)).random((len(paths), len(names)), dtype=np.float32)
    if broken is not None:
        scores[broken] = np.nan
    reasons = tuple("the file is empty" if row == broken else None for row in range(len(paths)))
    return Predictions(names, tuple(map(Path, paths)), scores, 0.5, reasons)


def test_decision_is_above_threshold_and_masked_for_unreadable_images() -> None:
    scores = np.array([[0.5, 0.50001, 0.2], [np.nan, np.nan, np.nan]], dtype=np.float32)
    predictions = Predictions(NAMES, (Path("a"), Path("b")), scores, 0.5, (None, "no"))
    assert predictions.labels.tolist() == [[False, True, False], [None, None, None]]
    assert predictions.labels.mean() == pytest.approx(1 / 3)


def test_csv_has_probabilities_and_decisions(tmp_path: Path) -> None:
    predictions = block("a,b.jpg", "broken.jpg", "two\nlines.jpg", broken=1)
    predictions.to_csv(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["path", "error", "uncertainty", *NAMES, *(f"{name}:decision" for name in NAMES)]
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
    assert (content["names"], content["thresholds"]) == (list(NAMES), dict.fromkeys(NAMES, 0.5))
    readable, broken = content["images"]
    assert (readable["path"], readable["error"]) == ("a.jpg", None)
    np.testing.assert_allclose([readable["probabilities"][name] for name in NAMES], predictions.scores[0], rtol=1e-5)
    assert [readable["decisions"][name] for name in NAMES] == predictions.labels[0].tolist()
    assert readable["uncertainty"] == pytest.approx(predictions.uncertainty[0], rel=1e-5)
    nothing = dict.fromkeys(("uncertainty", "probabilities", "decisions"))
    assert broken == {"path": "broken.jpg", "error": "the file is empty", **nothing}


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


def test_one_image_is_selected_by_an_integer() -> None:
    predictions = block("a.jpg", "b.jpg", "c.jpg", broken=1)
    for index in (0, np.int64(0), -3):
        image = predictions[index]
        assert image.path == Path("a.jpg")
        assert list(image.probabilities.values()) == predictions.scores[0].tolist()
        assert image.labels == tuple(np.array(NAMES)[predictions.scores[0] > 0.5])
        assert image.error is None
    assert (predictions[1].labels, predictions[1].probabilities) == (None, {})
    assert predictions[1].error == "the file is empty"
    with pytest.raises(IndexError):
        predictions[3]
    assert [image.path.name for image in predictions] == ["a.jpg", "b.jpg", "c.jpg"]


@pytest.mark.parametrize(
    ("rows", "selected"),
    [
        (slice(1, None), [1, 2]),
        ([2, 0], [2, 0]),
        ([-1], [2]),
        ([], []),
        ([True, False, True], [0, 2]),
        (np.array([False, False, False]), []),
        (np.array([0, 0]), [0, 0]),
    ],
)
def test_several_images_are_selected_by_a_slice_list_or_mask(
    rows: slice | list[int] | np.ndarray, selected: list[int]
) -> None:
    predictions = block("a.jpg", "b.jpg", "c.jpg", broken=1)
    part = predictions[rows]
    assert isinstance(part, Predictions)
    assert part.paths == tuple(predictions.paths[row] for row in selected)
    assert part.reasons == tuple(predictions.reasons[row] for row in selected)
    np.testing.assert_array_equal(part.scores, predictions.scores[selected])
    assert part.labels.shape == (len(selected), 3)


def test_mask_from_labels_does_not_select_unreadable_images() -> None:
    predictions = block("a.jpg", "b.jpg", "c.jpg", broken=1)
    without = predictions[~predictions.labels[:, 0]]
    assert Path("b.jpg") not in without.paths
    assert len(without) + len(predictions[predictions.labels[:, 0]]) == 2


def test_top_has_the_most_probable_classes_of_each_image() -> None:
    scores = np.array([[0.25, 0.75, 0.5], [np.nan] * 3, [0.5, 0.5, 0.25]], dtype=np.float32)
    paths = (Path("a"), Path("b"), Path("c"))
    predictions = Predictions(("x", "y", "z"), paths, scores, 0.5, (None, "no", None))
    assert predictions.top(2) == [[("y", 0.75), ("z", 0.5)], [], [("x", 0.5), ("y", 0.5)]]
    assert len(predictions[0].top(9)) == 3
    with pytest.raises(OptionError, match="`k=0` must be at least 1"):
        predictions.top(0)


def test_same_path_may_be_readable_and_unreadable(tmp_path: Path) -> None:
    both = Predictions.concatenate(NAMES, 0.5, [block("image 0"), block("image 0", broken=0)])
    assert [image.error for image in both] == [None, "the file is empty"]
    both.to_csv(tmp_path / "predictions.csv")
    with (tmp_path / "predictions.csv").open(newline="", encoding="utf-8") as file:
        assert [row["error"] for row in csv.DictReader(file)] == ["", "the file is empty"]


@pytest.mark.parametrize("broken", [None, 1])
def test_data_frame_has_the_columns_and_values_of_the_csv_file(tmp_path: Path, broken: int | None) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install 'probmcl[pandas]'")
    predictions = block("a,b.jpg", "c.jpg", "two\nlines.jpg", broken=broken)
    predictions.to_csv(tmp_path / "predictions.csv")
    frame = predictions.to_pandas()
    written = pandas.read_csv(tmp_path / "predictions.csv")
    assert list(frame.columns) == list(written.columns)
    assert frame["path"].tolist() == written["path"].tolist()
    np.testing.assert_array_equal(frame[list(NAMES)].to_numpy(), predictions.scores)
    for name in NAMES:
        decisions = frame[f"{name}:decision"]
        assert decisions.isna().tolist() == [row == broken for row in range(3)]
        assert decisions.dropna().tolist() == written[f"{name}:decision"].dropna().astype(bool).tolist()
    assert block("NA").to_pandas()["path"].tolist() == ["NA"]


def test_missing_pandas_is_an_error_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ProbmclError, match=r"pip install 'probmcl\[pandas\]'"):
        block("a.jpg").to_pandas()


def test_short_file_is_read_back_with_the_same_labels(tmp_path: Path) -> None:
    records = colored_records(tmp_path / "photos", train=20, val=0, test=0)
    for names, separator in ((("red", "green", "blue"), "|"), (("red", "a|b", "blue"), ";")):
        scores = np.random.default_rng(0).random((20, 3), dtype=np.float32)
        scores[7] = 0.1
        reasons = tuple("no" if row == 3 else None for row in range(20))
        predictions = Predictions(names, tuple(records.paths), scores, 0.5, reasons)
        path = tmp_path / f"{len(separator.join(names))}.csv"
        predictions.to_csv(path, format="short")
        assert separator in path.read_text()
        read = probmcl.readers.read(path)
        readable = predictions[[row != 3 for row in range(20)]]
        assert [saved.resolve() for saved in read.paths] == [saved.resolve() for saved in readable.paths]
        order = [read.label_space.names.index(name) for name in names]
        np.testing.assert_array_equal(read.labels[:, order], np.asarray(readable.labels))
        assert f"{records.paths[7]},\n" in path.read_text()


def test_short_format_needs_a_csv_file_and_a_separator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(OptionError, match=r'`format="short"` is a CSV table, so .*a\.json must end in \.csv'):
        write_predictions(tmp_path / "a.json", [block("a.jpg")], "short")
    with pytest.raises(OptionError, match='`format="long"` must be full or short'):
        block("a.jpg").to_csv(tmp_path / "a.csv", format="long")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="every separator"):
        block("a.jpg", names=("a|b;c", "d,e", "f\tg")).to_csv(tmp_path / "a.csv", format="short")
    assert not (tmp_path / "a.csv").exists()


def test_text_is_short() -> None:
    predictions = block(*(f"{number}.jpg" for number in range(1500)), broken=1)
    lines = repr(predictions).splitlines()
    assert lines[0] == "Predictions(1,500 images, 3 classes, threshold 0.5, 1 unreadable)"
    assert lines[2] == "  1.jpg: ERROR: the file is empty"
    assert lines[-1] == "  and 1,497 more"
    assert len(lines) == 5
    many = Predictions(tuple(f"class {k}" for k in range(500)), (Path("a"),), np.ones((1, 500)), 0.5, (None,))
    assert repr(many[0]) == f"Prediction(a: {', '.join(f'class {k} 1.00' for k in range(5))} and 495 more)"


def test_html_is_escaped_and_short() -> None:
    predictions = block(*("<b>.jpg", "&.jpg"), *["c.jpg"] * 20, broken=1, names=("<i>", "cat"))
    html = predictions._repr_html_()
    assert "&lt;b&gt;.jpg" in html
    assert "&lt;i&gt;&nbsp;" in html
    assert "<b>" not in html
    assert "<i>" not in html
    assert "<em>the file is empty</em>" in html
    assert html.count("<tr>") == 11
    assert "and 12 more" in html
    assigned = np.ma.sum(predictions[:10].labels)
    assert html.count("color: white") == assigned


@pytest.mark.usefixtures("without_type_checks")
def test_a_tuple_selects_several_images_and_other_objects_are_refused() -> None:
    predictions = block("a.jpg", "b.jpg", "c.jpg")
    assert [image.path.name for image in predictions[(2, 0)]] == ["c.jpg", "a.jpg"]
    for wrong in (None, True, "a.jpg"):
        with pytest.raises(TypeError, match="expected a position, a slice, a list of positions, or a mask"):
            predictions[wrong]  # type: ignore[index]


def test_short_format_without_a_separator_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="every separator"):
        block("a.jpg", names=("a|b;c", "d,e", "f\tg")).to_csv(tmp_path / "a.csv", format="short")
    assert list(tmp_path.iterdir()) == []
