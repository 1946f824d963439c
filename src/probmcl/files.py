"""Files that are written whole or not at all: a kill at any moment leaves the old one or the new one."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def atomic_write(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a file beside it, then put that in its place."""
    part = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    write(part)
    part.replace(path)


def write_text(path: Path, text: str) -> None:
    """Write text as UTF-8, line ends as they are."""
    atomic_write(path, lambda part: part.write_text(text, encoding="utf-8", newline=""))


def write_json(path: Path, content: object) -> None:
    """Write JSON; dataclasses become objects, paths strings."""
    write_text(path, json.dumps(content, indent=2, default=_plain) + "\n")


def json_line(content: object) -> str:
    """JSON in one line, the same for the same content."""
    return json.dumps(content, default=_plain, sort_keys=True)


def read_json(path: Path) -> Any:
    """What such a file holds."""
    return json.loads(path.read_text(encoding="utf-8"))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], facts: object = None) -> None:
    """Write tensors as safetensors, and what JSON can say about them into the same file."""
    from safetensors.torch import save_file

    state = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
    about = {"facts": json.dumps(facts, default=_plain)}
    atomic_write(path, lambda part: save_file(state, part, metadata=about))


def load_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """The tensors of such a file, and what it says about them."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = file.metadata() or {}
        return {key: file.get_tensor(key) for key in file.keys()}, json.loads(about.get("facts", "null"))  # noqa: SIM118


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no place in JSON")
