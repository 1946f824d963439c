"""From what a person typed to what a run takes: settings, records that can be read, a folder, a display.

Importing this loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmcl.nearest import suggestion

if TYPE_CHECKING:
    from probmcl.data.records import Records
    from probmcl.training.progress import Display

NAMED_WEIGHTS = ("pretrained", "none")


def said(**given: Any) -> dict[str, Any]:
    """What was said at all."""
    return {key: value for key, value in given.items() if value is not None and value != {}}


def reading_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """How data are to be read, from the flags of a command."""
    columns = {name: given[name] for name in ("format", "path_column", "labels_column", "split_column")}
    return said(images=absolute(given["images"]), **columns, group_column=given["group"])


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
    from probmcl.model.reading import read_split

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
    from probmcl.data.processes import default_workers
    from probmcl.recipes import find_recipe
    from probmcl.settings import read_recipe

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


def read_all(
    data: Path, reading: dict[str, Any], skip_bad: float | None, workers: int, display: Display
) -> tuple[Records, dict[str, Any]]:
    """The records of some data, every image of which was read once, and how to read them again."""
    from probmcl.data import describe, read
    from probmcl.data.check import refuse_share

    refuse_share(skip_bad)
    records, skipped = _checked(read(data.resolve(), **reading, missing="keep"), skip_bad, workers, display)
    display.say(describe(records))
    return records, {"data": absolute(data), **reading, "skipped": skipped}


def read_again(source: Mapping[str, Any]) -> Records:
    """The same records, from what `read_all` said of them."""
    from probmcl.data import read

    reading = {key: value for key, value in source.items() if key not in ("data", "skipped")}
    return read(source["data"], **reading, missing="keep").without([entry["path"] for entry in source["skipped"]])


def _checked(
    records: Records, skip_bad: float | None, workers: int, display: Display
) -> tuple[Records, list[dict[str, Any]]]:
    """The records without images that cannot be read, and those; without leave to skip them they are an error."""
    from probmcl.data.check import BadImage, find_bad_images, without_bad
    from probmcl.distributed import broadcast, first

    found: list[tuple[int, str, str]] = []
    if first():
        with display.stage("reading every image once", len(records)) as bar:
            bad = find_bad_images(records, workers=workers, advance=lambda n: bar.advance(n, steps=n))
        found = [(image.row, str(image.path), image.reason) for image in bad]
    bad = [BadImage(row, Path(path), reason) for row, path, reason in broadcast(found)]
    for image in bad if skip_bad is not None else ():
        display.say(f"  skipped: {image.path}: {image.reason}")
    skipped = [{"path": str(image.path), "reason": image.reason} for image in bad]
    return without_bad(records, bad, share=skip_bad), skipped


@contextmanager
def folder_for(out: Path | str | None, name: str) -> Iterator[Path]:
    """The folder of a new run; one that was made here and in which nothing was begun goes again."""
    from probmcl import runs
    from probmcl.distributed import broadcast, first

    if out is not None:
        yield Path(out)
        return
    folder = Path(broadcast(str(runs.new_folder(Path("runs"), name)) if first() else ""))
    try:
        yield folder
    finally:
        if first() and not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def told_how_to_go_on(command: str, folder: Path, begun: str, display: Display) -> Iterator[None]:
    """Say after an interrupt what continues the work, once a file says that it was begun."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (folder / begun).exists():
            display.say(f"to go on from here: probmcl {command} --resume {folder}")
        raise


def display_of_the_first() -> Display:
    """One that speaks in the first process only."""
    from rich.console import Console

    from probmcl.distributed import first
    from probmcl.training.progress import Display

    return Display(Console(quiet=not first()))
