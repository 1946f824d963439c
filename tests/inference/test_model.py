import csv
import json
import warnings
from collections.abc import Sequence
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import average_precision_score

from helpers.images import NAMES, colored_records
from helpers.run_folders import PLAIN, classifier, made_run
from probmcl.data import Records, read_image
from probmcl.data.options import ReadOptions
from probmcl.errors import DataError, ImageError, OptionError, RunError
from probmcl.inference import Model, load


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
    """Records as a file: a column a class, in the order given."""
    order = [NAMES.index(name) if name in NAMES else None for name in names]
    with (folder / "labels.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *names, *(["split"] if split else [])])
        for i, path in enumerate(records.paths):
            values = [0 if k is None else int(records.labels[i, k]) for k in order]
            rows.writerow([path, *values, *([split[i]] if split else [])])
    return folder / "labels.csv"


def by_hand(records: Records, rows: Sequence[int], names: Sequence[str] = NAMES) -> dict[str, float]:
    scores = expected([records.paths[row] for row in rows])
    columns = {name: NAMES.index(name) for name in names}
    return {
        name: float(average_precision_score(records.labels[list(rows), k], scores[:, k])) for name, k in columns.items()
    }


def test_predictions_are_the_classifiers_probabilities(model: Model, records: Records) -> None:
    said = model.predict(list(records.paths), workers=0)
    np.testing.assert_allclose(said.scores, expected(records.paths), rtol=1e-5, atol=1e-7)
    assert said.scores.dtype == np.float32
    assert said.names == NAMES
    assert said.paths == records.paths
    assert said.errors == {}
    assert 0 < said.labels.mean() < 1
    np.testing.assert_array_equal(said.labels, said.scores > 0.5)


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (5, 2), (None, None)])
def test_batches_and_workers_change_nothing(
    model: Model, records: Records, batch_size: int | None, workers: int | None
) -> None:
    said = model.predict(records.paths[0].parent, batch_size=batch_size, workers=workers)
    assert said.paths == tuple(sorted(records.paths, key=str))
    np.testing.assert_allclose(said.scores, expected(said.paths), rtol=1e-4, atol=1e-6)


def test_a_broken_image_has_its_reason_and_the_others_their_scores(model: Model, records: Records) -> None:
    broken, missing = records.paths[1], records.paths[0].with_name("nowhere.png")
    broken.write_bytes(b"")
    said = model.predict([records.paths[0], broken, missing, records.paths[2]], batch_size=2, workers=0)
    assert said.errors == {broken: "the file is empty", missing: "does not exist"}
    assert np.isnan(said.scores[1:3]).all()
    assert not said.labels[1:3].any()
    np.testing.assert_allclose(said.scores[[0, 3]], expected([records.paths[0], records.paths[2]]), rtol=1e-5)


def test_a_block_of_nothing_but_broken_images_goes_on(model: Model, records: Records) -> None:
    for path in records.paths[:2]:
        path.write_bytes(b"")
    blocks = list(model.stream(list(records.paths[:3]), batch_size=2, workers=0))
    assert [len(block) for block in blocks] == [2, 1]
    assert np.isnan(blocks[0].scores).all()
    assert np.isfinite(blocks[1].scores).all()


def test_the_threshold_decides(model: Model, records: Records) -> None:
    said = model.predict(list(records.paths), threshold=0.9, workers=0)
    np.testing.assert_array_equal(said.labels, said.scores > 0.9)
    for threshold in (-0.1, 1.5, float("nan")):
        with pytest.raises(ValueError, match="must be a probability between 0 and 1"):
            model.stream(list(records.paths), threshold=threshold)


def test_one_path_or_one_image_is_enough(model: Model, records: Records) -> None:
    with Image.open(records.paths[0]) as image:
        both = [model.predict(str(records.paths[0])), model.predict(image)]
    assert [said.scores.shape for said in both] == [(1, 3), (1, 3)]
    np.testing.assert_array_equal(both[0].scores, both[1].scores)


def test_features_are_the_encoders(model: Model, records: Records) -> None:
    features = model.embed(list(records.paths), batch_size=10, workers=0)
    with torch.inference_mode():
        wanted = classifier().encoder(tensors(records.paths)).numpy()
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, wanted, rtol=1e-4, atol=1e-5)


def test_embedding_a_broken_image_is_an_error_that_names_it(model: Model, records: Records) -> None:
    records.paths[3].write_bytes(b"")
    with pytest.raises(ImageError, match=r"3\.png: the file is empty; repair it, or leave it out"):
        model.embed(list(records.paths), workers=0)


# Evaluating.


def of_run(
    tmp_path: Path, split: Sequence[tuple[Path | str, str]] = (), data: dict[str, object] | None = None
) -> Model:
    made_run(tmp_path / "judged", split=split, data=data)
    return load(tmp_path / "judged", device="cpu")


def test_the_test_split_is_scored_as_scikit_learn_scores_it(tmp_path: Path, records: Records) -> None:
    result = of_run(tmp_path).evaluate(table(tmp_path, records, split=records.split), workers=0)
    ap = by_hand(records, records.rows("test").tolist())
    assert result["split"] == "test"
    assert (result["images"], result["classes"], result["classes_scored"]) == (9, 3, 3)
    assert result["ap"] == pytest.approx(ap, abs=1e-6)
    assert result["mAP"] == pytest.approx(np.mean(list(ap.values())), abs=1e-6)
    assert (result["classes_only_in_model"], result["classes_only_in_data"]) == ([], [])
    assert list(result["at"]) == ["0.5", "0.8"]
    json.dumps(result)


def test_images_of_the_run_keep_their_split_and_new_ones_count_as_asked(tmp_path: Path, records: Records) -> None:
    had = [(path, "train") for path in records.paths[:30]] + [(path, "test") for path in records.paths[30:33]]
    model = of_run(tmp_path, split=had)
    data = table(tmp_path, records)
    assert model.evaluate(data, workers=0)["ap"] == pytest.approx(by_hand(records, range(30, 42)), abs=1e-6)
    assert model.evaluate(data, "train", workers=0)["images"] == 30 + 9


def test_the_runs_split_goes_before_the_datas_own(tmp_path: Path, records: Records) -> None:
    own = ["train"] * 20 + ["test"] * 22
    model = of_run(tmp_path, split=[(records.paths[20], "train"), (records.paths[0], "test")])
    data = table(tmp_path, records, split=own)
    rows = [0, *range(21, 42)]  # new images of train stay train
    assert model.evaluate(data, workers=0)["ap"] == pytest.approx(by_hand(records, rows), abs=1e-6)


def test_a_path_written_another_way_is_the_same_image(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "photos")
    had = [(f"link/../photos/{path.name}", "train") for path in records.paths[:40]]
    assert of_run(tmp_path, split=had).evaluate(table(tmp_path, records), workers=0)["images"] == 2


def test_images_that_seem_to_have_been_moved_are_pointed_out(tmp_path: Path, records: Records) -> None:
    model = of_run(tmp_path, split=[(tmp_path / "elsewhere" / path.name, "train") for path in records.paths[:5]])
    with pytest.warns(UserWarning, match="5 of 42 images that are new to this run have the file name of one it was"):
        assert model.evaluate(table(tmp_path, records), workers=0)["images"] == 42
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # those five are train here, and are not scored
        model.evaluate(table(tmp_path, records, split=records.split), workers=0)


def test_classes_are_matched_by_name(tmp_path: Path, records: Records) -> None:
    result = of_run(tmp_path).evaluate(table(tmp_path, records, names=("pink", "blue", "red")), workers=0)
    assert result["ap"] == pytest.approx(by_hand(records, range(42), ("red", "blue")), abs=1e-6)
    assert result["classes"] == 2
    assert result["classes_only_in_model"] == ["green"]
    assert result["classes_only_in_data"] == ["pink"]


def test_no_class_in_common_is_answered_with_what_may_be_meant(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records, names=("Redd", "pink"))
    with pytest.raises(DataError, match=r"no class in common.*'Redd'.*red, green, blue"):
        of_run(tmp_path).evaluate(data, workers=0)


def test_labels_that_are_not_known_do_not_count(tmp_path: Path, records: Records) -> None:
    lines = table(tmp_path, records).read_text().splitlines()
    lines[1:3] = [f"{line.split(',')[0]},,," for line in lines[1:3]]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    result = of_run(tmp_path).evaluate(tmp_path / "labels.csv", workers=0)
    assert result["ap"] == pytest.approx(by_hand(records, range(2, 42)), abs=1e-6)


def test_without_data_the_runs_own_is_read_again(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records)
    had = list(zip(records.paths, records.split, strict=True))
    reading: dict[str, object] = {
        "data": str(data),
        "images": None,
        "options": {"format": "table", "path_column": "path"},
    }
    result = of_run(tmp_path, split=had, data=reading).evaluate(workers=0)
    assert result["ap"] == pytest.approx(by_hand(records, records.rows("test").tolist()), abs=1e-6)


def test_without_data_what_is_said_goes_before_what_was_recorded(tmp_path: Path, records: Records) -> None:
    reading: dict[str, object] = {"data": str(table(tmp_path, records)), "options": {"path_column": "path"}}
    with pytest.raises(OptionError, match="paht"):
        of_run(tmp_path, data=reading).evaluate(read=ReadOptions(path_column="paht"))


def test_images_that_the_run_went_on_without_are_left_out(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records)
    records.paths[40].unlink()
    records.paths[41].write_bytes(b"")
    skipped = [{"path": str(path), "reason": "bad"} for path in records.paths[40:]]
    had = [(path, "train") for path in records.paths[:20]]
    model = of_run(tmp_path, split=had, data={"data": str(data), "skipped": skipped})
    assert model.evaluate(workers=0)["ap"] == pytest.approx(by_hand(records, range(20, 40)), abs=1e-6)
    with pytest.raises(DataError) as caught:
        model.evaluate(data, workers=0)
    assert str(caught.value).splitlines() == [
        "2 of 22 images cannot be used:",
        f"  {data}: row 42: {records.paths[40]}: does not exist",
        f"  {data}: row 43: {records.paths[41]}: the file is empty",
        "repair or remove them; `skip_bad=0.1` goes on without them",
    ]


def test_a_run_without_data_asks_for_some(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="name the data to evaluate on"):
        of_run(tmp_path).evaluate()


def test_an_empty_split_says_what_there_is(tmp_path: Path, records: Records) -> None:
    data = table(tmp_path, records, split=["train"] * 40 + ["test"] * 2)
    with pytest.raises(DataError, match=r"the val split has no images \(train 40, val 0, test 2\)"):
        of_run(tmp_path).evaluate(data, "val")


def test_a_broken_image_among_the_scored_is_an_error_that_names_it(tmp_path: Path, records: Records) -> None:
    records.paths[-1].write_bytes(b"")
    data = table(tmp_path, records, split=records.split)
    with pytest.raises(DataError, match=r"1 of 9 images cannot be used:\n.*row 43: .*41\.png: the file is empty"):
        of_run(tmp_path).evaluate(data, workers=0)
    assert load(tmp_path / "judged").evaluate(data, "val", workers=0)["images"] == 9


def test_a_split_that_does_not_exist_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as outside of the tests
    with pytest.raises(ValueError, match=r"`split=valid` must be one of train, val, test"):
        of_run(tmp_path).evaluate(split="valid")  # type: ignore[arg-type]


def test_a_run_whose_split_is_missing_or_strange_is_not_scored(tmp_path: Path, records: Records) -> None:
    model, data = of_run(tmp_path, split=[("a.jpg", "tset")]), table(tmp_path, records)
    with pytest.raises(RunError, match=r"split\.csv: row 2: .*'tset'"):
        model.evaluate(data)
    (tmp_path / "judged" / "split.csv").unlink()
    with pytest.raises(RunError, match=r"has no split\.csv"):
        model.evaluate(data)


def test_what_the_classifier_says_of_its_map_is_part_of_the_result(
    tmp_path: Path, records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading: dict[str, object] = {"data": str(table(tmp_path, records)), "options": {"path_column": "path"}}
    model = of_run(tmp_path, split=list(zip(records.paths, records.split, strict=True)), data=reading)
    assert "note" not in model.evaluate(workers=0)
    monkeypatch.setattr(type(model.classifier), "note", "mind this")
    assert model.evaluate(workers=0)["note"] == "mind this"
