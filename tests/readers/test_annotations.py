from pathlib import Path

import pytest

from helpers.layouts import write_layout
from probmcl.data.records import Missing
from probmcl.errors import DataError
from probmcl.readers.annotations import find_annotated_images, image_root, json_keys, others_left_out, refuse_shared


def found(folder: Path, *names: str, missing: Missing = "error") -> list[str]:
    paths = find_annotated_images(folder, names, source=folder / "labels", remedy="copy them", missing=missing)
    return [path.relative_to(folder).as_posix() for path in paths]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("a/1.jpg", "a/1.jpg"),
        ("2.jpg", "a/2.jpg"),
        ("/home/ann/a/1.jpg", "a/1.jpg"),
        ("C:\\photos\\a\\1.jpg", "a/1.jpg"),
        ("../a/./1.jpg", "a/1.jpg"),
        ("x/3.v1", "a/3.v1.png"),
    ],
)
def test_images_are_found_by_the_end_of_their_path(tmp_path: Path, name: str, file: str) -> None:
    write_layout(tmp_path, "a/1.jpg a/2.jpg b/1.jpg a/3.v1.png", {})
    assert found(tmp_path, name) == [file]


def test_images_folders_are_preferred_to_masks(tmp_path: Path) -> None:
    write_layout(tmp_path, "JPEGImages/1.jpg Segmentation/1.png images/2.png small/2.png 3.png deep/3.png", {})
    assert found(tmp_path, "Annotations/1", "Annotations/2", "Annotations/3") == [
        "JPEGImages/1.jpg",
        "images/2.png",
        "3.png",
    ]


def test_two_files_that_match_are_refused(tmp_path: Path) -> None:
    write_layout(tmp_path, "a/1.jpg b/1.jpg", {})
    with pytest.raises(DataError, match=r"labels: '1\.jpg' may be a/1\.jpg or b/1\.jpg"):
        found(tmp_path, "1.jpg")


def test_folders_are_ignored_for_all_names_or_none(tmp_path: Path) -> None:
    write_layout(tmp_path, "a/1.jpg c/2.jpg", {})
    with pytest.raises(DataError, match=r"'b/2\.jpg' is not in .*1 of 2 missing"):
        found(tmp_path, "a/1.jpg", "b/2.jpg")
    assert found(tmp_path, "x/1.jpg", "y/2.jpg") == ["a/1.jpg", "c/2.jpg"]


def test_two_names_for_one_file_are_refused(tmp_path: Path) -> None:
    write_layout(tmp_path, "a/1.jpg", {})
    with pytest.raises(DataError, match=r"'x/1\.jpg' and 'y/1\.jpg' both match .*a/1\.jpg"):
        found(tmp_path, "x/1.jpg", "y/1.jpg")
    assert found(tmp_path, "1.jpg", "1.jpg") == ["a/1.jpg", "a/1.jpg"]
    refuse_shared(tmp_path, ["x", "x", "y"], [Path("1"), Path("1"), Path("2")])


def test_absent_images_are_kept_in_the_folder_of_the_others(tmp_path: Path) -> None:
    write_layout(tmp_path, "JPEGImages/1.png JPEGImages/s/3.png", {})
    names = ("Annotations/1", "Annotations/2", "Annotations/s/3")
    assert found(tmp_path, *names, missing="keep") == ["JPEGImages/1.png", "JPEGImages/2.png", "JPEGImages/s/3.png"]
    assert found(tmp_path, "x/1.png", "x/2.png", missing="keep") == ["JPEGImages/1.png", "JPEGImages/2.png"]
    with pytest.raises(DataError, match=r"'4\.png' is not in .* \(2 of 2 missing\); copy them"):
        found(tmp_path, "4.png", "5.png", missing="keep")


def test_images_of_a_file_are_below_its_folder_or_its_parent(tmp_path: Path) -> None:
    file = write_layout(tmp_path, "a/photos/1.jpg b/images/1.jpg", {"a/x.json": "", "b/json/x.json": ""})
    assert image_root(tmp_path) == tmp_path
    assert image_root(file / "a" / "x.json") == tmp_path / "a"
    assert image_root(file / "b" / "json" / "x.json") == tmp_path / "b"
    write_layout(tmp_path, "c/1.jpg", {"c/annotations/x.json": "", "c/other/x.json": ""})
    assert image_root(tmp_path / "c" / "annotations" / "x.json") == tmp_path / "c"
    assert image_root(tmp_path / "c" / "other" / "x.json") == tmp_path / "c" / "other"


def test_other_images_in_the_folder_are_counted(tmp_path: Path) -> None:
    write_layout(tmp_path, "a/1.jpg a/2.jpg a/3.jpg b/4.jpg", {"a/labels.csv": ""})
    assert others_left_out([tmp_path / "a" / "1.jpg"]).endswith(" 2")
    assert others_left_out([tmp_path / "b" / "4.jpg", tmp_path / "nowhere" / "1.jpg"]) == ""


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ('{"a": 1, "b": [2]}', ("{", frozenset("ab"))),
        ('\ufeff[{"a": 1}, {"b": 2}]', ("[", frozenset("a"))),
        ("[]", ("", frozenset())),
        ("[1, 2]", ("", frozenset())),
        ('{"a": 1', ("", frozenset())),
        ("7", ("", frozenset())),
    ],
)
def test_keys_of_json_files(tmp_path: Path, text: str, keys: tuple[str, frozenset[str]]) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    assert json_keys(tmp_path / "x.json") == keys
