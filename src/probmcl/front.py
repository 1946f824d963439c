"""The front door, for Python and for the command line: from a folder and a table to a trained model.

`train` is both `probmcl.train` and the command `probmcl train`; importing this file loads no torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter, Token

from probmcl.nearest import suggestion
from probmcl.results import Run

if TYPE_CHECKING:
    from probmcl.data.records import Records
    from probmcl.training.progress import Display

NAMED_WEIGHTS = ("pretrained", "none")

DATA = Group.create_ordered("Data")
WHAT = Group.create_ordered("What is trained")
HOW = Group.create_ordered("How")
WHERE = Group.create_ordered("Where")


def key_values(_: Any, tokens: Sequence[Token]) -> dict[str, Any]:
    """Pairs such as temperature=0.1, each value as TOML reads it, and otherwise as it stands."""
    pairs = {}
    for token in tokens:
        key, equals, value = token.value.partition("=")
        if not equals:
            raise ValueError(f"--set {token.value}: say KEY=VALUE, as in --set temperature=0.1")
        pairs[key] = _value(value)
    return pairs


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def train(
    data: Annotated[
        Path | str | None, Parameter(help="a table, or a folder with one; MS-COCO, PASCAL VOC or ADP", group=DATA)
    ] = None,
    /,
    *,
    images: Annotated[
        Path | str | None, Parameter(help="where the table's paths begin; by default at the table", group=DATA)
    ] = None,
    format: Annotated[  # noqa: A002  # the name of the flag
        str | None, Parameter(help="table, coco, voc or adp, where DATA could be two of them", group=DATA)
    ] = None,
    path_column: Annotated[str | None, Parameter(help="the column of paths", group=DATA)] = None,
    labels_column: Annotated[str | None, Parameter(help="the column of label lists", group=DATA)] = None,
    split_column: Annotated[str | None, Parameter(help="the column of train, val and test", group=DATA)] = None,
    group: Annotated[
        str | None, Parameter(help="a column (patient, slide) whose images stay in one split", group=DATA)
    ] = None,
    skip_bad: Annotated[
        float | None, Parameter(help="go on without unreadable images, up to this share of all", group=DATA)
    ] = None,
    method: Annotated[
        str | None, Parameter(help="auto (default): the frozen probe, bce and probmcl; or one, see methods", group=WHAT)
    ] = None,
    preset: Annotated[str | None, Parameter(help="named settings of the method: default, paper", group=WHAT)] = None,
    settings: Annotated[
        Mapping[str, Any] | None,
        Parameter(
            name="--set",
            converter=key_values,
            n_tokens=-1,
            consume_multiple=True,
            accepts_keys=False,
            help="settings of the method, KEY=VALUE …",
            group=WHAT,
        ),
    ] = None,
    recipe: Annotated[
        str | None, Parameter(help="a TOML file, or the name of one that comes along; flags go before it", group=WHAT)
    ] = None,
    encoder: Annotated[str | None, Parameter(help="any timm model; see encoders", group=WHAT)] = None,
    weights: Annotated[
        Path | str | None,
        Parameter(help="pretrained (default), none, a safetensors file, or an earlier run", group=WHAT),
    ] = None,
    image_size: Annotated[
        int | None, Parameter(help="side of the square input; by default the encoder's", group=WHAT)
    ] = None,
    tune: Annotated[
        Literal["all", "last", "none"] | None,
        Parameter(help="how much of the encoder learns: by default last on a CPU, all on a GPU", group=HOW),
    ] = None,
    epochs: Annotated[
        int | None, Parameter(help="times over the images; with auto, of two views each", group=HOW)
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="time for all of it, as in 30m; it decides the epochs", group=HOW)
    ] = None,
    probe_epochs: Annotated[int | None, Parameter(help="of the linear probes", group=HOW)] = None,
    batch_size: Annotated[int | None, Parameter(help="images in a step, of all processes", group=HOW)] = None,
    lr: Annotated[float | None, Parameter(help="learning rate at its top", group=HOW)] = None,
    augment: Annotated[
        Literal["light", "paper", "none"] | None, Parameter(help="how views are made; light by default", group=HOW)
    ] = None,
    seed: Annotated[int | None, Parameter(help="of everything that is drawn; 0 by default", group=HOW)] = None,
    device: Annotated[str | None, Parameter(help="auto, cpu, cuda or mps", group=WHERE)] = None,
    workers: Annotated[int | None, Parameter(help="processes that decode; one a core by default", group=WHERE)] = None,
    out: Annotated[
        Path | str | None, Parameter(help="a new or empty folder; by default runs/DATE-NAME", group=WHERE)
    ] = None,
    resume: Annotated[
        Path | str | None,
        Parameter(help="a run to go on with; takes nothing else but --device, --workers", group=WHERE),
    ] = None,
) -> Run:
    """Train a model on your images, and keep it only if it beats the simple thing.

    First a linear probe on the untouched encoder is fitted and saved: a usable model within minutes. Then the plan is
    said, the contenders are trained and probed again, and the best on validation is kept. Test images decide nothing.

    Example: probmcl train photos/labels.csv --images photos/ --budget 10m

    Example: probmcl train photos/ --method probmcl --set temperature=0.2 --epochs 10

    Example: probmcl train --resume runs/2026-11-15-photos

    Under torchrun the same command uses several processes: torchrun --nproc-per-node 2 -m probmcl train photos/
    """
    given = dict(locals())
    from probmcl.distributed import started

    with started(device):
        if resume is not None:
            _refuse_beside_resume(given)
            return _resume(Path(resume), _said(device=device, workers=workers))
        if data is None:
            raise ValueError("say what to train on: a table or a folder, as in probmcl train photos/labels.csv")
        reading = _said(
            images=_absolute(images),
            format=format,
            path_column=path_column,
            labels_column=labels_column,
            split_column=split_column,
            group_column=group,
        )
        flags = _said(
            method=method,
            preset=preset,
            settings=dict(settings or {}),
            encoder=_said(name=encoder, weights=_weights(weights), image_size=image_size),
            training=_said(epochs=epochs, batch_size=batch_size, learning_rate=lr),
            probe=_said(epochs=probe_epochs),
            budget=budget,
            tune=tune,
            augment=augment,
            seed=seed,
            device=device,
            workers=workers,
        )
        return _start(Path(data), reading, skip_bad, recipe, flags, out)


def _start(
    data: Path,
    reading: dict[str, Any],
    skip_bad: float | None,
    recipe: str | None,
    flags: dict[str, Any],
    out: Path | str | None,
) -> Run:
    from probmcl import encoders, pipeline, runs
    from probmcl.data import describe, read
    from probmcl.data.check import refuse_share
    from probmcl.settings import make_settings

    # What can be refused at once is: reading every image of a large set takes minutes.
    settings = make_settings(_given(recipe, flags))
    encoders.about(settings.encoder.name)
    refuse_share(skip_bad)
    if out is not None:
        runs.refuse_used(Path(out))
    display = _display()
    reading = reading | {"seed": settings.seed}
    records = read(data.resolve(), **reading, missing="keep")
    records, skipped = _checked(records, skip_bad, settings.workers, display)
    display.say(describe(records))
    alarms = list(_seen_before(records, settings.encoder.weights))
    for alarm in alarms:
        display.say(f"  ALARM: {alarm}")
    source = {"data": _absolute(data), **reading, "skipped": skipped}
    name = data.resolve().name if data.is_dir() else data.resolve().parent.name
    with _folder(out, name) as folder, _told_how_to_go_on(folder, display):
        return pipeline.train(records, settings, folder, display, source=source, alarms=alarms)


def _resume(folder: Path, where: dict[str, Any]) -> Run:
    from dataclasses import replace

    from probmcl import pipeline
    from probmcl.data import read
    from probmcl.files import read_json
    from probmcl.settings import settings_of_run

    if not folder.is_dir():
        raise ValueError(f"--resume {folder}: there is no such folder")
    for name in ("config.json", "run.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no run that can be resumed: it has no {name}")
    settings = replace(settings_of_run(read_json(folder / "config.json")), **where)
    source = read_json(folder / "run.json")["data"]
    if source is None:
        raise ValueError(f"{folder} was trained from records in memory; go on with probmcl.pipeline.resume")
    skipped = [entry["path"] for entry in source.pop("skipped")]
    records = read(source.pop("data"), **source, missing="keep").without(skipped)
    display = _display()
    with _told_how_to_go_on(folder, display):
        return pipeline.resume(records, settings, folder, display)


def _given(recipe: str | None, flags: dict[str, Any]) -> dict[str, Any]:
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


def _seen_before(records: Records, weights: str | None) -> Iterator[str]:
    """A warning where images that now choose or judge were trained on in the run that the weights come from."""
    from probmcl.model.reading import read_split

    if weights in (None, "pretrained") or not (Path(weights) / "split.csv").is_file():
        return
    trained = {path for path, split in read_split(Path(weights) / "split.csv").items() if split == "train"}
    for split in ("val", "test"):
        rows = records.rows(split)
        seen = sum(str(records.paths[row].resolve()) in trained for row in rows)
        if seen:
            yield (
                f"{seen} of {len(rows)} {split} images were trained on in {weights}; "
                f"their scores will be too good. The same --seed or a split column keeps them apart"
            )


@contextmanager
def _folder(out: Path | str | None, name: str) -> Iterator[Path]:
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
def _told_how_to_go_on(folder: Path, display: Display) -> Iterator[None]:
    """Say after an interrupt what continues the run."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if (folder / "run.json").exists():
            display.say(f"to go on from here: probmcl train --resume {folder}")
        raise


def _display() -> Display:
    """One that speaks in the first process only."""
    from rich.console import Console

    from probmcl.distributed import first
    from probmcl.training.progress import Display

    return Display(Console(quiet=not first()))


def _refuse_beside_resume(given: Mapping[str, Any]) -> None:
    names = {"data": "DATA", "settings": "--set"}
    allowed = {"resume", "device", "workers"}
    found = [
        names.get(key, f"--{key.replace('_', '-')}") for key, x in given.items() if x is not None and key not in allowed
    ]
    if found:
        raise ValueError(
            f"--resume goes on with the data and settings of the run; beside it there is no place for "
            f"{', '.join(found)}, only for --device and --workers"
        )


def _weights(given: Path | str | None) -> str | None:
    """As they were named, or as an absolute path."""
    if given is None or str(given) in NAMED_WEIGHTS:
        return None if given is None else str(given)
    if not Path(given).exists():
        near = suggestion(str(given), NAMED_WEIGHTS)
        raise ValueError(f"--weights {given}: there is no such file or run; {near}")
    return _absolute(given)


def _absolute(path: Path | str | None) -> str | None:
    return None if path is None else str(Path(path).resolve())


def _said(**given: Any) -> dict[str, Any]:
    """What was said at all."""
    return {key: value for key, value in given.items() if value is not None and value != {}}
