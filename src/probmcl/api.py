"""The front door, for Python and for the command line: from a folder and a table to a trained model.

`train` is both `probmcl.train` and the command `probmcl train`; importing this file loads no torch.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter, Token

from probmcl import intake
from probmcl.cli import options as flags
from probmcl.run.results import Run


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
    data: flags.Data = None,
    /,
    *,
    images: flags.Images = None,
    format: flags.Format = None,  # noqa: A002  # the name of the flag
    path_column: flags.PathColumn = None,
    labels_column: flags.LabelsColumn = None,
    split_column: flags.SplitColumn = None,
    group: flags.GroupColumn = None,
    weight_column: flags.WeightColumn = None,
    rows: flags.Rows = None,
    blank: flags.Blank = None,
    minus_one: flags.MinusOne = None,
    none_label: flags.NoneLabel = None,
    ignore: flags.Ignore = None,
    hierarchy: flags.HierarchyFile = None,
    range: flags.Range = None,  # noqa: A002  # the name of the flag
    split_file: flags.SplitFile = None,
    folds: flags.Folds = None,
    fold: flags.Fold = None,
    skip_bad: flags.SkipBad = None,
    allow_leaks: flags.AllowLeaks = None,
    method: Annotated[
        str | None,
        Parameter(help="auto (default): the frozen probe, bce and probmcl; or one, see methods", group=flags.WHAT),
    ] = None,
    loss: Annotated[
        str | None, Parameter(help="a loss of your own in place of a method, FILE.py:FUNCTION", group=flags.WHAT)
    ] = None,
    preset: Annotated[
        str | None, Parameter(help="named settings of the method: default, paper …; see methods", group=flags.WHAT)
    ] = None,
    settings: Annotated[
        Mapping[str, Any] | None,
        Parameter(
            name="--set",
            converter=key_values,
            n_tokens=-1,
            consume_multiple=True,
            accepts_keys=False,
            help="settings of the method, KEY=VALUE …",
            group=flags.WHAT,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Parameter(help="a TOML file, or the name of one that comes along; flags go before it", group=flags.WHAT),
    ] = None,
    encoder: flags.EncoderName = None,
    weights: flags.Weights = None,
    image_size: flags.ImageSize = None,
    tune: flags.TuneFlag = None,
    epochs: Annotated[
        int | None, Parameter(help="times over the images; with auto, of two views each", group=flags.HOW)
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="time for all of it, as in 30m; it decides the epochs", group=flags.HOW)
    ] = None,
    probe_epochs: flags.ProbeEpochs = None,
    batch_size: flags.BatchSize = None,
    lr: Annotated[float | None, Parameter(help="learning rate at its top", group=flags.HOW)] = None,
    augment: flags.Augment = None,
    seed: Annotated[int | None, Parameter(help="of everything that is drawn; 0 by default", group=flags.HOW)] = None,
    device: flags.Device = None,
    workers: flags.Workers = None,
    cache: flags.Cache = None,
    out: flags.Out = None,
    resume: Annotated[
        Path | str | None,
        Parameter(help="a run to go on with; takes nothing else but --device, --workers, --loss", group=flags.WHERE),
    ] = None,
) -> Run:
    """Train a model on your images, and keep it only if it beats the simple thing.

    First a linear probe on the untouched encoder is fitted and saved: a usable model within minutes. Then the plan is
    said, the contenders are trained and probed again, and the best on validation is kept. Test images decide nothing.

    Example: probmcl train photos/labels.csv --images photos/ --budget 10m

    Example: probmcl train photos/ --method probmcl --set temperature=0.2 --epochs 10

    Example: probmcl train photos/ --loss my_losses.py:my_loss

    Example: probmcl train xrays.csv --images xrays/ --group "Patient ID" --minus-one unknown Edema=positive

    Example: probmcl train --resume runs/2026-11-15-photos

    Before anything is trained every image is read once, and data that would spoil the run is refused: files that cannot
    be read (--skip-bad), the same image or patient in train and test (--allow-leaks). See probmcl check.

    Under torchrun the same command uses several processes: torchrun --nproc-per-node 2 -m probmcl train photos/
    """
    given = dict(locals())
    from probmcl.runtime.distributed import process_group

    with process_group(device):
        if resume is not None:
            intake.refuse_beside_resume(given, "device", "workers", "loss")
            return _resume(Path(resume), loss, intake.said(device=device, workers=workers))
        if data is None:
            raise ValueError("say what to train on: a table or a folder, as in probmcl train photos/labels.csv")
        keys = intake.said(
            method=_method(method, loss),
            preset=preset,
            settings=dict(settings or {}),
            encoder=intake.said(name=encoder, weights=intake.weights_from(weights), image_size=image_size),
            training=intake.said(epochs=epochs, batch_size=batch_size, learning_rate=lr),
            probe=intake.said(epochs=probe_epochs),
            budget=budget,
            tune=tune,
            augment=augment,
            seed=seed,
            device=device,
            workers=workers,
            cache=intake.cache_folder(cache),
        )
        return _start(Path(data), given, recipe, keys, out)


def _start(
    data: Path, given: Mapping[str, Any], recipe: str | None, keys: dict[str, Any], out: Path | str | None
) -> Run:
    from dataclasses import replace

    from probmcl import encoders, run_folder
    from probmcl.data.audit import prepare_data
    from probmcl.run import train as pipeline
    from probmcl.settings import make_settings

    # What can be refused at once is: reading every image of a large set takes minutes.
    settings = make_settings(intake.with_recipe(recipe, keys))
    encoders.describe_encoder(settings.encoder.name)
    if out is not None:
        run_folder.refuse_used(Path(out))
    console = intake.display_of_the_first()
    admitted = prepare_data(
        data,
        given["images"],
        intake.read_options(given),
        intake.data_checks(given),
        seed=settings.seed,
        workers=settings.workers,
        console=console,
    )
    settings = replace(settings, intensity=admitted.intensity)
    seen = intake.seen_before(admitted.records, settings.encoder.weights)
    for alarm in seen:
        console.print(f"  ALARM: {alarm}")
    alarms = [*(warning.message for warning in admitted.warnings), *seen]
    with (
        intake.folder_for(out, intake.data_name(data)) as folder,
        intake.told_how_to_go_on("train", folder, "run.json", console),
    ):
        return pipeline.train(
            admitted.records,
            settings,
            folder,
            console,
            source=admitted.source.to_json(),
            alarms=alarms,
            fold_of=admitted.fold_of,
        )


def _method(method: str | None, loss: str | None) -> str | None:
    """What is trained: a method, or what a loss of one's own makes of it."""
    if loss is None:
        return method
    if method is not None:
        raise ValueError(f"--method {method} and --loss {loss}: a loss of one's own is a method; give one of both")
    if not loss.partition(":")[0].endswith(".py"):
        raise ValueError(f"--loss {loss}: say FILE.py:FUNCTION, as in --loss my_losses.py:my_loss")
    return loss


def _resume(folder: Path, loss: str | None, where: dict[str, Any]) -> Run:
    from dataclasses import replace

    from probmcl.data.audit import read_again
    from probmcl.data.options import DataSource
    from probmcl.files import read_json
    from probmcl.methods import find_method
    from probmcl.run import train as pipeline
    from probmcl.settings import settings_of_run

    if loss is not None:
        find_method(loss)  # named on the command line, so it may be run

    if not folder.is_dir():
        raise ValueError(f"--resume {folder}: there is no such folder")
    for name in ("config.json", "run.json"):
        if not (folder / name).is_file():
            raise ValueError(f"{folder} is no run that can be resumed: it has no {name}")
    settings = replace(settings_of_run(read_json(folder / "config.json")), **where)
    source = read_json(folder / "run.json")["data"]
    if source is None:
        raise ValueError(f"{folder} was trained from records in memory; go on with probmcl.run.train.resume")
    records, console = read_again(DataSource.parse(source), folder / "split.csv"), intake.display_of_the_first()
    with intake.told_how_to_go_on("train", folder, "run.json", console):
        return pipeline.resume(records, settings, folder, console)
