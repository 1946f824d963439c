"""Label Studio exports: JSON, with tasks and their annotations, or JSON-MIN, with one row per annotation."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from probmcl.data.image_files import images_below
from probmcl.data.labels import State
from probmcl.data.records import Missing, Origin, Records
from probmcl.errors import DataError
from probmcl.readers.annotations import (
    annotation_format,
    find_annotated_images,
    image_root,
    label_states,
    others_left_out,
    refuse_shared,
)
from probmcl.readers.label_studio_tasks import Answer, read_answers

UPLOAD = re.compile(r"^[0-9a-f]{8}-(?=.)")  # put before the name of an uploaded file
REMOVED = re.compile(r"[^-\w.]")  # from the name of an uploaded file


def recognizes(path: Path) -> bool:
    """Return whether the path is a JSON or JSON-MIN export of Label Studio, or a folder with one.

    >>> recognizes(Path("nowhere"))
    False
    """
    return bool(_exports(path))


def read_label_studio(path: Path, *, missing: Missing = "error") -> Records:
    """Read the choices and the labels of regions in each task as labels of its image.

    Canceled annotations are skipped. All labels of an image without annotations are unknown. Annotations of the same
    image must agree. Images are searched below the folder, with or without the prefix of uploaded files.
    """
    files = _exports(path)
    if len(files) != 1:
        raise DataError(f"{path} has {len(files)} JSON exports of Label Studio; pass one of them as `data`")
    file = files[0]
    answers = list(read_answers(file))
    labels = _by_image(file, answers)
    names = sorted({name for image in labels.values() for name in image or ()})
    if not names:
        raise DataError(f"{file}: no annotation has choices or labels; export the annotated tasks")
    unknown = dict.fromkeys(names, State.UNKNOWN)
    states = [unknown if image is None else dict.fromkeys(image, State.PRESENT) for image in labels.values()]
    paths = _paths(file, image_root(path), list(labels), missing)
    without = sum(image is None for image in labels.values())
    notes = [f"images without annotations, with all labels unknown: {without:,}"] if without else []
    notes += [note for note in (others_left_out(paths), *_shared(answers)) if note]
    fields = sorted({field for answer in answers for field, _ in answer.labels or ()})
    origin = Origin(file, "\n".join([f"Label Studio, labels from {', '.join(map(repr, fields))}", *notes]))
    return Records.from_labels(names, paths, ["train"] * len(paths), label_states(names, states), origin=origin)


def _exports(path: Path) -> list[Path]:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    return [file for file in files if annotation_format(file) == "label_studio"]


def _by_image(file: Path, answers: Iterable[Answer]) -> dict[str, frozenset[str] | None]:
    """Return the labels of each image. Annotations that disagree are an error."""
    variants: dict[str, dict[frozenset[str], Answer]] = defaultdict(dict)
    for answer in answers:
        of_image = variants[answer.image]
        if answer.labels is not None:
            of_image.setdefault(frozenset(name for _, name in answer.labels), answer)
        if len(of_image) > 1:
            first, second = (f"annotation {each.annotation} has {_listed(names)}" for names, each in of_image.items())
            remedy = 'delete one of them, or export CSV and choose `annotators="majority"`, any or unknown'
            raise DataError(f"{file}: task {answer.task} ({answer.image}): {first}, but {second}; {remedy}")
    return {image: next(iter(of_image), None) for image, of_image in variants.items()}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "no label"


def _shared(answers: Iterable[Answer]) -> list[str]:
    """Return notes on labels that occur in several fields."""
    fields: dict[str, set[str]] = defaultdict(set)
    for answer in answers:
        for field, name in answer.labels or ():
            fields[name].add(field)
    shared = {name: sorted(where) for name, where in sorted(fields.items()) if len(where) > 1}
    return [f"label {name!r} of {' and '.join(map(repr, where))} is one class" for name, where in shared.items()]


def _paths(file: Path, folder: Path, images: Sequence[str], missing: Missing) -> list[Path]:
    existing = {path.name for path in images_below(folder)}
    uploaded = {REMOVED.sub("", name.replace(" ", "_")): name for name in existing}
    names = []
    for image in images:
        parent, slash, name = image.rpartition("/")
        original = UPLOAD.sub("", name)
        names.append(parent + slash + (name if name in existing else uploaded.get(original, original)))
    paths = find_annotated_images(
        folder, names, source=file, remedy="copy or download the images there", missing=missing
    )
    refuse_shared(file, images, paths)
    return paths
