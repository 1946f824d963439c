from pathlib import Path

import pytest

from helpers.layouts import summary, write_layout
from probmcl.data import Records
from probmcl.data.records import Missing
from probmcl.errors import DataError, OptionError
from probmcl.readers import read
from probmcl.readers.options import ReadOptions
from probmcl.readers.voc import recognizes


def xml(*objects: str) -> str:
    """Return an annotation as LabelImg writes it; a name that ends in ? is difficult."""
    size = "<size><width>8</width><height>8</height><depth>3</depth></size>"
    parts = [
        f"<object><name>{name.rstrip('?')}</name><pose>Unspecified</pose><difficult>{int('?' in name)}</difficult>"
        "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>5</xmax><ymax>5</ymax></bndbox>"
        "<part><name>head</name></part></object>"
        for name in objects
    ]
    return f"<annotation>\n<folder>a</folder><filename>old.jpg</filename>{size}\n{''.join(parts)}\n</annotation>\n"


def read_layout(folder: Path, missing: Missing = "error") -> Records:
    assert recognizes(folder)
    return read(folder, seed=None, missing=missing)


def devkit(folder: Path) -> Path:
    files = {f"Annotations/{n}.xml": xml(*names) for n, names in enumerate((["cat", "cat?"], ["dog?"], [], ["dog"]))}
    return write_layout(folder, " ".join(f"JPEGImages/{n}.jpg" for n in range(4)), files)


def test_objects_are_labels_and_difficult_ones_are_unknown(tmp_path: Path) -> None:
    records = read_layout(devkit(tmp_path))
    assert records.label_space.names == ("cat", "dog")
    assert summary(records, tmp_path) == {
        "JPEGImages/0.jpg": "train +-",
        "JPEGImages/1.jpg": "train -?",
        "JPEGImages/2.jpg": "train --",
        "JPEGImages/3.jpg": "train -+",
    }
    assert str(records.origin) == f"{tmp_path}: PASCAL VOC, 4 XML files\n  difficult labels are unknown"


@pytest.mark.parametrize(
    "images",
    ["1.jpg 2.png", "images/1.jpg images/2.png", "JPEGImages/1.jpg JPEGImages/2.png Masks/1.png Masks/2.png"],
)
@pytest.mark.parametrize("folder", [".", "Annotations", "annotations/xmls"])
def test_images_are_next_to_the_files_or_in_another_folder(tmp_path: Path, images: str, folder: str) -> None:
    write_layout(tmp_path, images, {f"{folder}/1.xml": xml("cat"), f"{folder}/2.xml": xml("dog")})
    assert list(summary(read_layout(tmp_path), tmp_path).items()) == [
        (name, f"train {row}") for name, row in zip(images.split()[:2], ("+-", "-+"), strict=True)
    ]


def test_split_folders_are_read(tmp_path: Path) -> None:
    files = {"train/1.xml": xml("cat"), "valid/1.xml": xml("dog"), "test/b_jpg.rf.7.xml": xml("emu")}
    records = read_layout(write_layout(tmp_path, "train/1.jpg valid/1.jpg test/b_jpg.rf.7.jpg", files))
    assert summary(records, tmp_path) == {
        "train/1.jpg": "train +--",
        "valid/1.jpg": "val -+-",
        "test/b_jpg.rf.7.jpg": "test --+",
    }


def test_lists_of_image_sets_are_splits(tmp_path: Path) -> None:
    lists = {"train": "0 1\n", "val": "1.jpg\n\n", "trainval": "0\n1\n", "test": "8\n9\n"}
    write_layout(devkit(tmp_path), "", {f"ImageSets/Main/{name}.txt": text for name, text in lists.items()})
    records = read_layout(tmp_path)
    assert summary(records, tmp_path) == {"JPEGImages/0.jpg": "train +-", "JPEGImages/1.jpg": "val -?"}
    description = str(records.origin)
    assert "2 XML files\n  splits from ImageSets/Main/{train,val,test}.txt" in description
    assert "test.txt left out: no XML file for its 2 images" in description
    assert "images in no list left out: 2" in description
    (tmp_path / "ImageSets" / "Main" / "train.txt").unlink()
    (tmp_path / "ImageSets" / "Main" / "val.txt").unlink()
    assert set(read_layout(tmp_path).split) == {"train"}


def test_class_lists_take_precedence(tmp_path: Path) -> None:
    lists = {"ImageSets/Main/train.txt": "0\n", "ImageSets/Main/dog_train.txt": "0 1\n"}
    assert read_layout(write_layout(devkit(tmp_path), "", lists)).label_space.names == ("dog",)


@pytest.mark.parametrize("parent", ["VOC2030", "VOCdevkit/VOC2030"])
def test_year_is_found_from_parent_folders(tmp_path: Path, parent: str) -> None:
    devkit(tmp_path / parent)
    assert len(read_layout(tmp_path)) == 4


def test_images_without_a_file_are_left_out(tmp_path: Path) -> None:
    write_layout(tmp_path, "1.jpg 2.jpg 3.jpg", {"1.xml": xml("cat", "Cat")})
    records = read_layout(tmp_path)
    assert list(summary(records, tmp_path)) == ["1.jpg"]
    assert str(records.origin).endswith("other images in the same folder left out: 2")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation>\n<object>\n</annotation>", "invalid XML (mismatched tag: line 3"),
        ("<?xml version='1.0' encoding='none'?><annotation/>", "invalid XML (unknown encoding"),
        (xml("cat", " "), "object 2 has no <name>"),
        ("<annotations><image/></annotations>", "the root element is <annotations>"),
    ],
)
def test_invalid_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    write_layout(devkit(tmp_path), "", {"Annotations/1.xml": text})
    with pytest.raises(DataError, match=": ") as caught:
        read(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'Annotations' / '1.xml'}: {message}")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("val", "1\n9\n", r"val\.txt: image '9' has no XML file \(1 of 2 missing\)"),
        ("val", "1\n.\n", r"val\.txt: image '.' has no XML file"),
        ("val", "1\n0\n", r"val\.txt: image '0' is in train and in val"),
    ],
)
def test_invalid_lists_are_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    lists = {"ImageSets/Main/train.txt": "0\n", f"ImageSets/Main/{name}.txt": text}
    with pytest.raises(DataError, match=message):
        read(write_layout(devkit(tmp_path), "", lists))


def test_missing_images_are_refused_or_kept(tmp_path: Path) -> None:
    complete = read_layout(devkit(tmp_path))
    (tmp_path / "JPEGImages" / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"'Annotations/1' is not in .*\(1 of 4 missing\)"):
        read(tmp_path)
    kept = read_layout(tmp_path, "keep")
    assert summary(kept, tmp_path) == summary(complete, tmp_path)


def test_files_without_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no XML file has an <object>"):
        read(write_layout(tmp_path, "1.jpg", {"1.xml": xml()}))


def test_folders_and_broken_links_are_not_annotations(tmp_path: Path) -> None:
    (tmp_path / "1.xml").mkdir()
    (tmp_path / "2.xml").symlink_to(tmp_path / "3.xml")
    assert not recognizes(tmp_path)
    (devkit(tmp_path) / "Annotations" / "5.xml").symlink_to(tmp_path / "3.xml")
    assert len(read_layout(tmp_path)) == 4


def test_other_xml_is_not_recognized(tmp_path: Path) -> None:
    assert not recognizes(write_layout(tmp_path, "1.jpg", {"annotations.xml": "<annotations></annotations>"}))


def test_options_for_tables_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="read as voc"):
        read(devkit(tmp_path), options=ReadOptions(blank=("negative",)))
