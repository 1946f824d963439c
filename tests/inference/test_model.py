import csv
import io
import itertools
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console as RichConsole
from sklearn.metrics import average_precision_score

from helpers.images import NAMES, colored_records
from helpers.run_folders import PLAIN, classifier, made_run
from probmcl.console import Console
from probmcl.data import Records, read_image
from probmcl.errors import DataError, ImageError, OptionError, RunError
from probmcl.inference import Model, load
from probmcl.readers.options import DataSource, ReadOptions, SkippedImage


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path / "photos")


@pytest.fixture
def model(tmp_path: Path) -> Model:
    made_run(tmp_path / "run")
    return load(tmp_path / "run", device="cpu")


def tensors(paths: Sequence[Path]) -> torch.Tensor:
    return torch.stack([PLAIN(read_image(path, 32)) for path in paths])


@torch.inference_mode()
def expected(paths: Sequence[Path]) -> np.ndarray:
    scores: np.ndarray = classifier().logits(tensors(paths)).sigmoid().numpy()
    return scores


def table(folder: Path, records: Records, *, names: Sequence[str] = NAMES, split: Sequence[str] | None = None) -> Path:
    """Write records as a CSV with one column per class, in the order of `names`."""
    order = [NAMES.index(name) if name in NAMES else None for name in names]
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *names, *(["split"] if split else [])])
        for i, path in enumerate(records.paths):
            values = [0 if k is None else int(records.labels[i, k]) for k in order]
            rows.writerow([path, *values, *([split[i]] if split else [])])
    return folder / "labels.csv"


def expected_ap(records: Records, rows: Sequence[int], names: Sequence[str] = NAMES) -> dict[str, float]:
    scores = expected([records.paths[row] for row in rows])
    columns = {name: NAMES.index(name) for name in names}
    return {
        name: float(average_precision_score(records.labels[list(rows), k], scores[:, k])) for name, k in columns.items()
    }


def test_scores_are_probabilities_of_the_classifier(model: Model, records: Records) -> None:
    predictions = model.predict(list(records.paths), workers=0)
    np.testing.assert_allclose(predictions.scores, expected(records.paths), rtol=1e-5, atol=1e-7)
    assert predictions.scores.dtype == np.float32
    assert predictions.names == NAMES
    assert predictions.paths == records.paths
    assert predictions.errors == {}
    assert 0 < predictions.labels.mean() < 1
    np.testing.assert_array_equal(predictions.labels, predictions.scores > 0.5)


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (5, 2), (None, None)])
def test_scores_do_not_depend_on_batch_size_and_workers(
    model: Model, records: Records, batch_size: int | None, workers: int | None
) -> None:
    predictions = model.predict(records.paths[0].parent, batch_size=batch_size, workers=workers)
    assert predictions.paths == tuple(sorted(records.paths, key=str))
    np.testing.assert_allclose(predictions.scores, expected(predictions.paths), rtol=1e-4, atol=1e-6)


def test_unreadable_image_has_a_reason_and_others_have_scores(model: Model, records: Records) -> None:
    broken, missing = records.paths[1], records.paths[0].with_name("nowhere.png")
    broken.write_bytes(b"")
    predictions = model.predict([records.paths[0], broken, missing, records.paths[2]], batch_size=2, workers=0)
    assert predictions.errors == {broken: "the file is empty", missing: "does not exist"}
    assert np.isnan(predictions.scores[1:3]).all()
    assert np.ma.getmaskarray(predictions.labels).any(axis=1).tolist() == [False, True, True, False]
    np.testing.assert_allclose(predictions.scores[[0, 3]], expected([records.paths[0], records.paths[2]]), rtol=1e-5)


def test_batch_of_only_unreadable_images(model: Model, records: Records) -> None:
    for path in records.paths[:2]:
        path.write_bytes(b"")
    blocks = list(model.stream(list(records.paths[:3]), batch_size=2, workers=0))
    assert [len(block) for block in blocks] == [2, 1]
    assert np.isnan(blocks[0].scores).all()
    assert np.isfinite(blocks[1].scores).all()


def test_threshold(model: Model, records: Records) -> None:
    predictions = model.predict(list(records.paths), threshold=0.9, workers=0)
    np.testing.assert_array_equal(predictions.labels, predictions.scores > 0.9)
    for threshold in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="threshold"):
            model.stream(list(records.paths), threshold=threshold)


def test_single_path_and_single_image(model: Model, records: Records) -> None:
    with Image.open(records.paths[0]) as image:
        both = [model.predict(str(records.paths[0])), model.predict(image)]
    assert [predictions.scores.shape for predictions in both] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(both[0].scores, both[1].scores)


def test_features_are_those_of_the_encoder(model: Model, records: Records) -> None:
    features = model.embed(list(records.paths), batch_size=10, workers=0)
    with torch.inference_mode():
        expected_features = classifier().encoder(tensors(records.paths)).numpy()
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected_features, rtol=1e-4, atol=1e-5)


def test_embedding_an_unreadable_image_is_an_error(model: Model, records: Records) -> None:
    records.paths[3].write_bytes(b"")
    with pytest.raises(ImageError, match=r"3\.png: the file is empty"):
        model.embed(list(records.paths), workers=0)


# Evaluation.


def load_run(tmp_path: Path, split: Sequence[tuple[Path | str, str]] = (), data: DataSource | None = None) -> Model:
    made_run(tmp_path / "evaluated", split=split, data=data)
    return load(tmp_path / "evaluated", device="cpu")


def test_scores_equal_those_of_scikit_learn(tmp_path: Path, records: Records) -> None:
    result = load_run(tmp_path).evaluate(table(tmp_path, records, split=records.split), workers=0)
    ap = expected_ap(records, records.rows("test").tolist())
    assert result["split"] == "test"
    assert (result["images"], result["classes"], result["classes_scored"]) == (9, 3, 3)
    assert result["ap"] == pytest.approx(ap, abs=1e-6)
    assert result["mAP"] == pytest.approx(np.mean(list(ap.values())), abs=1e-6)
    assert (result["classes_only_in_model"], result["classes_only_in_data"]) == ([], [])
    assert list(result["at"]) == ["0.5", "0.8"]
    json.dumps(result.to_dict())


def test_run_images_keep_their_split_and_new_images_get_the_requested_one(tmp_path: Path, records: Records) -> None:
    run_splits = [(path, "train") for path in records.paths[:30]] + [(path, "test") for path in records.paths[30:33]]
    model = load_run(tmp_path, split=run_splits)
    data = table(tmp_path, records)
    assert model.evaluate(data, workers=0)["ap"] == pytest.approx(expected_ap(records, range(30, 42)), abs=1e-6)
    assert model.evaluate(data, "train", workers=0)["images"] == 30 + 9


def test_split_of_the_run_takes_precedence_over_the_data(tmp_path: Path, records: Records) -> None:
    own = ["train"] * 20 + ["test"] * 22
    model = load_run(tmp_path, split=[(records.paths[20], "train"), (records.paths[0], "test")])
    data = table(tmp_path, records, split=own)
    rows = [0, *range(21, 42)]  # new images that the data assign to train are not tested on
    assert model.evaluate(data, workers=0)["ap"] == pytest.approx(expected_ap(records, rows), abs=1e-6)


def test_paths_are_resolved(tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    run_splits = [(f"link/../photos/{path.name}", "train") for path in records.paths[:40]]
    assert load_run(tmp_path, split=run_splits).evaluate(table(tmp_path, records), workers=0)["images"] == 2


def test_images_that_were_probably_moved_are_a_warning(tmp_path: Path, records: Records) -> None:
    model = load_run(tmp_path, split=[(tmp_path / "elsewhere" / path.name, "train") for path in records.paths[:5]])
    with pytest.warns(UserWarning, match="5 of 42 new images have the same file name"):
        assert model.evaluate(table(tmp_path, records), workers=0)["images"] == 42
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the data assign these five images to train, so they are not scored
        model.evaluate(table(tmp_path, records, split=records.split), workers=0)


def test_classes_are_matched_by_name(tmp_path: Path, records: Records) -> None:
    result = load_run(tmp_path).evaluate(table(tmp_path, records, names=("pink", "blue", "red")), workers=0)
    assert result["ap"] == pytest.approx(expected_ap(records, range(42), ("red", "blue")), abs=1e-6)
    assert result["classes"] == 2
    assert result["classes_only_in_model"] == ["green"]
    assert result["classes_only_in_data"] == ["pink"]


def test_error_without_common_classes_suggests_names(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records, names=("Redd", "pink"))
    with pytest.raises(DataError, match=r"no class in common.*'Redd'.*red, green, blue"):
        load_run(tmp_path).evaluate(data, workers=0)


def test_unknown_labels_are_ignored(tmp_path: Path, records: Records) -> None:
    lines = table(tmp_path, records).read_text().splitlines()
    lines[1:3] = [f"{line.split(',')[0]},,," for line in lines[1:3]]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    result = load_run(tmp_path).evaluate(tmp_path / "labels.csv", workers=0)
    assert result["ap"] == pytest.approx(expected_ap(records, range(2, 42)), abs=1e-6)


def test_default_data_are_those_of_the_run(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records)
    run_splits = list(zip(records.paths, records.split, strict=True))
    reading = DataSource(data, options=ReadOptions(format="table", path_column="path"))
    result = load_run(tmp_path, split=run_splits, data=reading).evaluate(workers=0)
    assert result["ap"] == pytest.approx(expected_ap(records, records.rows("test").tolist()), abs=1e-6)


def test_read_options_override_those_of_the_run(tmp_path: Path, records: Records) -> None:
    reading = DataSource(table(tmp_path, records), options=ReadOptions(path_column="path"))
    with pytest.raises(OptionError, match="paht"):
        load_run(tmp_path, data=reading).evaluate(read=ReadOptions(path_column="paht"))


def test_images_skipped_by_the_run_are_skipped(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records)
    records.paths[40].unlink()
    records.paths[41].write_bytes(b"")
    skipped = tuple(SkippedImage(str(path), "bad") for path in records.paths[40:])
    run_splits = [(path, "train") for path in records.paths[:20]]
    model = load_run(tmp_path, split=run_splits, data=DataSource(data, skipped=skipped))
    assert model.evaluate(workers=0)["ap"] == pytest.approx(expected_ap(records, range(20, 40)), abs=1e-6)
    with pytest.raises(DataError) as caught:
        model.evaluate(data, workers=0)
    lines = str(caught.value).splitlines()
    assert "2 of 22 images" in lines[0]
    assert lines[1].endswith(f"row 42: {records.paths[40]}: does not exist")
    assert lines[2].endswith(f"row 43: {records.paths[41]}: the file is empty")
    assert "`skip_bad=0.1`" in lines[3]


def test_run_without_a_data_source_needs_data(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="specify the data"):
        load_run(tmp_path).evaluate()


def test_error_for_an_empty_split_has_the_counts(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records, split=["train"] * 40 + ["test"] * 2)
    with pytest.raises(DataError, match=r"the val split .*\(train 40, val 0, test 2\)"):
        load_run(tmp_path).evaluate(data, "val")


def test_unreadable_image_in_the_split_is_an_error(tmp_path: Path, records: Records) -> None:
    records.paths[-1].write_bytes(b"")
    data = table(tmp_path, records, split=records.split)
    with pytest.raises(DataError, match=r"1 of 9 images .*\n.*row 43: .*41\.png: the file is empty"):
        load_run(tmp_path).evaluate(data, workers=0)
    assert load(tmp_path / "evaluated").evaluate(data, "val", workers=0)["images"] == 9


def test_unknown_split_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside the tests
    with pytest.raises(ValueError, match=r'`split="valid"` must be one of train, val, test'):
        load_run(tmp_path).evaluate(split="valid")  # type: ignore[arg-type]


def test_missing_or_invalid_split_file_is_an_error(tmp_path: Path, records: Records) -> None:
    model, data = load_run(tmp_path), table(tmp_path, records)
    (model.folder / "split.csv").write_text("path,split\na.jpg,tset\n")
    with pytest.raises(RunError, match=r"split\.csv, row 2, split: invalid value 'tset'"):
        model.evaluate(data)
    (tmp_path / "evaluated" / "split.csv").unlink()
    with pytest.raises(RunError, match=r"has no split\.csv"):
        model.evaluate(data)


def test_note_of_the_classifier_is_part_of_the_result(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = DataSource(table(tmp_path, records), options=ReadOptions(path_column="path"))
    model = load_run(tmp_path, split=list(zip(records.paths, records.split, strict=True)), data=reading)
    assert "note" not in model.evaluate(workers=0)
    monkeypatch.setattr(type(model.classifier), "note", "a note")
    assert model.evaluate(workers=0)["note"] == "a note"


def recording(seconds_per_reading: float) -> tuple[Console, io.StringIO]:
    """Return a console with a clock that advances whenever it is read, and the file that it prints to."""
    file = io.StringIO()
    clock = itertools.count(0, seconds_per_reading).__next__
    return Console(RichConsole(file=file, width=200), delay=3.0, clock=clock), file


def test_only_slow_calls_show_progress(tmp_path: Path, model: Model, records: Records) -> None:
    data = table(tmp_path, records)
    for seconds, shown in ((10.0, True), (0.0, False)):
        console, file = recording(seconds)
        model.predict(list(records.paths), workers=0, console=console)
        model.embed(list(records.paths), workers=0, console=console)
        model.evaluate(data, workers=0, console=console, draws=0)
        assert [f"  {stage}: " in file.getvalue() for stage in ("predicting", "embedding", "scoring")] == [shown] * 3


@pytest.mark.usefixtures("without_type_checks")
def test_typical_mistakes_have_messages(model: Model, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r'`threshold="0.5"` must be a probability'):
        model.predict("a.jpg", threshold="0.5")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="an empty path was given"):
        model.predict("")
    with pytest.raises(DataError, match=r"such as list\(images\)"):
        model.predict(Image.new("RGB", (9, 9)) for _ in range(2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match="it has no pixels"):
        model.predict(Image.new("RGB", (0, 9)))
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as image:
        pass
    assert model.predict(image)[0].error == "its file is closed; open it again, or call image.load() before closing it"
