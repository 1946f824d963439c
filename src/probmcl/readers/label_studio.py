"""Label Studio exports: JSON, with tasks and their annotations, or JSON-MIN, with one row per annotation."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from probmcl.data.image_files import images_below, is_image
from probmcl.data.labels import State
from probmcl.data.records import Missing, Origin, Records
from probmcl.errors import DataError
from probmcl.readers.annotations import (
    annotation_format,
    find_annotated_images,
    image_root,
    json_keys,
    label_states,
    others_left_out,
    read_annotations,
    refuse_shared,
)

UPLOAD = re.compile(r"^[0-9a-f]{8}-(?=.)")  # put before the name of an uploaded file
REMOVED = re.compile(r"[^-\w.]")  # from the name of an uploaded file


class _Result(msgspec.Struct, frozen=True):
    value: dict[str, msgspec.Raw] = {}  # only labels are decoded, because the pixels of a brush are long
    from_name: str = ""


class _Annotation(msgspec.Struct, frozen=True):
    result: list[_Result] = []
    id: int | str | None = None
    was_cancelled: bool = False
    skipped: bool = False


class _Task(msgspec.Struct, frozen=True):
    data: dict[str, Any]
    id: int | str | None = None
    annotations: list[_Annotation] | None = None
    completions: list[_Annotation] | None = None


class Answer(NamedTuple):
    """One annotation of a task: the image, and each label with its field. Without an annotation, `labels` is None."""

    task: object
    image: str
    annotation: object
    labels: frozenset[tuple[str, str]] | None


def read_answers(file: Path) -> Iterator[Answer]:
    """Yield the valid annotations of each task. A task without any yields one answer without labels."""
    if "data" in json_keys(file)[1]:
        tasks = read_annotations(file, list[_Task])
        images = _images(file, [task.data for task in tasks])
        for task, image in zip(tasks, images, strict=True):
            annotations = [*(task.annotations or ()), *(task.completions or ())]
            valid = [annotation for annotation in annotations if not (annotation.was_cancelled or annotation.skipped)]
            for annotation in valid:
                pairs = ((result.from_name, name) for result in annotation.result for name in _names(result.value))
                yield Answer(task.id, image, annotation.id, frozenset(pairs))
            if not valid:
                yield Answer(task.id, image, None, None)
    else:
        rows = read_annotations(file, list[dict[str, Any]])
        fields = _fields(file, rows)
        for row, image in zip(rows, _images(file, rows), strict=True):
            pairs = ((field, name) for field in fields for name in _names_in(row.get(field)))
            number = row.get("annotation_id")
            yield Answer(row.get("id"), image, number, None if number is None else frozenset(pairs))


def _names(value: Mapping[str, Any]) -> Iterator[str]:
    """Yield the labels in the value of a result, in `choices`, `rectanglelabels`, `brushlabels` and the like."""
    for key, content in value.items():
        if key == "choices" or key.endswith("labels"):
            labels = msgspec.json.decode(content) if isinstance(content, msgspec.Raw) else content
            yield from map(str, [labels] if isinstance(labels, str) else labels)


def _names_in(field: object) -> Iterator[str]:
    """Yield the labels in a field of JSON-MIN: a choice, several choices, or a list of regions."""
    for item in field if isinstance(field, list) else [field]:
        if isinstance(item, dict):
            yield from _names(item)
        elif isinstance(item, str):
            yield item


def _fields(file: Path, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields of JSON-MIN that contain labels: those with several choices or regions, or the only text."""
    contents: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        keys = list(row)
        between = keys[keys.index("id") + 1 : keys.index("annotator")] if {"id", "annotator"} <= row.keys() else []
        for key in between:
            contents[key].append(row[key])
    texts = [field for field, values in contents.items() if all(isinstance(value, str) for value in values)]
    fields = [field for field in contents if field not in texts and any(map(any, map(_names_in, contents[field])))]
    if not fields and len(texts) > 1:
        raise DataError(f"{file}: {texts[0]!r} or {texts[1]!r} may be the labels; export JSON instead of JSON-MIN")
    return fields or texts


def _images(file: Path, data: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the path of the image of each task, from the field `image` or the only field with the name of an image."""
    keys = list(dict.fromkeys(key for row in data for key, value in row.items() if is_image(_path(value))))
    if "image" not in keys and len(keys) != 1:
        fields = (
            f"{keys[0]!r} and {keys[1]!r} have names of image files" if keys else "no field has the name of an image"
        )
        raise DataError(f"{file}: {fields}; name the field of the image 'image'")
    key = "image" if "image" in keys else keys[0]
    paths = [_path(row.get(key)) for row in data]
    if not all(paths):
        raise DataError(f"{file}: item {paths.index('') + 1} has no {key!r}; remove it")
    return paths


def _path(value: object) -> str:
    """Return the path in the address of an image.

    >>> _path("/data/local-files/?d=photos/1%20a.jpg"), _path("https://host/photos/1.jpg?key=x")
    ('photos/1 a.jpg', 'host/photos/1.jpg')
    """
    address, _, local = (value if isinstance(value, str) else "").partition("?d=")
    return unquote(local or address.rpartition("://")[2].partition("?")[0])


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
