"""Atomic file output: an interrupted write leaves the old file unchanged."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file atomically: `write` fills a temporary file in the same folder, which is then renamed."""
    temporary = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(temporary)
    temporary.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, without translating line endings."""
    atomic_write(path, lambda temporary: temporary.write_text(text, encoding="utf-8", newline=""))


def write_json(path: Path, content: object) -> None:
    """Write indented JSON; dataclasses become objects and paths become strings."""
    write_text(path, json.dumps(content, indent=2, default=_to_json) + "\n")


def json_line(content: object) -> str:
    """Return JSON on one line. Keys are sorted, so equal content gives equal text."""
    return json.dumps(content, default=_to_json, sort_keys=True)


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: object = None) -> None:
    """Write tensors to a safetensors file, with metadata as JSON in its header."""
    from safetensors.torch import save_file

    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    header = {"facts": json.dumps(metadata, default=_to_json)}
    atomic_write(path, lambda temporary: save_file(state, temporary, metadata=header))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Return the tensors and metadata from a file written by `save_tensors`; the metadata may be None."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        header = file.metadata() or {}
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(header.get("facts", "null"))  # noqa: SIM118


def read_metadata(path: Path) -> Any:
    """Return the metadata from a file written by `save_tensors`, without its tensors; None if there is no file."""
    from safetensors import safe_open

    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get("facts", "null"))


def nan_to_none(x: float | int) -> float | int | None:
    """Return None for NaN, which is not valid JSON, and other numbers unchanged."""
    return None if x != x else x


def _to_json(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
