import os
from pathlib import Path

import pytest

from helpers.tables import labels_of
from probmcl.data.image_files import PIECE
from probmcl.data.records import describe
from probmcl.errors import DataError, OptionError
from probmcl.readers.folders import read_folders, recognizes
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read


def fill(folder: Path, **contents: str) -> Path:
    """Write text files. In their names, __ means a slash and _dot_ a dot."""
    for name, text in contents.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_one_folder_per_class_at_any_depth(tmp_path: Path) -> None:
    fill(tmp_path, dog__1_dot_jpg="a", dog__deep__2_dot_PNG="b", cat__1_dot_jpg="c", cat__notes_dot_txt="d")
    records = read(tmp_path, seed=None)
    assert records.label_space.names == ("cat", "dog")
    assert [str(path.relative_to(tmp_path)) for path in records.paths] == ["cat/1.jpg", "dog/1.jpg", "dog/deep/2.PNG"]
    assert labels_of(records) == [{"cat"}, {"dog"}, {"dog"}]
    description = "one folder per class ('cat', 'dog'); 3 images, 0 in several classes (links or copies)"
    assert str(records.origin) == f"{tmp_path}: {description}"


@pytest.mark.parametrize("how", ["symlink", "hard link", "copy"])
def test_image_in_several_folders_has_several_labels(tmp_path: Path, how: str) -> None:
    fill(tmp_path, bird__0_dot_jpg="x", cat__1_dot_jpg="same", dog__2_dot_jpg="else")
    first, other = tmp_path / "cat" / "1.jpg", tmp_path / "dog" / "7.jpg"
    if how == "symlink":
        other.symlink_to(first)
    elif how == "hard link":
        os.link(first, other)
    else:
        other.write_bytes(first.read_bytes())
    records = read_folders(tmp_path)
    assert records.paths == (tmp_path / "bird" / "0.jpg", first, tmp_path / "dog" / "2.jpg")
    assert labels_of(records) == [{"bird"}, {"cat", "dog"}, {"dog"}]
    assert "3 images, 1 in several classes (links or copies)" in str(records.origin)


def test_links_to_the_same_outside_file_are_one_image(tmp_path: Path) -> None:
    fill(tmp_path / "store", x_dot_jpg="one", y_dot_jpg="two")
    for label, name in (("cat", "x"), ("dog", "x"), ("dog", "y")):
        (tmp_path / "root" / label).mkdir(parents=True, exist_ok=True)
        (tmp_path / "root" / label / f"{name}.jpg").symlink_to(tmp_path / "store" / f"{name}.jpg")
    assert labels_of(read_folders(tmp_path / "root")) == [{"cat", "dog"}, {"dog"}]


def test_images_of_equal_size_or_equal_start_stay_separate(tmp_path: Path) -> None:
    start = "x" * PIECE
    fill(tmp_path, cat__1_dot_jpg="abc", dog__1_dot_jpg="abd", cat__2_dot_jpg=start + "1", dog__2_dot_jpg=start + "2")
    assert labels_of(read_folders(tmp_path)) == [{"cat"}, {"cat"}, {"dog"}, {"dog"}]


def test_copies_within_a_class_are_merged(tmp_path: Path) -> None:
    fill(tmp_path, cat__1_dot_jpg="a", cat__2_dot_jpg="a", dog__1_dot_jpg="b")
    records = read_folders(tmp_path)
    assert len(records) == 2
    assert str(records.origin).endswith("0 in several classes (links or copies); 1 copy within a class left out")


def test_split_folders_contain_class_folders(tmp_path: Path) -> None:
    fill(
        tmp_path,
        train__cat__1_dot_jpg="a",
        train__dog__1_dot_jpg="b",
        Test__cat__2_dot_jpg="a",
        dev__dog__3_dot_jpg="c",
    )
    records = read(tmp_path)
    assert records.label_space.names == ("cat", "dog")
    assert sorted(zip(records.split, labels_of(records), strict=True), key=str) == [
        ("test", {"cat"}),
        ("train", {"cat"}),
        ("train", {"dog"}),
        ("val", {"dog"}),
    ]
    assert "splits Test/, dev/, train/; 4 images" in str(records.origin)


def test_broken_link_is_refused_or_kept(tmp_path: Path) -> None:
    fill(tmp_path, cat__1_dot_jpg="a", dog__1_dot_jpg="b")
    (tmp_path / "dog" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(DataError, match=r"dog/2\.jpg: No such file or directory"):
        read_folders(tmp_path)
    assert len(read_folders(tmp_path, missing="keep")) == 3


def test_folders_with_generic_names_are_not_classes(tmp_path: Path) -> None:
    fill(tmp_path, images__1_dot_jpg="a", masks__1_dot_jpg="b")
    assert not recognizes(tmp_path)
    with pytest.raises(DataError, match=r"no recognized layout.*one folder of images per class"):
        read(tmp_path)
    assert read(tmp_path, options=ReadOptions(format="folders"), seed=None).label_space.names == ("images", "masks")


def test_two_folders_are_needed_and_a_table_takes_precedence(tmp_path: Path) -> None:
    fill(tmp_path, cat__1_dot_jpg="a")
    assert not recognizes(tmp_path)
    fill(tmp_path, dog__1_dot_jpg="b", labels_dot_csv="file,label\ncat/1.jpg,x\n")
    assert recognizes(tmp_path)
    assert read(tmp_path, seed=None).label_space.names == ("x",)


def test_options_for_tables_are_refused(tmp_path: Path) -> None:
    fill(tmp_path, cat__1_dot_jpg="a", dog__1_dot_jpg="b")
    with pytest.raises(OptionError, match=r"read as folders.*`group`, `blank`"):
        read(tmp_path, options=ReadOptions(group="x", blank=("unknown",)))


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no subfolder contains images"):
        read_folders(tmp_path)


def test_folders_with_runs_are_ignored(tmp_path: Path) -> None:
    fill(tmp_path, cat__1_dot_jpg="a", dog__1_dot_jpg="b", runs__one__run_dot_json="{}", runs__one__curve_dot_png="c")
    fill(tmp_path, compared__spec_dot_json="{}", compared__figures__bars_dot_png="d", cat__deep__run_dot_txt="e")
    records = read(tmp_path, seed=None)
    assert records.label_space.names == ("cat", "dog")
    assert str(records.origin).endswith("; ignored run folders: compared/, runs/")


def test_runs_next_to_split_folders_are_ignored(tmp_path: Path) -> None:
    fill(tmp_path, train__cat__1_dot_jpg="a", train__dog__1_dot_jpg="b", test__cat__1_dot_jpg="c")
    fill(tmp_path, runs__one__run_dot_json="{}", runs__one__curve_dot_png="d")
    assert sorted(read(tmp_path, seed=None).split) == ["test", "train", "train"]


@pytest.mark.parametrize("names", [("Training", "Testing"), ("TRAIN", "Test"), ("training", "Valid")])
def test_names_of_split_folders(tmp_path: Path, names: tuple[str, str]) -> None:
    for name in names:
        fill(tmp_path / name, cat__1_dot_jpg=name, dog__1_dot_jpg=f"{name} 2")
    records = read(tmp_path, seed=None)
    assert records.label_space.names == ("cat", "dog")
    other = "val" if names[1] == "Valid" else "test"
    assert [records.split.count(split) for split in ("train", other)] == [2, 2]


def test_split_folder_without_class_folders_is_refused(tmp_path: Path) -> None:
    fill(tmp_path, train__cat__1_dot_jpg="a", train__dog__1_dot_jpg="b", val__1_dot_jpg="c")
    with pytest.raises(DataError, match=r"train/ has one folder per class, but the images in val/") as e:
        read(tmp_path)
    assert f"pass {tmp_path / 'train'} as `data`" in str(e.value)
    assert len(read(tmp_path / "train", seed=None)) == 2


def test_test_folder_without_class_folders_is_not_used(tmp_path: Path) -> None:
    fill(tmp_path, train__cat__1_dot_jpg="a", train__dog__1_dot_jpg="b", test__1_dot_jpg="c")
    records = read(tmp_path, seed=None)
    assert records.split == ("train", "train")
    assert records.origin is not None
    assert records.origin.unlabeled == (str(tmp_path / "test"),)
    assert f"images without labels, which are not used: {tmp_path / 'test'}" in str(records.origin)


def test_classes_that_differ_only_in_case_are_reported(tmp_path: Path) -> None:
    fill(tmp_path, cat__1_dot_jpg="a", Cat__1_dot_jpg="b")
    assert "classes 'Cat' and 'cat' differ only in case" in describe(read(tmp_path, seed=None))


def test_link_to_itself_is_not_a_class(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/2.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "bird").symlink_to(tmp_path / "bird")
    assert read_folders(tmp_path).label_space.names == ("cat", "dog")


def test_folders_with_one_image_each_are_not_classes(tmp_path: Path) -> None:
    fill(tmp_path, **{f"scene{n}__{n}_dot_jpg": str(n) for n in range(11)})
    with pytest.raises(DataError, match="each of the 11 folders has only one image"):
        read(tmp_path, seed=None)
