"""Recipes: TOML files with the settings of published runs."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from probmcl.errors import OptionError, SettingsError, suggestion

# The folders of recipes in an installed package and in a source tree.
_FOLDERS = tuple(Path(__file__).resolve().parents[level] / "recipes" for level in (1, 3))


def read_recipe(path: Path) -> dict[str, Any]:
    """Read a TOML file with the keys of `make_settings`."""
    with path.open("rb") as file:
        try:
            return tomllib.load(file)
        except tomllib.TOMLDecodeError as error:
            raise SettingsError(f"{path}: {error}") from error


def recipes() -> dict[str, Path]:
    """Return the paths of this package's recipes by name.

    >>> len(recipes()), [name for name in recipes() if "kmcl" in name]
    (17, ['adp-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-m-224'])
    """
    for folder in _FOLDERS:
        if folder.is_dir():
            return {path.stem: path for path in sorted(folder.glob("*.toml"))}
    return {}


def find_recipe(name_or_path: str | Path) -> Path:
    """Return the path of a recipe, given its path or its name in `recipes()`; an existing file takes precedence.

    >>> find_recipe("coco-tresnet-m-224").name
    'coco-tresnet-m-224.toml'
    """
    path = Path(name_or_path)
    by_name = recipes()
    if path.is_file():
        return path
    if str(name_or_path) in by_name:
        return by_name[str(name_or_path)]
    problem = "is a folder" if path.is_dir() else "is neither a file nor a probmcl recipe"
    raise OptionError("recipe", name_or_path, f"{problem}; {suggestion(path.stem, by_name)}")
