from pathlib import Path
from typing import Any

import pytest

from helpers.layouts import summary, write_layout
from probmcl.errors import DataError, OptionError
from probmcl.readers import read
from probmcl.readers.label_studio import recognizes
from probmcl.readers.options import ReadOptions


def result(*labels: str, kind: str = "choices", field: str = "tags") -> dict[str, Any]:
    return {"from_name": field, "to_name": "image", "type": kind, "value": {kind: list(labels), "x": 1.5}}


def annotation(*results: dict[str, Any], number: int = 1, canceled: bool = False) -> dict[str, Any]:
    return {"id": number, "completed_by": 1, "result": list(results), "was_cancelled": canceled, "lead_time": 4.2}


def task(image: str, *annotations: dict[str, Any], number: int = 1, key: str = "annotations") -> dict[str, Any]:
    return {"id": number, "data": {"image": image, "text": "a"}, key: list(annotations), "predictions": []}


def min_row(image: str, number: int = 1, **labels: Any) -> dict[str, Any]:
    after = {"annotator": 1, "annotation_id": number, "created_at": "2026-01-01", "lead_time": 4.2}
    return {"image": image, "text": "a", "id": number, **labels, **after}


def write(folder: Path, images: str, *tasks: dict[str, Any]) -> Path:
    return write_layout(folder, images, {"export.json": list(tasks)})


def test_choices_are_labels(tmp_path: Path) -> None:
    tasks = [task("1.jpg", annotation(result("cat", "dog"))), task("2.jpg", annotation()), task("3.jpg")]
    write(tmp_path, "1.jpg 2.jpg 3.jpg", *tasks)
    records = read(tmp_path, seed=None)
    assert records.label_space.names == ("cat", "dog")
    assert summary(records, tmp_path) == {"1.jpg": "train ++", "2.jpg": "train --", "3.jpg": "train ??"}
    assert str(records.origin) == (
        f"{tmp_path / 'export.json'}: Label Studio, labels from 'tags'\n  "
        "images without annotations, with all labels unknown: 1"
    )
    assert summary(read(tmp_path / "export.json", seed=None), tmp_path) == summary(records, tmp_path)


@pytest.mark.parametrize("kind", ["rectanglelabels", "polygonlabels", "brushlabels", "keypointlabels", "labels"])
def test_labels_of_regions_are_labels(tmp_path: Path, kind: str) -> None:
    regions = (result("dog", kind=kind), result("cat", kind=kind), result("dog", kind=kind))
    other = {"from_name": "note", "type": "textarea", "value": {"text": ["blurred"]}}
    write(tmp_path, "1.jpg", task("1.jpg", annotation(*regions, other), key="completions"))
    assert summary(read(tmp_path, seed=None), tmp_path) == {"1.jpg": "train ++"}


def test_canceled_annotations_are_skipped(tmp_path: Path) -> None:
    canceled = annotation(result("dog"), number=2, canceled=True)
    tasks = task("1.jpg", annotation(result("cat")), canceled), task("2.jpg", canceled)
    records = read(write(tmp_path, "1.jpg 2.jpg", *tasks), seed=None)
    assert summary(records, tmp_path) == {"1.jpg": "train +", "2.jpg": "train ?"}


@pytest.mark.parametrize(
    ("address", "file"),
    [
        ("/data/upload/1/0123abcd-photo_1.jpg", "images/0123abcd-photo_1.jpg"),
        ("/data/upload/1/0123abcd-photo_1.jpg", "photos/photo_1.jpg"),
        ("/data/upload/1/0123abcd-photo_1.jpg", "photos/photo 1.jpg"),
        ("/data/local-files/?d=photos/1.jpg", "photos/1.jpg"),
        ("/data/local-files/?d=home%2Fphotos%2Fa%20b.jpg", "photos/a b.jpg"),
        ("s3://bucket/photos/1.jpg", "1.jpg"),
        ("https://example.org/photos/1.jpg?key=7", "photos/1.jpg"),
    ],
)
def test_images_are_found_by_their_address(tmp_path: Path, address: str, file: str) -> None:
    write(tmp_path, "", task(address, annotation(result("cat"))))
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).touch()
    assert list(summary(read(tmp_path, seed=None), tmp_path)) == [file]


def test_minimal_export_is_read(tmp_path: Path) -> None:
    rows = [
        min_row("1.jpg", tags={"choices": ["cat", "dog"]}),
        min_row("2.jpg", tags="dog", note="blurred"),
        min_row("3.jpg", box=[{"x": 1, "rectanglelabels": ["emu"]}, {"x": 2, "rectanglelabels": ["emu"]}]),
        min_row("4.jpg"),
    ]
    rows.append({**min_row("5.jpg"), "annotation_id": None})
    records = read(write(tmp_path, "1.jpg 2.jpg 3.jpg 4.jpg 5.jpg", *rows), seed=None)
    assert records.label_space.names == ("cat", "dog", "emu")
    expected = ["train ++-", "train -+-", "train --+", "train ---", "train ???"]
    assert list(summary(records, tmp_path).values()) == expected
    assert "labels from 'box', 'tags'" in str(records.origin)


def test_minimal_export_with_single_choices_is_read(tmp_path: Path) -> None:
    write(tmp_path, "1.jpg 2.jpg", min_row("1.jpg", tag="cat"), min_row("2.jpg", tag="dog"))
    assert list(summary(read(tmp_path, seed=None), tmp_path).values()) == ["train +-", "train -+"]
    write(tmp_path, "", min_row("1.jpg", tag="cat", note="blurred"), min_row("2.jpg", tag="dog"))
    with pytest.raises(DataError, match=r"export\.json: 'tag' or 'note' may be the labels; export JSON instead"):
        read(tmp_path)


@pytest.mark.parametrize("minimal", [False, True])
def test_annotations_that_disagree_are_refused(tmp_path: Path, minimal: bool) -> None:
    answers = {11: ["cat"], 12: ["dog", "cat"]}
    rows = [{**min_row("1.jpg", n, tags={"choices": labels}), "id": 7} for n, labels in answers.items()]
    both = task("1.jpg", *(annotation(result(*labels), number=n) for n, labels in answers.items()), number=7)
    write(tmp_path, "1.jpg", *(rows if minimal else [both]))
    message = (
        r"""task 7 \(1\.jpg\): annotation 11 has 'cat', but annotation 12 has 'cat', 'dog'; .*`annotators="majority"`"""
    )
    with pytest.raises(DataError, match=message):
        read(tmp_path)


def test_annotations_that_agree_are_merged(tmp_path: Path) -> None:
    write(tmp_path, "1.jpg", task("1.jpg", annotation(result("cat")), annotation(result("cat"), number=2)))
    assert summary(read(tmp_path, seed=None), tmp_path) == {"1.jpg": "train +"}


def test_label_in_two_fields_is_reported(tmp_path: Path) -> None:
    results = result("yes", field="indoor"), result("yes", field="people")
    records = read(write(tmp_path, "1.jpg", task("1.jpg", annotation(*results))), seed=None)
    assert "label 'yes' of 'indoor' and 'people' is one class" in str(records.origin)


def test_field_of_the_image_may_have_another_name(tmp_path: Path) -> None:
    one = task("1.jpg", annotation(result("cat")))
    one["data"] = {"photo": "1.jpg", "text": "a"}
    assert len(read(write(tmp_path, "1.jpg", one), seed=None)) == 1
    one["data"] = {"photo": "1.jpg", "mask": "2.jpg"}
    with pytest.raises(DataError, match="'photo' and 'mask' have names of image files"):
        read(write(tmp_path, "", one))
    one["data"] = {"text": "a"}
    with pytest.raises(DataError, match="no field has the name of an image"):
        read(write(tmp_path, "", one))


def test_invalid_tasks_are_refused(tmp_path: Path) -> None:
    one = task("1.jpg", annotation(result("cat")))
    with pytest.raises(DataError, match=r"export\.json: item 2 has no 'image'"):
        read(write(tmp_path, "1.jpg", one, {**one, "data": {"text": "a"}}))
    with pytest.raises(DataError, match=r"export\.json: .*\$\[1\]\.data"):
        read(write(tmp_path, "", one, {**one, "data": 1}))
    with pytest.raises(DataError, match=r"export\.json: no annotation has choices or labels"):
        read(write(tmp_path, "", task("1.jpg")))


def test_missing_images_are_refused_or_kept(tmp_path: Path) -> None:
    names = ["/data/upload/1/0123abcd-1.jpg", "/data/upload/1/0123abce-2.jpg"]
    write(tmp_path, "photos/1.jpg", *(task(name, annotation(result("cat"))) for name in names))
    with pytest.raises(DataError, match=r"export\.json: '.*2\.jpg' is not in .* \(1 of 2 missing\)"):
        read(tmp_path)
    kept = read(tmp_path, seed=None, missing="keep")
    assert list(summary(kept, tmp_path)) == ["photos/1.jpg", "photos/2.jpg"]


def test_two_uploads_of_the_same_name_are_refused(tmp_path: Path) -> None:
    names = ["/data/upload/1/0123abcd-1.jpg", "/data/upload/1/0123abce-1.jpg"]
    with pytest.raises(DataError, match=r"0123abcd-1\.jpg' and '.*0123abce-1\.jpg' both match"):
        read(write(tmp_path, "1.jpg", *(task(name, annotation(result("cat"))) for name in names)))


def test_two_exports_are_refused(tmp_path: Path) -> None:
    export = [task("1.jpg", annotation(result("cat")))]
    write_layout(tmp_path, "1.jpg", {"a.json": export, "b.json": export})
    with pytest.raises(DataError, match="has 2 JSON exports of Label Studio; pass one"):
        read(tmp_path)
    assert len(read(tmp_path / "a.json", seed=None)) == 1


def test_other_json_is_not_recognized(tmp_path: Path) -> None:
    rows = [{"image": "1.jpg", "data": "x", "labels": ["cat"]}]
    files = {"a.json": rows, "b.json": [], "c.json": {"data": 1, "annotations": []}}
    write_layout(tmp_path, "1.jpg", files)
    assert not any(recognizes(tmp_path / name) for name in files)


def test_options_for_tables_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "1.jpg", task("1.jpg", annotation(result("cat"))))
    with pytest.raises(OptionError, match="read as label_studio"):
        read(tmp_path / "export.json", options=ReadOptions(blank=("negative",)))
