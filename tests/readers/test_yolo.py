from pathlib import Path
from typing import Any

import pytest

from helpers.layouts import summary, write_layout
from probmcl.errors import DataError, OptionError
from probmcl.readers import read
from probmcl.readers.options import ReadOptions
from probmcl.readers.yolo import read_yolo, recognizes

BOX = "0.5 0.5 0.2 0.2"
YAML = "names: [cat, dog]\nnc: 2\ntrain: {train}\nval: {val}\ntest: {test}\n"
LABELS = {"train/1": f"0 {BOX}\n0 {BOX}\n", "train/2": f"1 {BOX}\n\n0 .1 .1 .2 .1 .2 .2 .1 .2\n", "val/1": ""}
EXPECTED = ["train +-", "train ++", "val --"]


def ultralytics(folder: Path, yaml: str = YAML.format(train="images/train", val="images/val", test="")) -> Path:
    """Write images/train and labels/train, and the same for val."""
    labels = {f"labels/{name}.txt": text for name, text in LABELS.items()}
    return write_layout(folder, " ".join(f"images/{name}.jpg" for name in LABELS), {**labels, "data.yaml": yaml})


def roboflow(folder: Path) -> Path:
    """Write train/images and train/labels, and the same for valid; there is no test."""
    paths = [name.replace("val", "valid").split("/") for name in LABELS]
    labels = {f"{split}/labels/{n}.txt": text for (split, n), text in zip(paths, LABELS.values(), strict=True)}
    yaml = YAML.format(train="../train/images", val="../valid/images", test="../test/images")
    return write_layout(
        folder, " ".join(f"{split}/images/{n}.jpg" for split, n in paths), {**labels, "data.yaml": yaml}
    )


def test_classes_of_objects_are_labels(tmp_path: Path) -> None:
    records = read(ultralytics(tmp_path), seed=None)
    assert records.label_space.names == ("cat", "dog")
    assert summary(records, tmp_path) == dict(
        zip(("images/train/1.jpg", "images/train/2.jpg", "images/val/1.jpg"), EXPECTED, strict=True)
    )
    assert str(records.origin) == f"{tmp_path}: YOLO, 2 names from data.yaml"


def test_images_without_a_text_file_have_no_labels(tmp_path: Path) -> None:
    records = read(write_layout(ultralytics(tmp_path), "images/val/7.jpg", {}), seed=None)
    assert summary(records, tmp_path)["images/val/7.jpg"] == "val --"


def test_data_yaml_is_read_by_file(tmp_path: Path) -> None:
    ultralytics(tmp_path).joinpath("data.yaml").rename(tmp_path / "my.yml")
    by_file = read(tmp_path / "my.yml", seed=None)
    assert summary(by_file, tmp_path) == summary(read(tmp_path, seed=None), tmp_path)


def test_paths_of_roboflow_are_found(tmp_path: Path) -> None:
    records = read(roboflow(tmp_path), seed=None)
    assert list(summary(records, tmp_path).values()) == EXPECTED
    assert "test left out: ../test/images does not exist" in str(records.origin)


@pytest.mark.parametrize(
    "yaml",
    [
        "names: {0: cat, 1: dog}\npath: .\ntrain: images/train\nval: images/val\n",
        "names:\n  1: dog\n  0: cat\npath: /content/data\ntrain: [images/train]\nvalidation: images/val\n",
        "names: [cat, dog]\ntrain: /content/data/images/train\nval: /content/data/images/val\n",
        "names: [cat, dog]\ntrain: train.txt\nval: [./val.txt]\n",
        "names: [cat, dog]\nnc: 2\n",
    ],
)
def test_splits_are_folders_or_lists(tmp_path: Path, yaml: str) -> None:
    lists: dict[str, Any] = {"train.txt": "./images/train/1.jpg\nimages/train/2.jpg\n", "val.txt": "images/val/1.jpg\n"}
    records = read(write_layout(ultralytics(tmp_path, yaml), "", lists), seed=None)
    assert list(summary(records, tmp_path).values()) == EXPECTED


def test_data_outside_the_folder_of_the_yaml_are_read(tmp_path: Path) -> None:
    ultralytics(tmp_path / "data").joinpath("data.yaml").unlink()
    yaml = YAML.format(train="images/train", val="images/val", test="") + "path: ../data\n"
    write_layout(tmp_path / "data", "", {"train.txt": "images/train/1.jpg\n"})
    file = write_layout(tmp_path / "config", "", {"cats.yaml": yaml}) / "cats.yaml"
    assert list(summary(read(file, seed=None), tmp_path / "data").values()) == EXPECTED
    file.write_text(yaml.replace("images/train", "train.txt"))
    assert list(summary(read(file, seed=None), tmp_path / "data").values()) == [EXPECTED[0], EXPECTED[2]]


def test_folder_used_twice_is_train(tmp_path: Path) -> None:
    records = read(ultralytics(tmp_path, YAML.format(train="images", val="images", test="")), seed=None)
    assert set(records.split) == {"train"}
    assert "val left out: images is also used for another split" in str(records.origin)


@pytest.mark.parametrize("names", ["classes.txt", "obj.names", "labels/classes.txt"])
def test_folder_without_yaml_is_read(tmp_path: Path, names: str) -> None:
    files = {
        names: "cat\ndog\n",
        "labels/1.txt": f"1 {BOX}\n",
        "notes.json": {"categories": [], "info": {"year": 2026}},
    }
    records = read(write_layout(tmp_path, "images/1.jpg images/2.jpg", files), seed=None)
    assert summary(records, tmp_path) == {"images/1.jpg": "train -+", "images/2.jpg": "train --"}


def test_names_in_another_encoding_are_read(tmp_path: Path) -> None:
    write_layout(tmp_path, "images/1.jpg", {"labels/1.txt": f"0 {BOX}\n"})
    (tmp_path / "classes.txt").write_bytes("Bär\n".encode("cp1252"))
    assert read(tmp_path, seed=None).label_space.names == ("Bär",)


def test_text_files_next_to_images_are_read(tmp_path: Path) -> None:
    files = {"classes.txt": "cat\n\ndog\n", "1.txt": f"2 {BOX}", "2.txt": ""}
    records = read(write_layout(tmp_path, "1.jpg 2.png", files), seed=None)
    assert summary(records, tmp_path) == {"1.jpg": "train -+", "2.png": "train --"}


def test_split_folders_without_yaml_are_read(tmp_path: Path) -> None:
    (ultralytics(tmp_path / "a") / "data.yaml").unlink()
    (roboflow(tmp_path / "b") / "data.yaml").unlink()
    for name in "ab":
        write_layout(tmp_path / name, "", {"classes.txt": "cat\ndog\n"})
        assert list(summary(read(tmp_path / name, seed=None), tmp_path / name).values()) == EXPECTED


def test_darknet_lists_are_read(tmp_path: Path) -> None:
    files = {"obj.names": "cat\ndog\n", "obj.data": "classes = 2\n", "train.txt": "data/obj_train_data/1.jpg\n"}
    write_layout(tmp_path, "obj_train_data/1.jpg", {**files, "obj_train_data/1.txt": f"1 {BOX}\n"})
    assert summary(read(tmp_path, seed=None), tmp_path) == {"obj_train_data/1.jpg": "train -+"}


def test_split_without_text_files_is_left_out(tmp_path: Path) -> None:
    yaml = YAML.format(train="images/train", val="images/val", test="images/test")
    records = read(write_layout(ultralytics(tmp_path, yaml), "images/test/1.jpg images/test/2.jpg", {}), seed=None)
    assert "test" not in records.split
    assert "test left out: no text file for its 2 images" in str(records.origin)
    assert records.origin is not None
    assert records.origin.unlabeled == (str(tmp_path / "images" / "test"),)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"2 {BOX}", "class index 2 has no name in {yaml} (0 to 1)"),
        (f"-1 {BOX}", "class index -1 has no name"),
        (f"cat {BOX}", "expected a class index and at least 4 coordinates, got 'cat 0.5"),
        ("1 0.5 0.5 0.2", "got '1 0.5 0.5 0.2'"),
        (f"0.5 {BOX}", "got '0.5 0.5"),
        ("1", "got '1'"),
    ],
)
def test_invalid_lines_are_refused(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "labels" / "train" / "1.txt"
    write_layout(ultralytics(tmp_path), "", {"labels/train/1.txt": f"0 {BOX}\n{line}\n"})
    with pytest.raises(DataError, match=": ") as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{file}, line 2: ")
    assert message.format(yaml=tmp_path / "data.yaml") in str(caught.value)


@pytest.mark.parametrize(
    ("yaml", "message"),
    [
        ("names: [cat, dog]\nnc: 3\n", "nc is 3, but names has 2 entries"),
        ("names: {cat: 0, dog: 1}\nnc: 2\n", "the class index 'cat' must be a whole number"),
        ("names: [cat, cat]\nnc: 2\n", "classes 0 and 1 are both named 'cat'"),
        ("names: 2\nnc: 2\n", "expected `names:` with a list"),
        ("names: [cat, dog\nnc: 2\n", "invalid YAML"),
        ("names: [cat, dog]\ntrain: pictures/train\n", "train: 'pictures/train' does not exist"),
        ("names: [cat, dog]\npath: [a]\ntrain: [[b]]\n", "does not exist"),
    ],
)
def test_invalid_yaml_is_refused(tmp_path: Path, yaml: str, message: str) -> None:
    with pytest.raises(DataError, match=": ") as caught:
        read(ultralytics(tmp_path, yaml))
    assert str(caught.value).startswith(f"{tmp_path / 'data.yaml'}: ")
    assert message in str(caught.value)


def test_class_names_that_are_yaml_values_stay_as_they_are(tmp_path: Path) -> None:
    write_layout(ultralytics(tmp_path), "", {"data.yaml": "names: [no, 1e3]\nnc: 2\n"})
    assert read(tmp_path, seed=None).label_space.names == ("no", "1e3")


def test_two_yaml_files_are_refused(tmp_path: Path) -> None:
    yaml = YAML.format(train="images/train", val="", test="")
    write_layout(ultralytics(tmp_path), "", {"other.yaml": yaml, "unrelated.yaml": "a: 1\n"})
    with pytest.raises(DataError, match=r"has data\.yaml and other\.yaml; pass one"):
        read(tmp_path)


def test_missing_images_are_refused_or_kept(tmp_path: Path) -> None:
    complete = read(ultralytics(tmp_path), seed=None)
    (tmp_path / "images" / "train" / "2.jpg").unlink()
    with pytest.raises(DataError, match=r"labels/train: '2\.jpg' is not in .*images/train \(1 of 2 missing\)"):
        read(tmp_path)
    assert summary(read(tmp_path, seed=None, missing="keep"), tmp_path) == summary(complete, tmp_path)
    lists = {"data.yaml": YAML.format(train="train.txt", val="", test=""), "train.txt": "train/1.jpg\ntrain/2.jpg\n"}
    write_layout(tmp_path, "", lists)
    with pytest.raises(DataError, match=r"train\.txt: 'train/2\.jpg' is not in .* \(1 of 2 missing\)"):
        read(tmp_path)
    kept = read(tmp_path, seed=None, missing="keep")
    assert summary(kept, tmp_path) == {"images/train/1.jpg": "train +-", "images/train/2.jpg": "train ++"}


def test_folder_without_names_or_text_files_is_refused(tmp_path: Path) -> None:
    write_layout(tmp_path, "images/1.jpg", {"labels/1.txt": f"0 {BOX}"})
    assert not recognizes(tmp_path)
    with pytest.raises(DataError, match=r"no data\.yaml and no classes\.txt"):
        read_yolo(tmp_path)
    write_layout(tmp_path, "", {"data.yaml": "names: [cat]\ntrain: images\n"})
    (tmp_path / "labels" / "1.txt").unlink()
    with pytest.raises(DataError, match=r"data\.yaml: no image has a text file"):
        read(tmp_path)


def test_table_with_class_names_is_not_yolo(tmp_path: Path) -> None:
    files = {"classes.txt": "cat\n", "labels.csv": "file,labels\n1.jpg,cat\n"}
    assert not recognizes(write_layout(tmp_path, "images/1.jpg", files))


def test_options_for_tables_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="read as yolo"):
        read(ultralytics(tmp_path), options=ReadOptions(blank=("negative",)))
    with pytest.raises(OptionError, match='`format="voc"` needs a folder'):
        read(tmp_path / "data.yaml", options=ReadOptions(format="voc"))
    assert len(read(tmp_path / "data.yaml", options=ReadOptions(format="yolo"), seed=None)) == 3
