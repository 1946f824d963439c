"""Functions for the formats of annotation tools: finding the images, building label states, recognizing JSON files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal, TypeVar

import msgspec
import numpy as np

from probmcl.data.image_files import images_below, is_image, refuse_absent
from probmcl.data.labels import LabelStates, State
from probmcl.data.records import Missing
from probmcl.errors import DataError
from probmcl.readers.file_index import SUFFIX, FileIndex, Folders

Content = TypeVar("Content")
COCO_KEYS = {"images", "annotations", "categories"}
TASK_KEYS = {"annotations", "completions", "predictions", "is_labeled"}  # of Label Studio, next to `data`
ROW_KEYS = {"id", "annotator", "annotation_id", "lead_time"}  # of JSON-MIN, which Label Studio also exports
IMAGE_FOLDERS = ("images", "jpegimages")  # in lower case; preferred to folders of masks or thumbnails


def find_annotated_images(
    folder: Path, names: Sequence[str], *, source: Path, remedy: str, missing: Missing = "error"
) -> list[Path]:
    """Return the files below a folder whose paths end with the given names, which may lack a suffix.

    If no name matches, the first part of each name is dropped, and so on: annotations often have paths from another
    computer. All names lose the same number of parts, so `a/1.jpg` does not match `b/1.jpg` if other names match in
    full. Files that do not exist are treated as in `named_images`.
    """
    index, parts = FileIndex([folder]), [_parts(name) for name in names]
    tails, found = list(names), [""] * len(names)
    for dropped in range(max(map(len, parts), default=0)):
        tails = ["/".join(part[min(dropped, len(part) - 1) :]) for part in parts]
        found = [_ending_with(index, tail, source) for tail in tails]
        if any(found):
            break
    absent = [name for name, file in zip(names, found, strict=True) if not file]
    refuse_absent(absent, len(names), folder, source=source, remedy=remedy, missing=missing)
    file, tail = next(((file, tail) for file, tail in zip(found, tails, strict=True) if file), ("", ""))
    suffix = "" if is_image(tail) else PurePosixPath(file).suffix
    parent = file[: len(file) - len(tail + suffix)]  # of a file that exists, for those that do not
    paths = [folder / (file or f"{parent}{tail}{suffix}") for file, tail in zip(found, tails, strict=True)]
    refuse_shared(source, names, paths)
    return paths


def refuse_shared(source: Path, names: Sequence[str], paths: Sequence[Path]) -> None:
    """Raise `DataError` if two different names match the same file."""
    first: dict[Path, str] = {}
    for name, path in zip(names, paths, strict=True):
        if first.setdefault(path, name) != name:
            raise DataError(f"{source}: {first[path]!r} and {name!r} both match {path}; give each its own file")


def image_root(path: Path) -> Path:
    """Return the folder in which the images of an annotation file or folder are searched.

    For a file, this is its folder. If that contains no images, and either is named `annotations` or is next to a folder
    `images`, it is the parent of the folder.
    """
    if path.is_dir():
        return path
    folder, parent = path.parent, path.resolve().parent.parent
    outside = folder.resolve().name.lower() == "annotations" or (parent / "images").is_dir()
    return parent if outside and next(images_below(folder), None) is None else folder


def label_states(names: Sequence[str], labels: Sequence[Mapping[str, State]]) -> LabelStates:
    """Return the label states of images from the states of the classes that each image mentions; others are absent.

    >>> label_states(["cat", "dog"], [{"dog": State.PRESENT}, {}, {"cat": State.UNKNOWN}]).dense().tolist()
    [[0, 1], [0, 0], [2, 0]]
    """
    columns = {name: column for column, name in enumerate(names)}
    rows = np.repeat(np.arange(len(labels)), [len(states) for states in labels])
    classes = np.array([columns[name] for states in labels for name in states], dtype=np.int64)
    states = np.array([state for states in labels for state in states.values()], dtype=np.uint8)
    return LabelStates.from_entries(rows, classes, states, (len(labels), len(names)))


def others_left_out(paths: Sequence[Path]) -> str:
    """Return a note on the images that are next to the given ones but have no annotations; '' if there are none."""
    used = set(paths)
    folders = {path.parent for path in paths if path.parent.is_dir()}
    others = sum(is_image(path.name) and path not in used for folder in folders for path in folder.iterdir())
    return f"other images in the same folder left out: {others:,}" if others else ""


def read_annotations(path: Path, content: Callable[..., Content]) -> Content:
    """Read a JSON file with msgspec, which skips the fields that the type does not have."""
    try:
        # `type` may be a generic alias such as list[Task], which is callable but not a class.
        return msgspec.json.decode(_json_bytes(path), type=content)  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{path}: {error}; download or export the file again, or correct it") from error


def annotation_format(path: Path) -> Literal["coco", "label_studio"] | None:
    """Return the format of an annotation file in JSON; None for other files.

    >>> annotation_format(Path("nowhere.json"))
    """
    kind, keys = json_keys(path) if path.suffix.lower() == ".json" else ("", frozenset())
    if kind == "{" and keys >= COCO_KEYS:
        return "coco"
    is_task = "data" in keys and not keys.isdisjoint(TASK_KEYS)
    return "label_studio" if kind == "[" and (is_task or keys >= ROW_KEYS) else None


def json_keys(path: Path) -> tuple[str, frozenset[str]]:
    """Return whether a JSON file has an object ('{') or a list ('['), and the keys of the object or of the first item.

    >>> json_keys(Path("nowhere.json"))
    ('', frozenset())
    """
    try:
        content = msgspec.json.decode(_json_bytes(path), type=dict[str, msgspec.Raw] | list[msgspec.Raw])
        if isinstance(content, dict):
            return "{", frozenset(content)
        return "[", frozenset(msgspec.json.decode(content[0], type=dict[str, msgspec.Raw]))
    except (OSError, IndexError, UnicodeDecodeError, RecursionError, msgspec.DecodeError):
        return "", frozenset()


def _json_bytes(path: Path) -> bytes:
    return path.read_bytes().removeprefix(b"\xef\xbb\xbf")  # Windows programs write a byte order mark


def _parts(name: str) -> list[str]:
    return [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]


def _ending_with(index: FileIndex, name: str, source: Path) -> str:
    """Return the only image whose path ends with a name, or ''. Of several, one in `IMAGE_FOLDERS` is preferred."""
    *folders, last = name.split("/")
    wanted = tuple(reversed(folders))
    found = []
    for how in ("", SUFFIX):
        found += [(inner, file) for inner, file in index.below(wanted, how, last) if is_image(file)]
    found.sort()
    matches = [_inside(inner, file) for inner, file in found]
    exact = [_inside(inner, file) for inner, file in found if inner == wanted]
    preferred = [file for file in matches if not {*file.lower().split("/")}.isdisjoint(IMAGE_FOLDERS)]
    for choice in (exact, preferred, matches):
        if len(choice) == 1:
            return choice[0]
    if matches:
        raise DataError(f"{source}: {name!r} may be {matches[0]} or {matches[1]}; rename or move one of them")
    return ""


def _inside(folders: Folders, file: str) -> str:
    """Return the path of a file inside the folder that is searched."""
    return "/".join([*reversed(folders), file.rpartition("/")[2]])
