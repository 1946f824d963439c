from pathlib import Path
from typing import Any

import pytest

from helpers.layouts import summary, write_layout
from probmcl.errors import DataError, OptionError
from probmcl.readers import read
from probmcl.readers.coco import recognizes
from probmcl.readers.options import ReadOptions

Labels = dict[str, list[str]]


def coco(images: Labels, names: tuple[str, ...] = ("cat", "dog"), first: int = 1) -> dict[str, Any]:
    """Return a COCO file with the given labels by file name; category ids start at `first`."""
    ids = {name: number for number, name in enumerate(names, start=first)}
    return {
        "info": {},
        "images": [{"id": n, "file_name": name, "height": 8, "width": 8} for n, name in enumerate(images)],
        "annotations": [
            {"id": n, "image_id": row, "category_id": ids[name], "bbox": [0, 0, 4, 4]}
            for row, labels in enumerate(images.values())
            for n, name in enumerate(labels)
        ],
        "categories": [{"id": number, "name": name, "supercategory": "none"} for name, number in ids.items()],
    }


TRAIN: Labels = {"1.jpg": ["dog", "cat", "dog"], "2.jpg": []}
VALID: Labels = {"1.jpg": ["dog"]}


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("labels.json", "1.jpg 2.jpg"),
        ("labels.json", "images/1.jpg images/2.jpg"),
        ("annotations/instances_default.json", "images/1.jpg images/2.jpg"),
        ("annotations/instances_default.json", "images/default/1.jpg images/default/2.jpg thumbnails/1.jpg"),
        ("_annotations.coco.json", "1.jpg 2.jpg"),
    ],
)
@pytest.mark.parametrize("by_file", [False, True])
def test_one_file_is_read(tmp_path: Path, name: str, images: str, by_file: bool) -> None:
    write_layout(tmp_path, images, {name: coco(TRAIN)})
    records = read(tmp_path / name if by_file else tmp_path, seed=None)
    assert records.label_space.names == ("cat", "dog")
    assert summary(records, tmp_path) == dict(zip(images.split()[:2], ("train ++", "train --"), strict=True))
    assert records.origin is not None
    assert records.origin.description == f"COCO, {name.rpartition('/')[2] if by_file else name} (train)"


@pytest.mark.parametrize(
    ("train", "valid", "images"),
    [
        ("train/_annotations.coco.json", "valid/_annotations.coco.json", "{}/"),
        ("annotations/instances_train.json", "annotations/instances_valid.json", "images/{}/"),
        ("annotations/train.json", "annotations/valid.json", "{}/"),
        ("train.json", "valid_annotations.json", "images/{}/"),
    ],
)
def test_splits_are_folders_or_in_file_names(tmp_path: Path, train: str, valid: str, images: str) -> None:
    paths = [images.format("train") + "1.jpg", images.format("train") + "2.jpg", images.format("valid") + "1.jpg"]
    # The categories of the splits differ in their ids and are matched by name.
    files = {train: coco(TRAIN), valid: coco(VALID, ("emu", "dog"), first=3)}
    records = read(write_layout(tmp_path, " ".join(paths), files), seed=None)
    assert records.label_space.names == ("cat", "dog", "emu")
    assert summary(records, tmp_path) == dict(zip(paths, ("train ++-", "train ---", "val -+-"), strict=True))
    assert str(records.origin) == f"{tmp_path}: COCO, {train} (train) and {valid} (val)"


def roboflow(names: tuple[str, ...], labels: Labels) -> dict[str, Any]:
    """Return a file whose first category, with id 0, is the supercategory of the others."""
    file = coco(labels, names, first=0)
    for category in file["categories"][1:]:
        category["supercategory"] = names[0]
    return file


def test_unused_parent_category_is_left_out(tmp_path: Path) -> None:
    write_layout(tmp_path, "1.jpg 2.jpg", {"a.json": roboflow(("pets", "cat", "dog", "emu"), TRAIN)})
    records = read(tmp_path, seed=None)
    assert records.label_space.names == ("cat", "dog", "emu")  # emu is unused but is not a parent
    assert "category 'pets' left out" in str(records.origin)


def test_parent_category_that_is_used_is_a_class(tmp_path: Path) -> None:
    write_layout(tmp_path, "1.jpg 2.jpg", {"a.json": roboflow(("pets", "cat", "dog"), {**TRAIN, "2.jpg": ["pets"]})})
    assert read(tmp_path, seed=None).label_space.names == ("pets", "cat", "dog")


def test_parent_category_may_have_the_name_of_a_class(tmp_path: Path) -> None:
    file = roboflow(("pets", "cat", "dog"), TRAIN)
    for category in file["categories"]:
        category.update({"name": "dog"} if category["id"] == 0 else {"supercategory": "dog"})
    assert read(write_layout(tmp_path, "1.jpg 2.jpg", {"a.json": file}), seed=None).label_space.names == ("cat", "dog")


def test_file_without_annotations_is_left_out(tmp_path: Path) -> None:
    files = {"train/a.json": coco(TRAIN), "test/a.json": coco({"1.jpg": [], "2.jpg": []})}
    records = read(write_layout(tmp_path, "train/1.jpg train/2.jpg test/1.jpg test/2.jpg", files), seed=None)
    assert set(records.split) == {"train"}
    assert "test/a.json left out: it has no annotations" in str(records.origin)
    assert records.origin is not None
    assert records.origin.unlabeled == (str(tmp_path / "test"),)
    (tmp_path / "train" / "a.json").unlink()
    with pytest.raises(DataError, match=r"test/a\.json: no COCO annotations"):
        read(tmp_path)


def test_other_images_are_counted(tmp_path: Path) -> None:
    records = read(write_layout(tmp_path, "1.jpg 2.jpg 3.jpg", {"a.json": coco(TRAIN)}), seed=None)
    assert "other images in the same folder left out: 1" in str(records.origin)


def test_files_of_two_kinds_are_refused_unless_one_has_instances(tmp_path: Path) -> None:
    write_layout(tmp_path, "1.jpg 2.jpg", {"a.json": coco(TRAIN), "b.json": coco(TRAIN), "c.json": {"info": {}}})
    with pytest.raises(DataError, match=r"a\.json and .*b\.json are both annotations for train; pass one"):
        read(tmp_path)
    assert len(read(tmp_path / "a.json", seed=None)) == 2
    (tmp_path / "b.json").rename(tmp_path / "instances_all.json")
    assert "COCO, instances_all.json (train)" in str(read(tmp_path, seed=None).origin)


def test_missing_images_are_refused_or_kept(tmp_path: Path) -> None:
    file = write_layout(tmp_path, "images/1.jpg", {"a.json": coco(TRAIN)}) / "a.json"
    with pytest.raises(DataError, match=r"a\.json: '.*2\.jpg' is not in .* \(1 of 2 missing\); copy the images there"):
        read(tmp_path)
    kept = read(file, seed=None, missing="keep")
    assert summary(kept, tmp_path) == {"images/1.jpg": "train ++", "images/2.jpg": "train --"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"annotations": [{"image_id": 7, "category_id": 1}]}, "annotations[0]: no image has the id 7"),
        ({"annotations": [{"image_id": 0, "category_id": 7}]}, "annotations[0]: no category has the id 7"),
        ({"images": [{"id": "a", "file_name": "1.jpg"}]}, "Expected `int`, got `str` - at `$.images[0].id`"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    write_layout(tmp_path, "1.jpg 2.jpg", {"a.json": {**coco(TRAIN), **change}})
    with pytest.raises(DataError, match=": ") as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'a.json'}: {message}")


def test_options_for_tables_are_refused(tmp_path: Path) -> None:
    write_layout(tmp_path, "1.jpg 2.jpg", {"a.json": coco(TRAIN)})
    for path in (tmp_path, tmp_path / "a.json"):
        with pytest.raises(OptionError, match="read as coco"):
            read(path, options=ReadOptions(blank=("negative",)))
    with pytest.raises(OptionError, match='`format="coco2014"` needs a folder'):
        read(tmp_path / "a.json", options=ReadOptions(format="coco2014"))


def test_other_json_is_not_recognized(tmp_path: Path) -> None:
    rows = [{"images": "1.jpg", "annotations": "cat", "categories": 1}]
    assert not recognizes(write_layout(tmp_path, "1.jpg", {"a.json": rows, "b.json": {"images": []}}))
    assert not recognizes(tmp_path / "a.json")
