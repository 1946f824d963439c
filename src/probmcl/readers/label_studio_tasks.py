"""The tasks in JSON exports of Label Studio: the image, and the labels in each annotation."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from probmcl.data.image_files import is_image
from probmcl.errors import DataError
from probmcl.readers.annotations import json_keys, read_annotations


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
