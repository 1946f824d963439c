"""Steps of a case that change files, as a user, a stranger or a damaged disk would.

Files are changed without the package, so that both trees get the same change.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

VERBATIM = {"set": 3, "unset": 2, "write": 2, "append": 2, "header": 2, "python": 1}
"""Steps whose last argument is not split into words, and the number of their arguments."""


def split(step: str) -> list[str]:
    """Split a step into words.

    >>> split('set run/run.json warnings.0 {"kind": "a b"}')
    ['set', 'run/run.json', 'warnings.0', '{"kind": "a b"}']
    >>> split("probmcl train 'my photos'")
    ['probmcl', 'train', 'my photos']
    """
    verb = step.partition(" ")[0]
    if verb in VERBATIM:
        return step.split(" ", VERBATIM[verb])
    return shlex.split(step)


def change(cwd: Path, words: list[str]) -> None:
    """Run a step. The first word is the verb; the second is a path, relative to `cwd` unless it is absolute."""
    verb, name, *rest = words
    path = cwd / name
    match verb:
        case "set":
            set_key(path, rest[0], json.loads(rest[1]))
        case "unset":
            set_key(path, rest[0], None, delete=True)
        case "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(rest[0].encode().decode("unicode_escape"))
        case "append":
            with path.open("a") as file:
                file.write(rest[0].encode().decode("unicode_escape"))
        case "header":
            content = rest[0].encode()
            path.write_bytes(struct.pack("<Q", len(content)) + content)
        case "deep":
            path.write_text('{"a": ' * 100_000 + "1" + "}" * 100_000)
        case "huge":
            os.truncate(path, 10 << 30)
        case "cut":
            content = path.read_bytes()
            path.write_bytes(content[: len(content) // 2])
        case "flip":
            content = path.read_bytes()
            path.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
        case "empty":
            path.write_bytes(b"")
        case "delete":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        case "pipe":
            path.unlink()
            os.mkfifo(path)
        case "link":
            path.unlink()
            path.symlink_to(rest[0])
        case "copy":
            copy(path, cwd / rest[0])
        case "array":
            set_array(path, rest[0], rest[1], [int(size) for size in rest[2:]])
        case "relist":
            relist(path)
        case _:
            raise ValueError(f"unknown step {verb!r}")


def set_key(path: Path, key: str, value: Any, *, delete: bool = False) -> None:
    """Set or delete a key of a JSON file, such as `jobs.0.method` or `["files", "a.csv"]`."""
    content = json.loads(path.read_text(encoding="utf-8"))
    parts = json.loads(key) if key.startswith("[") else key.split(".")
    *parents, last = [int(part) if part.isdigit() else part for part in parts]
    inner = content
    for part in parents:
        inner = inner[part]
    if delete:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(content), encoding="utf-8")


def copy(source: Path, target: Path) -> None:
    """Copy a file or a folder."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, dirs_exist_ok=True)
    else:
        shutil.copy2(source, target)  # images.csv has the times of files


def set_array(path: Path, key: str, kind: str, shape: list[int]) -> None:
    """Replace an array of an .npz or .safetensors file by ones of a data type and shape; nan and inf are float32."""
    value = np.ones(shape, "f4") * np.float32(kind) if kind in ("nan", "inf", "7") else np.ones(shape, kind)
    if path.suffix == ".npz":
        with np.load(path) as file:
            arrays = dict(file)
        np.savez_compressed(path, allow_pickle=False, **{**arrays, key: value})
    else:
        save_file({**load_file(path), key: value}, path)


def relist(run: Path) -> None:
    """Update the manifest entries of changed files, as a stranger would."""
    manifest = run / "manifest.json"
    content = json.loads(manifest.read_text())
    for name in content["files"]:
        if (run / name).is_file():
            data = (run / name).read_bytes()
            content["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    manifest.write_text(json.dumps(content))
