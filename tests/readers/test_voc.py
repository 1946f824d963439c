import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from probmcl.data.records import Records
from probmcl.readers.voc import read_voc, recognizes

# The class train is a pitfall: its validation file is train_val.txt.
NAMES = ("aeroplane", "person", "train")
MARKS = {
    "train": {"000012": (1, -1, -1), "000017": (-1, 1, 0), "000023": (1, 1, -1)},
    "val": {"000005": (-1, 0, 1)},
    "test": {"000001": (-1, 1, -1), "000002": (0, -1, 1)},
}
MARKS["trainval"] = {**MARKS["train"], **MARKS["val"]}


def main(year: Path) -> Path:
    return year / "ImageSets" / "Main"


def write(year: Path, *sets: str) -> Path:
    """Write the files of some sets in the format of the devkit, and empty images."""
    main(year).mkdir(parents=True)
    (year / "JPEGImages").mkdir()
    for name in sets or MARKS:
        marks = MARKS[name]
        (main(year) / f"{name}.txt").write_text("".join(f"{image}\n" for image in marks), encoding="utf-8")
        for column, label in enumerate(NAMES):
            lines = "".join(f"{image} {values[column]:2d}\n" for image, values in marks.items())
            (main(year) / f"{label}_{name}.txt").write_text(lines, encoding="utf-8")
        for image in marks:
            (year / "JPEGImages" / f"{image}.jpg").touch()
    return year


def rows(records: Records) -> dict[str, list[float | None]]:
    """Return the labels of each image, None for unknown labels."""
    return {
        path.stem: [float(label) if known else None for label, known in zip(labels, mask, strict=True)]
        for path, labels, mask in zip(records.paths, records.labels, records.known, strict=True)
    }


def test_difficult_labels_are_unknown(tmp_path: Path) -> None:
    records = read_voc(write(tmp_path))
    assert records.label_space.names == NAMES
    assert rows(records) == {
        "000012": [1, 0, 0],
        "000017": [0, 1, None],
        "000023": [1, 1, 0],
        "000005": [0, None, 1],
        "000001": [0, 1, 0],
        "000002": [None, 0, 1],
    }
    assert records.split == ("train", "train", "train", "val", "test", "test")
    assert records.paths[0] == tmp_path / "JPEGImages" / "000012.jpg"
    assert records.labels.dtype == np.float32
    assert records.known.dtype == bool
    assert records.group is None


def test_only_known_labels_of_train_are_counted(tmp_path: Path) -> None:
    space = read_voc(write(tmp_path)).label_space
    assert space.counts.tolist() == [2, 2, 0]
    assert space.cooccurrence.tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0]]


def test_trainval_is_train_without_train_files(tmp_path: Path) -> None:
    records = read_voc(write(tmp_path, "trainval", "test"))
    assert records.split == ("train",) * 4 + ("test",) * 2
    assert rows(records) == rows(read_voc(write(tmp_path / "all")))


def test_splits_may_be_missing(tmp_path: Path) -> None:
    assert read_voc(write(tmp_path / "a", "train")).split == ("train",) * 3
    assert read_voc(write(tmp_path / "b", "test")).split == ("test",) * 2


@pytest.mark.parametrize("subfolder", [".", "VOC2007", "VOCdevkit/VOC2007"])
def test_year_is_found_from_parent_folders(tmp_path: Path, subfolder: str) -> None:
    year = write(tmp_path / subfolder)
    assert recognizes(tmp_path)
    assert read_voc(tmp_path).paths[0] == year / "JPEGImages" / "000012.jpg"


def test_other_folder_is_not_recognized(tmp_path: Path) -> None:
    (tmp_path / "VOCdevkit" / "VOCcode").mkdir(parents=True)
    (tmp_path / "JPEGImages").mkdir()
    assert not recognizes(tmp_path)
    with pytest.raises(ValueError, match="no ImageSets/Main/ here"):
        read_voc(tmp_path)


def test_two_years_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "VOC2012")
    first = write(tmp_path / "VOC2007")
    with pytest.raises(ValueError, match="VOC2007 and VOC2012") as caught:
        read_voc(tmp_path)
    assert str(caught.value).endswith(f"such as {first}")


def test_class_files_must_list_the_same_images(tmp_path: Path) -> None:
    folder = main(write(tmp_path))
    first, other = folder / "aeroplane_val.txt", folder / "train_val.txt"
    other.write_text("000005  1\n000009 -1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    assert str(caught.value).startswith(f"{other}: image 000009 is not in aeroplane_val.txt")
    other.write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    assert str(caught.value).startswith(f"{first}: image 000005 is not in train_val.txt")


def test_order_of_images_in_a_class_file_does_not_matter(tmp_path: Path) -> None:
    file = main(write(tmp_path)) / "person_train.txt"
    before = rows(read_voc(tmp_path))
    file.write_text("\n".join(file.read_text(encoding="utf-8").splitlines()[::-1]) + "\n\n", encoding="utf-8")
    assert rows(read_voc(tmp_path)) == before


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("000017  2", "'000017  2'"),
        ("000017", "'000017'"),
        ("000017 1 1", "'000017 1 1'"),
        ("000012  1", "image 000012 occurs twice"),
    ],
)
def test_invalid_line_is_refused(tmp_path: Path, line: str, message: str) -> None:
    file = main(write(tmp_path)) / "person_train.txt"
    file.write_text(f"000012 -1\n{line}\n000023  1\n", encoding="utf-8")
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    assert str(caught.value).startswith(f"{file}, row 2: ")
    assert message in str(caught.value)


def test_image_in_two_splits_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "val", "trainval")
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    shared = "image 000005 is in train and in val (1 shared)"
    assert str(caught.value).startswith(f"{main(tmp_path)}: {shared}")


def test_class_without_a_file_for_a_split_is_refused(tmp_path: Path) -> None:
    (main(write(tmp_path)) / "train_val.txt").unlink()
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    assert str(caught.value).startswith(f"{main(tmp_path)}: class 'train' lacks a file for val")


def test_sets_without_class_files_are_refused(tmp_path: Path) -> None:
    main(tmp_path).mkdir(parents=True)
    (main(tmp_path) / "train.txt").write_text("000012\n", encoding="utf-8")
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    assert str(caught.value).startswith(f"{main(tmp_path)}: no <class>_train.txt")


def test_missing_images_are_refused(tmp_path: Path) -> None:
    images = write(tmp_path) / "JPEGImages"
    for name in ("000001.jpg", "000002.jpg"):
        (images / name).unlink()
    with pytest.raises(ValueError, match=": ") as caught:
        read_voc(tmp_path)
    assert f"'000001.jpg' is not in {images} (2 of 6 missing)" in str(caught.value)


def test_missing_images_are_kept_on_request_unless_all_are_missing(tmp_path: Path) -> None:
    complete = read_voc(write(tmp_path))
    complete.paths[4].unlink()
    kept = read_voc(tmp_path, missing="keep")
    assert kept.paths == complete.paths
    assert rows(kept) == rows(complete)
    for path in tmp_path.glob("JPEGImages/*"):
        path.unlink()
    with pytest.raises(ValueError, match=r"\(6 of 6 missing\)"):
        read_voc(tmp_path, missing="keep")


def test_description_has_the_class_files(tmp_path: Path) -> None:
    lists = "PASCAL VOC, ImageSets/Main/<class>_{train,val,test}.txt; difficult labels are unknown"
    assert str(read_voc(write(tmp_path / "VOC2007")).origin) == f"{tmp_path / 'VOC2007'}: {lists}"
    only = read_voc(write(tmp_path / "VOC2012", "trainval"))
    assert "<class>_{trainval}.txt" in str(only.origin)


def test_missing_image_folder_is_refused(tmp_path: Path) -> None:
    images = write(tmp_path) / "JPEGImages"
    images.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="does not exist") as caught:
        read_voc(tmp_path)
    assert str(caught.value).startswith(f"{images} ")


def test_torch_is_not_loaded() -> None:
    code = "import sys, probmcl.readers.voc; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
