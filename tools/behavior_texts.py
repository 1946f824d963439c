"""Turns what a case has left into lines that can be compared, without what varies from run to run.

Every output and every file becomes a list of lines: a JSON file one line per value, a file of tensors one line per
row or a checksum, and other binary files their size and checksum. Listed differences are regular expressions on lines.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

SHOWN_VALUES = 600
"""Values of the largest tensor whose rows are lines; a larger one has only a checksum."""

NUMBER = r"\d[\d,]*(?:\.\d+)?"
VARYING = (
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d+)?(?:\+\d\d:\d\d|Z)?", "TIME"),
    (r"\b\d{4}-\d\d-\d\d\b", "DATE"),
    (rf"{NUMBER} images/s", "N images/s"),
    (rf"\b{NUMBER} (?:s|ms|seconds?|min|minutes?|h|hours?)\b", "N s"),
    (r"\bprocess \d+", "process N"),
    (r"\b[0-9a-f]{40}\b", "COMMIT"),
    (r"/tmp/(?:tmp|torchelastic_)\w+", "/tmp/N"),
)
"""Patterns of texts that vary from run to run, and what replaces them."""

VARYING_KEYS = re.compile(
    r"(?:.*\.)?(?:\w*seconds?\w*|\w*speed|started|finished|since|pid|ticks|host|commit|checksum|mtime_ns)"
    r"|versions\..*"
)
"""Keys in JSON files, and columns of tables, whose values vary."""

VARYING_KEYS_OF = {"costs.json": re.compile(r"(?:.*\.)?(?:epoch|once|tested|shared|spent)")}
"""The same in files with a certain name."""

EMBEDDED = re.compile(r"(data:[\w/+.-]+;base64,)([A-Za-z0-9+/=]+)")


def artifacts(record: Path) -> dict[str, list[str]]:
    """Return the lines of everything that a case has left: exit codes, outputs and files."""
    content = json.loads((record / "record.json").read_text())
    places = content["places"]
    lines: dict[str, list[str]] = {"deleted": content["deleted"]}
    for number, step in enumerate(content["steps"], start=1):
        if "code" in step:
            lines[f"{number} code"] = [str(step["code"])]
        for name in ("stdout", "stderr"):
            if step.get(name):
                lines[f"{number} {name}"] = text_lines(step[name], places)
    for name, kind in content["others"].items():
        lines[f"file {name}"] = [f"({clean(kind, places)})"]
    for path in sorted((record / "files").rglob("*")):
        if path.is_file():
            lines[f"file {path.relative_to(record / 'files').as_posix()}"] = file_lines(path, places)
    return lines


def without(lines: Sequence[str], varying: Iterable[tuple[str, str]]) -> list[str]:
    """Return lines in which regular expressions, which may be about several lines, are replaced."""
    text = "\n".join(lines)
    for pattern, replacement in varying:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.split("\n") if lines else []


def clean(text: str, places: Mapping[str, str]) -> str:
    """Replace folders, times and everything else that varies from run to run."""
    for folder, name in places.items():
        text = text.replace(folder, name)
    for pattern, replacement in VARYING:
        text = re.sub(pattern, replacement, text)
    return text


def text_lines(text: str, places: Mapping[str, str]) -> list[str]:
    """Return the lines of a text."""
    return clean(text, places).splitlines()


def file_lines(path: Path, places: Mapping[str, str]) -> list[str]:
    """Return the lines of a file, by its kind."""
    try:
        match "".join(path.suffixes[-1:]) or path.name:
            case ".json" | ".lock":
                return list(
                    without_varying(json_lines(json.loads(path.read_text(encoding="utf-8")), places), path.name)
                )
            case ".jsonl":
                documents = [
                    json_lines(json.loads(line), places) for line in path.read_text(encoding="utf-8").splitlines()
                ]
                return [line for document in documents for line in ["(line)", *without_varying(document, path.name)]]
            case ".npz":
                with np.load(path) as file:
                    return [line for key in sorted(file) for line in array_lines(key, file[key], places)]
            case ".safetensors":
                return list(without_varying(tensor_lines(path, places), path.name))
            case ".html":
                return html_lines(path.read_text(encoding="utf-8"), places)
            case ".svg":
                return svg_lines(path.read_text(encoding="utf-8"), places)
            case ".csv":
                return csv_lines(path.read_text(encoding="utf-8"), places)
        return text_lines(path.read_text(encoding="utf-8"), places)
    except Exception as error:  # a damaged file: each reader has errors of its own
        return [f"(not read as {path.suffix}: {type(error).__name__})", *byte_lines(path, places)]


def byte_lines(path: Path, places: Mapping[str, str]) -> list[str]:
    """Return the lines of a damaged text file, or the size and checksum of a binary file."""
    data = path.read_bytes()
    try:
        return text_lines(data.decode(), places)
    except UnicodeDecodeError:
        return [f"{len(data)} bytes, sha256 {hashlib.sha256(data).hexdigest()}"]


def json_lines(value: Any, places: Mapping[str, str], key: str = "") -> Iterator[str]:
    """Yield a line for each value of a JSON document, in the order of its keys' names."""
    if isinstance(value, dict) and value:
        for name in sorted(value):
            yield from json_lines(value[name], places, f"{key}.{name}" if key else name)
    elif isinstance(value, list) and value:
        for number, item in enumerate(value):
            yield from json_lines(item, places, f"{key}[{number}]")
    elif isinstance(value, str):
        yield f"{key} = {clean(value, places)!r}"
    else:
        yield f"{key} = {value!r}"


def without_varying(lines: Iterable[str], name: str) -> Iterator[str]:
    """Yield the lines of a JSON file, with the values of keys that vary left out."""
    others = VARYING_KEYS_OF.get(name)
    for line in lines:
        key, equals, value = line.partition(" = ")
        varies = VARYING_KEYS.fullmatch(key) or (others and others.fullmatch(key))
        yield f"{key} = VARIES" if equals and varies and value != "None" else line


def array_lines(name: str, array: np.ndarray[Any, Any], places: Mapping[str, str]) -> Iterator[str]:
    """Yield the name, type, shape and checksum of an array, and its rows if it is small."""
    if array.dtype.kind in "OSU":
        texts = [clean(str(value), places) for value in array.ravel()]
        yield f"{name}: {array.dtype.kind} {list(array.shape)}"
        yield from texts
        return
    checksum = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]
    yield f"{name}: {array.dtype} {list(array.shape)} sha256 {checksum}"
    if array.dtype == np.uint8 or array.size > SHOWN_VALUES:
        return
    for row in array.reshape(len(array), -1) if array.ndim else [array.reshape(1)]:
        yield f"{name}: {' '.join(map(str, row.tolist()))}"


def tensor_lines(path: Path, places: Mapping[str, str]) -> Iterator[str]:
    """Yield the metadata and tensors of a safetensors file."""
    with safe_open(path, "numpy") as file:
        for key, value in sorted((file.metadata() or {}).items()):
            yield from metadata_lines(f"metadata.{key}", value, places)
        for key in sorted(file.keys()):  # it has no iterator
            array = file.get_tensor(key)
            yield from array_lines(key, array, places)
            if array.dtype == np.uint8:
                yield from metadata_lines(key, array.tobytes().decode(errors="replace"), places)


def metadata_lines(key: str, value: str, places: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of a text, which usually is JSON, even inside of JSON."""
    try:
        content = json.loads(value)
    except ValueError:
        yield f"{key} = {clean(value, places)}"
        return
    if isinstance(content, dict):
        for name, item in content.items():
            yield from metadata_lines(f"{key}.{name}", item if isinstance(item, str) else json.dumps(item), places)
    else:
        yield from json_lines(content, places, key)


def csv_lines(text: str, places: Mapping[str, str]) -> list[str]:
    """Return the lines of a table, unchanged unless it has columns that vary."""
    rows = list(csv.reader(io.StringIO(text)))
    varying = [number for number, name in enumerate(rows[0] if rows else []) if VARYING_KEYS.fullmatch(name)]
    if not varying:
        return text_lines(text, places)
    for row in rows[1:]:
        for number in varying:
            row[number] = "VARIES" if row[number] else ""
    return [clean(",".join(row), places) for row in rows]


def html_lines(text: str, places: Mapping[str, str]) -> list[str]:
    """Return one line per tag or text, with embedded images as checksums."""

    def digest(match: re.Match[str]) -> str:
        content = base64.b64decode(match[2])
        if "svg" in match[1]:
            content = "\n".join(svg_lines(content.decode(), places)).encode()
        return f"{match[1]}sha256-{hashlib.sha256(content).hexdigest()[:16]}"

    return clean(EMBEDDED.sub(digest, text), places).replace("<", "\n<").splitlines()


def svg_lines(text: str, places: Mapping[str, str]) -> list[str]:
    """Return the lines of a drawing. If its axis is time, they are its different lines without numbers
    and the sides on which labels are."""
    if "training time" not in text:
        return text_lines(text, places)
    without_numbers = re.sub(r"-?\d[\d.]*|text-anchor: \w+", "N", clean(text, places))
    return sorted(set(without_numbers.splitlines()))
