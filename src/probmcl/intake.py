"""From what a person typed to what a run takes: settings, how data are read, a folder, a console.

Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmcl.errors import suggestion

if TYPE_CHECKING:
    from probmcl.console import Console
    from probmcl.data.options import DataChecks, ReadOptions
    from probmcl.data.records import Records

NAMED_WEIGHTS = ("pretrained", "none")


def said(**given: Any) -> dict[str, Any]:
    """What was said at all."""
    return {key: value for key, value in given.items() if value is not None and value != {}}


def read_options(given: Mapping[str, Any]) -> ReadOptions:
    """The reading options among the options of a command."""
    from dataclasses import fields

    from probmcl.data.options import ReadOptions

    lists = ("blank", "minus_one", "ignore")
    chosen = said(**{field.name: given[field.name] for field in fields(ReadOptions)})
    chosen |= {
        name: (chosen[name],) if isinstance(chosen[name], str) else tuple(chosen[name])
        for name in chosen.keys() & set(lists)
    }
    return ReadOptions(**chosen | ({"hierarchy": Path(chosen["hierarchy"])} if "hierarchy" in chosen else {}))


def data_checks(given: Mapping[str, Any]) -> DataChecks:
    """The data checks among the options of a command."""
    from dataclasses import fields

    from probmcl.data.options import DataChecks

    chosen = said(**{field.name: given[field.name] for field in fields(DataChecks)})
    return DataChecks(
        **chosen | ({"split_file": Path(chosen["split_file"]).resolve()} if "split_file" in chosen else {})
    )


def cache_folder(given: Path | str | None) -> str | None:
    """Where decoded images are kept, as an absolute path; `auto` means a place of the user's own."""
    from probmcl.data.cache import default_folder

    return str(default_folder()) if str(given) == "auto" else absolute(given)


def refuse_beside_resume(given: Mapping[str, Any], *allowed: str) -> None:
    """An error for flags that have no place beside --resume."""
    names = {"data": "DATA", "settings": "--set"}
    flags = {key: names.get(key, f"--{key.replace('_', '-')}") for key in given}
    found = [flags[key] for key, x in given.items() if x is not None and key not in ("resume", *allowed)]
    if found:
        raise ValueError(
            f"--resume goes on with the data and settings that are there; beside it there is no place for "
            f"{', '.join(found)}, only for {', '.join(flags[key] for key in allowed)}"
        )


def seen_before(records: Records, weights: str | None) -> list[str]:
    """A warning where images that now choose or judge were trained on in the run that the weights come from."""
    from probmcl.inference.reading import read_split

    if weights in (None, "pretrained") or not (Path(weights) / "split.csv").is_file():
        return []
    trained = {path for path, split in read_split(Path(weights) / "split.csv").items() if split == "train"}
    found = []
    for split in ("val", "test"):
        rows = records.rows(split)
        seen = sum(str(records.paths[row].resolve()) in trained for row in rows)
        if seen:
            found.append(
                f"{seen} of {len(rows)} {split} images were trained on in {weights}; "
                f"their scores will be too good. The same --seed or a split column keeps them apart"
            )
    return found


def with_recipe(recipe: str | None, flags: dict[str, Any]) -> dict[str, Any]:
    """What a recipe says, and the flags before it; tables are joined key by key."""
    from probmcl.runtime.workers import default_workers
    from probmcl.settings import find_recipe, read_recipe

    given = read_recipe(find_recipe(recipe)) if recipe else {}
    given = {"workers": default_workers()} | given
    earlier = flags.get("encoder", {}).get("weights")
    if earlier and (Path(earlier) / "config.json").is_file():
        given["encoder"] = _encoder_of(Path(earlier)) | given.get("encoder", {})
    tables = {key: {**given.get(key, {}), **value} for key, value in flags.items() if isinstance(value, dict)}
    return given | flags | tables


def _encoder_of(run: Path) -> dict[str, Any]:
    from probmcl.files import read_json

    size = read_json(run / "preprocessing.json")["size"]
    return {"name": read_json(run / "config.json")["encoder"]["name"], "image_size": size}


def absolute(path: Path | str | None) -> str | None:
    """A path that means the same from anywhere."""
    return None if path is None else str(Path(path).resolve())


def weights_from(given: Path | str | None) -> str | None:
    """As they were named, or as an absolute path."""
    if given is None or str(given) in NAMED_WEIGHTS:
        return None if given is None else str(given)
    if not Path(given).exists():
        near = suggestion(str(given), NAMED_WEIGHTS)
        raise ValueError(f"--weights {given}: there is no such file or run; {near}")
    return absolute(given)


def data_name(data: Path) -> str:
    """What data are called: their folder."""
    return data.resolve().name if data.is_dir() else data.resolve().parent.name


@contextmanager
def folder_for(out: Path | str | None, name: str) -> Iterator[Path]:
    """The folder of a new run; one that was made here and in which nothing was begun goes again."""
    from probmcl import run_folder
    from probmcl.runtime.distributed import broadcast, is_main_process

    if out is not None:
        yield Path(out)
        return
    folder = Path(broadcast(str(run_folder.new_folder(Path("runs"), name)) if is_main_process() else ""))
    try:
        yield folder
    finally:
        if is_main_process() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def told_how_to_go_on(command: str, folder: Path, begun: str, console: Console) -> Iterator[None]:
    """Say after an interrupt what continues the work, once a file says that it was begun."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (folder / begun).exists():
            console.print(f"to go on from here: probmcl {command} --resume {folder}")
        raise


def display_of_the_first() -> Console:
    """One that speaks in the first process only."""
    from rich.console import Console as RichConsole

    from probmcl.console import Console
    from probmcl.runtime.distributed import is_main_process

    return Console(RichConsole(quiet=not is_main_process()))
