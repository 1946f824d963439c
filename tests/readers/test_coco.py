import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from probmcl.readers import read
from probmcl.readers.coco import read_coco, recognizes
from probmcl.readers.options import ReadOptions

# As in the release, ids have gaps, and the file is not sorted by id or name.
CATEGORIES = [
    {"supercategory": "animal", "id": 18, "name": "dog"},
    {"supercategory": "person", "id": 1, "name": "person"},
    {"supercategory": "furniture", "id": 62, "name": "chair"},
]


def image(number: int, part: str = "train2014") -> dict[str, Any]:
    return {"license": 5, "file_name": f"COCO_{part}_{number:012d}.jpg", "height": 480, "width": 640, "id": number}


def annotation(image_id: int, category_id: int, iscrowd: int = 0) -> dict[str, Any]:
    outline: Any = {"counts": [20, 3], "size": [480, 640]} if iscrowd else [[1.5, 2.0, 3.0, 4.0, 5.0, 6.0]]
    shape = {"segmentation": outline, "area": 54.65, "bbox": [1.0, 2.0, 3.0, 4.0]}
    return {**shape, "iscrowd": iscrowd, "image_id": image_id, "category_id": category_id, "id": 7}


def train() -> dict[str, Any]:
    # Image 9 has a person and two dogs, 3 a crowd of people, 25 nothing, 4 a dog and a chair.
    pairs = [annotation(9, 18), annotation(9, 1), annotation(9, 18), annotation(3, 1, iscrowd=1)]
    pairs += [annotation(4, 62), annotation(4, 18)]
    images = [image(9), image(3), image(25), image(4)]
    return {"info": {"year": 2014}, "licenses": [], "images": images, "annotations": pairs, "categories": CATEGORIES}


def val() -> dict[str, Any]:
    images = [image(42, "val2014"), image(73, "val2014")]
    return {"images": images, "annotations": [annotation(73, 62)], "categories": CATEGORIES[::-1]}


def write(folder: Path, year: str = "2014", under: str = "", **tables: Any) -> Path:
    """Write annotation files and empty images, whose names are the same for both years."""
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    for part, table in (tables or {"train": train(), "val": val()}).items():
        (folder / "annotations" / f"instances_{part}{year}.json").write_text(json.dumps(table), encoding="utf-8")
        images = folder / under / f"{part}{year}"
        images.mkdir(parents=True, exist_ok=True)
        for entry in table.get("images", ()):
            (images / entry["file_name"]).touch()
    return folder


@pytest.mark.parametrize("year", ["2014", "2017"])
@pytest.mark.parametrize("under", ["", "images"])
def test_labels_are_annotated_categories_in_the_order_of_ids(tmp_path: Path, year: str, under: str) -> None:
    records = read_coco(write(tmp_path, year, under))
    assert records.label_space.names == ("person", "dog", "chair")
    assert records.labels.tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 1]]
    assert records.labels.dtype == np.float32
    assert records.known.all()
    assert records.split == ("train", "train", "train", "test")
    assert records.group is None
    names = [f"COCO_train2014_{number:012d}.jpg" for number in (9, 3, 4)] + ["COCO_val2014_000000000073.jpg"]
    folders = [f"train{year}"] * 3 + [f"val{year}"]
    assert records.paths == tuple(tmp_path / under / part / name for part, name in zip(folders, names, strict=True))


def test_label_space_counts_only_train(tmp_path: Path) -> None:
    space = read_coco(write(tmp_path)).label_space
    assert space.counts.tolist() == [2, 2, 1]
    assert space.cooccurrence.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]


def test_parts_may_be_missing(tmp_path: Path) -> None:
    assert set(read_coco(write(tmp_path / "a", train=train())).split) == {"train"}
    alone = read_coco(write(tmp_path / "b", val=val()))
    assert set(alone.split) == {"test"}
    assert alone.label_space.counts.tolist() == [0, 0, 0]


def test_dropped_images_may_be_missing(tmp_path: Path) -> None:
    (write(tmp_path) / "train2014" / image(25)["file_name"]).unlink()
    assert len(read_coco(tmp_path)) == 4


def test_layout_is_recognized(tmp_path: Path) -> None:
    assert recognizes(write(tmp_path / "a"))
    assert recognizes(write(tmp_path / "b", "2017", val=val()))
    (tmp_path / "c" / "annotations").mkdir(parents=True)
    (tmp_path / "c" / "annotations" / "captions_train2014.json").touch()
    assert not recognizes(tmp_path / "c")


def broken(key: str, *entries: dict[str, Any]) -> dict[str, Any]:
    table = train()
    table[key] = [*table[key], *entries]
    return table


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (broken("annotations", annotation(8, 1)), "annotations[6]: no image has the id 8"),
        (broken("annotations", annotation(9, 2)), "annotations[6]: no category has the id 2"),
        (broken("images", image(3)), "images[4]: id 3 is also the id of images[1]"),
        (broken("categories", {"id": 18, "name": "cat"}), "category 18, 'cat'"),
        (broken("categories", {"id": 90, "name": "dog"}), "category 90, 'dog'"),
        (broken("images", {"id": "5", "file_name": "5.jpg"}), "Expected `int`, got `str` - at `$.images[4].id`"),
        ({"images": []}, "missing required field `annotations`"),
    ],
)
def test_invalid_annotations_are_refused(tmp_path: Path, table: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=": ") as caught:
        read_coco(write(tmp_path, train=table))
    assert str(caught.value).startswith(f"{tmp_path / 'annotations' / 'instances_train2014.json'}: ")
    assert message in str(caught.value)


def test_truncated_annotations_are_refused(tmp_path: Path) -> None:
    table = write(tmp_path) / "annotations" / "instances_val2014.json"
    table.write_bytes(table.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"instances_val2014\.json: .*truncated"):
        read_coco(tmp_path)


def test_different_categories_are_refused(tmp_path: Path) -> None:
    other = {**val(), "categories": [*CATEGORIES[:2], {"id": 62, "name": "sofa"}]}
    message = r"instances_val2014\.json: categories differ from instances_train2014\.json \(id 62, 'chair'\)"
    with pytest.raises(ValueError, match=message):
        read_coco(write(tmp_path, train=train(), val=other))


def test_missing_images_are_refused(tmp_path: Path) -> None:
    write(tmp_path)
    for number in (3, 4):
        (tmp_path / "train2014" / image(number)["file_name"]).unlink()
    with pytest.raises(ValueError, match=": ") as caught:
        read_coco(tmp_path)
    table, images = tmp_path / "annotations" / "instances_train2014.json", tmp_path / "train2014"
    missing = f"'COCO_train2014_000000000003.jpg' is not in {images} (2 of 3 missing)"
    assert str(caught.value).startswith(f"{table}: {missing}")


def test_missing_image_folder_is_refused(tmp_path: Path) -> None:
    write(tmp_path).joinpath("val2014").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=": ") as caught:
        read_coco(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}: no folder val2014/ or images/val2014/")


def test_two_years_in_one_folder_need_the_option(tmp_path: Path) -> None:
    write(write(tmp_path, val=val()), "2017", train=train())
    message = r'annotations: .*`format="coco2014"` or `format="coco2017"`'
    with pytest.raises(ValueError, match=message):
        read_coco(tmp_path)
    with pytest.raises(ValueError, match=message):
        read(tmp_path)
    assert {path.parent.name for path in read(tmp_path, options=ReadOptions(format="coco2014"), seed=None).paths} == {
        "val2014"
    }
    assert {path.parent.name for path in read(tmp_path, options=ReadOptions(format="coco2017"), seed=None).paths} == {
        "train2017"
    }


def test_missing_year_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r'no instances_\*2017\.json.*`format="coco2014"`'):
        read(write(tmp_path), options=ReadOptions(format="coco2017"))


def test_description_has_files_and_dropped_images(tmp_path: Path) -> None:
    files = "annotations/instances_train2014.json (train) and annotations/instances_val2014.json (test)"
    assert str(read_coco(write(tmp_path)).origin) == (
        f"{tmp_path}: MS-COCO 2014, {files}; images without annotations dropped: 2"
    )


def test_missing_images_are_kept_on_request_unless_all_of_a_part_are_missing(tmp_path: Path) -> None:
    write(tmp_path)
    complete = read_coco(tmp_path)
    complete.paths[0].unlink()
    kept = read_coco(tmp_path, missing="keep")
    assert kept.paths == complete.paths
    assert np.array_equal(kept.labels, complete.labels)
    for path in complete.paths[1:]:
        if path.parent.name == "train2014":
            path.unlink()
    with pytest.raises(ValueError, match=r"\(3 of 3 missing\)"):
        read_coco(tmp_path, missing="keep")


def test_folder_without_annotations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no annotations/instances_"):
        read_coco(tmp_path)


def test_reading_labels_does_not_load_torch(tmp_path: Path) -> None:
    code = "import sys; import probmcl.readers.adp, probmcl.readers.coco, probmcl.readers.read;"
    code += "print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout == "False\n", result.stderr
