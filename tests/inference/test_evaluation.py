"""Evaluation of a model on data: matching of the classes, choice of the split, and the result."""

import csv
import os
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import IO, cast

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy import ndarray

from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run
from probmcl.data import Records
from probmcl.data.image_files import PIECE
from probmcl.data.labels import LabelStates, State
from probmcl.errors import DataError
from probmcl.inference import Model, evaluation, load
from probmcl.inference.evaluation import ClassMapping, copies, count_trained_on, match_classes, read_renames


def test_several_data_classes_can_map_to_one_model_class() -> None:
    matched = match_classes(["cat", "dog"], ["kitten", "emu", "dog", "tabby"], {"kitten": "cat", "tabby": "cat"})
    assert matched.common == ("cat", "dog")
    assert matched.in_model == [0, 1]
    assert matched.in_data == [[0, 3], [2]]
    assert (matched.only_in_model, matched.only_in_data) == ([], ["emu"])


def test_names_can_be_swapped() -> None:
    assert match_classes(["cat", "dog"], ["cat", "dog"], {"cat": "dog", "dog": "cat"}).in_data == [[1], [0]]


def test_renamed_class_is_merged_with_an_existing_one() -> None:
    assert match_classes(["dog"], ["dog", "puppy"], {"puppy": "dog"}).in_data == [[0, 1]]


def test_no_common_class_is_an_error() -> None:
    with pytest.raises(DataError, match=r"`rename`.*'Redd'.* red"):
        match_classes(["red"], ["Redd"])


def mapping(in_data: list[list[int]]) -> ClassMapping:
    names = tuple(map(str, range(len(in_data))))
    return ClassMapping(names, list(range(len(in_data))), in_data, [], [])


def combine(states: list[int]) -> tuple[float, bool]:
    """Combine states: present if any is present, absent if all are absent, otherwise unknown."""
    if State.PRESENT in states:
        return 1.0, True
    return 0.0, all(state == State.ABSENT for state in states)


@given(arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(4)), elements=st.integers(0, 3)))
def test_merged_labels_match_a_loop_over_states(states: ndarray) -> None:
    sources = [[3, 1], [0]]
    labels, known = mapping(sources).labels(LabelStates.from_states(states))
    expected = [[combine([int(row[k]) for k in columns]) for columns in sources] for row in states]
    assert labels.tolist() == [[label for label, _ in row] for row in expected]
    assert known.tolist() == [[mask for _, mask in row] for row in expected]


def test_labels_do_not_depend_on_the_block_size(monkeypatch: pytest.MonkeyPatch) -> None:
    states = LabelStates.from_states(np.random.default_rng(0).integers(0, 4, (50, 6)).astype(np.uint8))
    at_once = mapping([[5, 0], [1], [2, 3, 4]]).labels(states)
    monkeypatch.setattr(evaluation, "ROWS_AT_ONCE", 7)
    parts = mapping([[5, 0], [1], [2, 3, 4]]).labels(states)
    np.testing.assert_array_equal(parts[0], at_once[0])
    np.testing.assert_array_equal(parts[1], at_once[1])


# Renames.

MODEL = ("Infiltration", "Mass", "Effusion")
DATA = ("Infiltrate", "Pleural Effusion", "Fluid", "Mass")


def read(path: Path, text: str) -> dict[str, str]:
    path.write_text(text, encoding="utf-8")
    return read_renames(path, model=MODEL, data=DATA)


RENAMES = {"Infiltrate": "Infiltration", "Fluid": "Effusion", "Pleural Effusion": "Effusion"}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "data,model\nInfiltrate,Infiltration\nFluid,Effusion\nPleural Effusion,Effusion\n"),
        ("a.csv", "model,data\nInfiltration,Infiltrate\nEffusion,Fluid\nEffusion,Pleural Effusion\n"),
        ("a.csv", "To;From\nInfiltration;Infiltrate\nEffusion;Fluid\nEffusion;Pleural Effusion\n"),
        ("a.tsv", "theirs\tours\nInfiltrate\tInfiltration\nFluid\tEffusion\nPleural Effusion\tEffusion\n"),
        ("a.json", '{"Infiltrate": "Infiltration", "Fluid": "Effusion", "Pleural Effusion": "Effusion"}'),
    ],
)
def test_renames_from_csv_and_json(tmp_path: Path, name: str, text: str) -> None:
    assert read(tmp_path / name, text) == RENAMES


def test_renames_from_a_mapping_or_none() -> None:
    assert read_renames(RENAMES, model=MODEL, data=DATA) == RENAMES
    assert read_renames(None, model=MODEL, data=DATA) == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "data,model\nMass,Mass\nInfiltrat,Mass\n",
            r"a\.csv, row 3: .*'Infiltrat'; did you mean",
        ),
        ("a.csv", "data,model\nMass,Masse\n", r"a\.csv, row 2: .*'Masse'; did you mean 'Mass'"),
        ("a.csv", "data,model\nMass,\n", r"a\.csv, row 2: .*''"),
        ("a.csv", "data,model\nMass,Mass\nMass,Effusion\n", r"row 3: 'Mass' .*'Mass' and 'Effusion'"),
        ("a.csv", "data,model,x\nMass,Mass,1\n", r"a\.csv: .*3 columns"),
        ("a.csv", "data\nMass\n", r"a\.csv: .*1 column \("),
        (
            "a.csv",
            "Infiltrate,Infiltration\nFluid,Effusion\n",
            r"row 1: .*: data,model",
        ),
        ("a.json", '["Mass"]', r"a\.json: .*JSON object"),
        ("a.json", '{"Mass": 1}', r"a\.json: .*JSON object"),
        ("a.json", '{"Mass": }', r"a\.json, row 1: Expecting value"),
        ("a.json", '{"Mass": "Mass", "Mass": "Effusion"}', r"a\.json: 'Mass' .*'Mass' and 'Effusion'"),
        ("a.json", '{"mass": "Mass"}', r"a\.json: .*'mass'"),
    ],
)
def test_invalid_renames_are_rejected(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path / name, text)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    for name in ("no.csv", "no.json"):
        with pytest.raises(DataError, match=rf"{name} does not exist"):
            read_renames(tmp_path / name, model=MODEL, data=DATA)


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return colored_records(tmp_path / "photos", train=6, val=3, test=3)


@pytest.fixture
def model(tmp_path: Path, records: Records) -> Model:
    made_run(tmp_path / "run", split=list(zip(records.paths, records.split, strict=True)))
    return load(tmp_path / "run", device="cpu")


def table(path: Path, images: Sequence[Path], split: str | None = None) -> Path:
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["path", *NAMES, *(["split"] if split else [])])
        for number, image in enumerate(images):
            rows.writerow([image, number % 2, (number + 1) % 2, 1, *([split] if split else [])])
    return path


def copy_images(folder: Path, images: Sequence[Path], name: str = "{}") -> list[Path]:
    folder.mkdir()
    return [Path(shutil.copy(image, folder / f"{name.format(image.stem)}.png")) for image in images]


# Identical files.


def test_identical_files_are_found(tmp_path: Path) -> None:
    for name, content in {"a": b"one", "b": b"two", "c": b"three", "x": b"two", "y": b"ONE", "z": b"other"}.items():
        (tmp_path / name).write_bytes(content)
    old, new = ([str(tmp_path / name) for name in names] for names in ("abc", "xyz"))
    assert copies(new, old) == {str(tmp_path / "x"): str(tmp_path / "b")}
    assert copies([], old) == {}


def test_empty_and_irregular_files_have_no_copies(tmp_path: Path) -> None:
    for name in ("empty", "void"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")  # opening it would block forever
    others = [str(tmp_path / name) for name in ("empty", "folder", "pipe", "nowhere")]
    assert copies([str(tmp_path / "void"), *others], others) == {}


@given(st.integers(0, 5 * PIECE - 1))
def test_files_that_differ_in_one_byte_are_not_copies(tmp_path_factory: pytest.TempPathFactory, index: int) -> None:
    folder = tmp_path_factory.mktemp("files")
    content = bytearray(5 * PIECE)
    for name in ("old", "identical"):
        (folder / name).write_bytes(content)
    content[index] = 1
    (folder / "other").write_bytes(content)
    new = [str(folder / name) for name in ("identical", "other")]
    assert copies(new, [str(folder / "old")]) == {new[0]: str(folder / "old")}


def test_only_files_of_equal_size_are_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(6):
        (tmp_path / str(number)).write_bytes(b"x" * (10 + number // 2 * 2 + (number == 1)))  # 10 11, 12 12, 14 14
    opened, real = [], Path.open

    def watched(path: Path, mode: str) -> IO[bytes]:
        opened.append(path.name)
        return cast(IO[bytes], real(path, mode))

    monkeypatch.setattr(Path, "open", watched)
    new, old = ([str(tmp_path / str(number)) for number in numbers] for numbers in ((0, 2), (1, 3, 4, 5)))
    assert len(copies(new, old)) == 1
    assert set(opened) == {"2", "3"}


def test_images_are_counted_by_path_and_by_content(tmp_path: Path, records: Records) -> None:
    run_splits = {str(path): split for path, split in zip(records.paths, records.split, strict=True)}
    duplicates = copy_images(
        tmp_path / "duplicates", [records.paths[0], records.paths[7]], "twin {}"
    )  # copies of a train and a val image
    paths = [*records.paths[:2], *duplicates]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert count_trained_on(paths, run_splits, "train") == 3  # no warning for train
    with pytest.warns(UserWarning, match=r"1 of 4 images is identical .*; remove it$"):
        assert count_trained_on(paths, run_splits, "test") == 3


# Warnings of `evaluate`.


@pytest.mark.parametrize("split", [None, "test"])
def test_renamed_copies_of_training_images_are_a_warning(
    tmp_path: Path, records: Records, model: Model, split: str | None
) -> None:
    others = copy_images(tmp_path / "other", [*records.paths[:2], *records.paths[9:]], "image {}")
    with pytest.warns(UserWarning, match="trained on") as warned:
        result = model.evaluate(table(tmp_path / "other.csv", others, split), draws=0, workers=0)
    (warning,) = warned
    assert str(warning.message).startswith("2 of 5 images")
    assert f"({others[0]} equals {records.paths[0]})" in str(warning.message)
    assert (result["images"], result["trained_on"]) == (5, 2)


def test_no_warning_for_the_data_of_the_run(tmp_path: Path, records: Records, model: Model) -> None:
    data = table(tmp_path / "own.csv", records.paths)
    assert model.evaluate(data, draws=0, workers=0)["trained_on"] == 0
    assert model.evaluate(data, "train", draws=0, workers=0)["trained_on"] == 6


@pytest.mark.parametrize("split", [None, "test"])
def test_file_names_are_compared_if_training_images_are_gone(
    tmp_path: Path, records: Records, model: Model, split: str | None
) -> None:
    others = copy_images(tmp_path / "other", records.paths)
    for path in records.paths[2:]:
        path.unlink()
    with pytest.warns(UserWarning, match="trained on") as warned:
        result = model.evaluate(table(tmp_path / "other.csv", others, split), draws=0, workers=0)
    identical, moved = (str(warning.message) for warning in warned)
    assert identical.startswith("2 of 12 images are identical")
    assert moved.startswith("4 of 10 new images have the same file name")
    assert f"({others[2]})" in moved
    assert result["trained_on"] == 2


# Unreadable images.


@pytest.fixture
def broken(tmp_path: Path, model: Model) -> tuple[Path, list[Path]]:
    """Make a table of twenty images, four of which are unreadable for different reasons."""
    images = list(colored_records(tmp_path / "new", train=20, val=0, test=0, size=21).paths)
    images = [path.rename(path.with_name(f"new {path.name}")) for path in images]
    images[2].unlink()
    images[5].write_bytes(b"")
    images[9].unlink()
    images[9].mkdir()
    shutil.copy(images[0], images[9] / "inside.png")  # a folder in the table is not searched for images
    images[11].unlink()
    images[11] = images[11].with_name("new [1].png")  # a path in the table is not a pattern
    return table(tmp_path / "new.csv", images), images


def test_unreadable_images_are_skipped_up_to_the_limit(broken: tuple[Path, list[Path]], model: Model) -> None:
    data, images = broken
    result = model.evaluate(data, skip_bad=0.2, draws=0, workers=0, batch_size=3)
    assert result.to_dict()["skipped"] == [
        {"path": str(images[2]), "reason": "does not exist"},
        {"path": str(images[5]), "reason": "the file is empty"},
        {"path": str(images[9]), "reason": "is a folder, not a file"},
        {"path": str(images[11]), "reason": "does not exist"},
    ]
    good = [number for number in range(20) if number not in (2, 5, 9, 11)]
    alone = table(data.with_name("alone.csv"), images)
    lines = alone.read_text().splitlines()
    alone.write_text("\n".join([lines[0], *(lines[1 + number] for number in good)]))
    expected = model.evaluate(alone, draws=0, workers=0)
    # Other batches round differently.
    assert result.calibration.before.log_loss == pytest.approx(expected.calibration.before.log_loss)
    same = msgspec.structs.replace(expected, calibration=result.calibration, skipped=result.skipped)
    assert same == result
    assert result.images == 16


@pytest.mark.parametrize("share", [None, 0.1])
def test_error_lists_all_unreadable_images_above_the_limit(
    broken: tuple[Path, list[Path]], model: Model, monkeypatch: pytest.MonkeyPatch, share: float | None
) -> None:
    data, images = broken

    def scored(images: torch.Tensor) -> np.ndarray:
        raise AssertionError("nothing must be scored")

    monkeypatch.setattr(model, "_probabilities", scored)
    with pytest.raises(ValueError, match="4 of 20 images") as caught:
        model.evaluate(data, skip_bad=share, draws=0, workers=0)
    first, *listed, last = str(caught.value).splitlines()
    assert ("`skip_bad=0.1`" in first) == (share is not None)
    assert [line.partition(" row ")[2] for line in listed] == [
        f"4: {images[2]}: does not exist",
        f"7: {images[5]}: the file is empty",
        f"11: {images[9]}: is a folder, not a file",
        f"13: {images[11]}: does not exist",
    ]
    assert "`skip_bad=0.2`" in last


def test_invalid_skip_bad_is_rejected_before_reading(model: Model) -> None:
    with pytest.raises(ValueError, match=r"`skip_bad=5`"):
        model.evaluate("nowhere.csv", skip_bad=5.0)


def test_data_without_readable_images_are_an_error(tmp_path: Path, model: Model) -> None:
    images = [tmp_path / f"broken {number}.png" for number in range(12)]
    for path in images:
        path.write_bytes(b"not an image")
    with pytest.raises(ValueError, match=r"12 of 12 images (.|\n)* and 7 more\n[^`]*$"):
        model.evaluate(table(tmp_path / "broken.csv", images), skip_bad=0.9, draws=0, workers=0)
