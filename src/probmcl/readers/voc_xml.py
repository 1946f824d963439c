"""PASCAL VOC annotations, one XML file per image, as LabelImg, Roboflow and CVAT write them."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from probmcl.data.image_files import is_file, split_folders, walk
from probmcl.data.labels import State
from probmcl.data.records import Missing, Origin, Records, Split
from probmcl.errors import DataError, counted
from probmcl.readers.annotations import find_annotated_images, label_states, others_left_out
from probmcl.readers.spreadsheet import read_encoded_text

FOLDERS = ("Annotations", "annotations")
LISTS: tuple[tuple[str, Split], ...] = (("train", "train"), ("val", "val"), ("test", "test"))
START = 4096  # bytes in which the root element must begin


class _Annotation(NamedTuple):
    file: Path
    image_id: str  # the path of the file in its folder, without suffix
    split: Split


def has_xml(folder: Path) -> bool:
    """Return whether a folder has PASCAL VOC annotations, in `Annotations/`, in split folders or next to the images.

    >>> has_xml(Path("nowhere"))
    False
    """
    return any(_is_voc(annotation.file) for annotation in _annotations(folder)[:1])


def read_voc_xml(folder: Path, *, missing: Missing = "error") -> Records:
    """Read the names of the objects in each XML file as labels. The image has the name of its XML file.

    A class is unknown in an image if all its objects there are difficult, as in the class lists of the devkit. Splits
    are folders (`train/`, `valid/`, `test/`) or the lists `ImageSets/Main/{train,val,test}.txt`; without a train list,
    `trainval.txt` is train. Without splits, all images are in train.
    """
    annotations = _annotations(folder)
    notes: list[str] = []
    lists = _lists(folder / "ImageSets" / "Main")
    if lists:
        annotations, notes = _listed(lists, annotations)
    labels = [_labels(annotation.file) for annotation in annotations]
    names = sorted({name for states in labels for name in states})
    if not names:
        raise DataError(f"{folder}: no XML file has an <object>; pass a folder with labeled images")
    paths = find_annotated_images(
        folder,
        [annotation.file.relative_to(folder).as_posix()[:-4] for annotation in annotations],
        source=folder,
        remedy="copy the images there, with the names of the XML files",
        missing=missing,
    )
    notes += ["difficult labels are unknown"] if any(State.UNKNOWN in states.values() for states in labels) else []
    notes += [] if lists else [others_left_out(paths)]
    description = "\n".join([f"PASCAL VOC, {counted(len(labels), 'XML file')}", *filter(None, notes)])
    splits = [annotation.split for annotation in annotations]
    return Records.from_labels(names, paths, splits, label_states(names, labels), origin=Origin(folder, description))


def _annotations(folder: Path) -> list[_Annotation]:
    """Return the annotations in a folder and in its split folders."""
    annotations: list[_Annotation] = []
    bases: dict[Path, Split] = {folder: "train", **split_folders(folder)}
    for base, split in bases.items():
        inner = next((base / name for name in FOLDERS if (base / name).is_dir()), base)
        below = (Path(entry.path) for entry in walk(inner) if entry.name.endswith(".xml") and is_file(entry))
        files = sorted(file for file in base.glob("*.xml") if file.is_file()) if inner == base else below
        annotations += [_Annotation(file, file.relative_to(inner).as_posix()[:-4], split) for file in files]
    return annotations


def _is_voc(file: Path) -> bool:
    with file.open("rb") as start:
        text = start.read(START)
    return b"<annotation>" in text or b"<annotation " in text


def _labels(file: Path) -> dict[str, State]:
    try:
        root = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, LookupError, ValueError) as error:  # the last two for an unknown encoding
        raise DataError(f"{file}: invalid XML ({error}); export the file again") from error
    if root.tag != "annotation":
        raise DataError(f"{file}: the root element is <{root.tag}>, not <annotation>; move the file to another folder")
    labels: dict[str, State] = {}
    for number, element in enumerate(root.findall("object"), start=1):
        name = (element.findtext("name") or "").strip()
        if not name:
            raise DataError(f"{file}: object {number} has no <name>; add the class, or remove the object")
        if (element.findtext("difficult") or "").strip() != "1":
            labels[name] = State.PRESENT
        labels.setdefault(name, State.UNKNOWN)
    return labels


def _lists(main: Path) -> dict[Split, Path]:
    lists = {split: main / f"{name}.txt" for name, split in LISTS if (main / f"{name}.txt").is_file()}
    trainval = main / "trainval.txt"
    return lists if "train" in lists or not trainval.is_file() else {"train": trainval, **lists}


def _listed(lists: Mapping[Split, Path], annotations: list[_Annotation]) -> tuple[list[_Annotation], list[str]]:
    """Return the annotations of the listed images, and notes. A list without any XML file is left out."""
    by_id = {annotation.image_id: annotation for annotation in annotations}
    listed: dict[str, _Annotation] = {}
    notes = [f"splits from ImageSets/Main/{{{','.join(path.stem for path in lists.values())}}}.txt"]
    for split, path in lists.items():
        ids = _ids(path, by_id)
        absent = [image for image in ids if image not in by_id]
        if absent and len(absent) < len(ids):
            share = f"{len(absent):,} of {len(ids):,} missing"
            raise DataError(f"{path}: image {absent[0]!r} has no XML file ({share}); add it, or remove the line")
        notes += [f"{path.name} left out: no XML file for its {counted(len(ids), 'image')}"] if absent else []
        for image in [] if absent else ids:
            if image in listed:
                both = f"is in {listed[image].split} and in {split}"
                raise DataError(f"{path}: image {image!r} {both}; each image must be in one split")
            listed[image] = by_id[image]._replace(split=split)
    unlisted = len(annotations) - len(listed)
    notes += [f"images in no list left out: {unlisted:,}"] if unlisted else []
    return list(listed.values()), notes


def _ids(path: Path, known: Collection[str]) -> list[str]:
    """Return the image ids in a list, whose lines may also have the suffix of the image or a number after the id."""
    ids: dict[str, None] = {}
    for line in filter(None, map(str.strip, read_encoded_text(path).splitlines())):
        first = line.split()[0]
        spellings = (line, first, line.rpartition(".")[0], first.rpartition(".")[0])
        ids[next((spelling for spelling in spellings if spelling in known), first)] = None
    return list(ids)
