"""Recipes by name: the TOML files of the published runs, wherever this package is installed."""

from __future__ import annotations

from pathlib import Path

from probmcl.errors import suggestion

_HERE = Path(__file__).resolve().parent
_FOLDERS = (_HERE / "recipes", _HERE.parent.parent / "recipes")  # of an installed package, of a source tree


def recipes() -> dict[str, Path]:
    """The recipes that come with this package, by name.

    >>> len(recipes()), [name for name in recipes() if "kmcl" in name]
    (17, ['adp-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-l-448', 'coco-kmcl-tresnet-m-224'])
    """
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def find_recipe(name_or_path: str | Path) -> Path:
    """The file of a recipe, given by its path or by its name in `recipes()`; a file that exists comes first.

    >>> find_recipe("coco-tresnet-m-224").name
    'coco-tresnet-m-224.toml'
    """
    path, named = Path(name_or_path), recipes()
    if path.is_file():
        return path
    if str(name_or_path) in named:
        return named[str(name_or_path)]
    kind = "is a folder" if path.is_dir() else "is neither a file nor a recipe that comes with probmcl"
    raise ValueError(f"--recipe: {str(name_or_path)!r} {kind}; {suggestion(path.stem, named)}")
