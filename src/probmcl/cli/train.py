"""`probmcl train`: from images and a table to a model."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from probmcl.cli import command_console, options
from probmcl.data.options import DataChecks, ReadOptions

if TYPE_CHECKING:
    from probmcl.run.results import Run


def key_values(_: Any, tokens: Sequence[Token]) -> dict[str, Any]:
    """Parse pairs such as temperature=0.1: a value is read as TOML, or taken as text if it is not TOML."""
    pairs = {}
    for token in tokens:
        key, equals, value = token.value.partition("=")
        if not equals:
            raise ValueError(f"--set {token.value}: expected KEY=VALUE, as in --set temperature=0.1")
        try:
            pairs[key] = tomllib.loads(f"x = {value}")["x"]
        except tomllib.TOMLDecodeError:
            pairs[key] = value
    return pairs


def train(
    data: options.Data = None,
    /,
    *,
    images: options.Images = None,
    read: options.Read = ReadOptions(),
    checks: options.Checks = DataChecks(),
    method: Annotated[
        str | None,
        Parameter(help="auto (default): the frozen probe, bce and probmcl; or one, see methods", group=options.METHOD),
    ] = None,
    loss: Annotated[
        str | None, Parameter(help="your own loss instead of a method, FILE.py:FUNCTION", group=options.METHOD)
    ] = None,
    preset: Annotated[
        str | None, Parameter(help="named settings of the method: default, paper, …; see methods", group=options.METHOD)
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
            group=options.METHOD,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        Parameter(
            help="a TOML file, or the name of one that comes with probmcl; options take precedence",
            group=options.METHOD,
        ),
    ] = None,
    encoder: options.EncoderName = None,
    weights: options.Weights = None,
    image_size: options.ImageSize = None,
    tune: options.Tune = None,
    epochs: Annotated[
        int | None, Parameter(help="passes over the images; with auto, of two views each", group=options.TRAINING)
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="time for the whole run, as in 30m; it decides the epochs", group=options.TRAINING)
    ] = None,
    probe_epochs: options.ProbeEpochs = None,
    batch_size: options.BatchSize = None,
    lr: Annotated[float | None, Parameter(help="peak learning rate", group=options.TRAINING)] = None,
    augment: options.Augment = None,
    seed: Annotated[int | None, Parameter(help="random seed (default: 0)", group=options.TRAINING)] = None,
    device: options.Device = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    out: options.Out = None,
    resume: Annotated[
        Path | None,
        Parameter(
            help="an interrupted run to continue; combines only with --device, --workers and --loss",
            group=options.COMPUTE,
        ),
    ] = None,
) -> Run:
    """Train a model on your images, and keep it only if it beats a linear probe.

    First it fits a linear probe on the frozen encoder and saves it: a usable model within minutes. Then it prints the
    plan, trains the methods, fits a probe on each, and keeps the best on validation. Test images decide nothing.

    Example: probmcl train photos/labels.csv --images photos/ --budget 10m

    Example: probmcl train photos/ --method probmcl --set temperature=0.2 --epochs 10

    Example: probmcl train photos/ --loss my_losses.py:my_loss

    Example: probmcl train xrays.csv --images xrays/ --group "Patient ID" --minus-one unknown Edema=positive

    Example: probmcl train --resume runs/2026-11-15-photos

    Before anything is trained every image is read once, and data that would spoil the run are refused: files that
    cannot be read (--skip-bad), the same image or patient in train and test (--allow-leaks). See probmcl check.

    Under torchrun the same command uses several processes: torchrun --nproc-per-node 2 -m probmcl train photos/
    """
    from probmcl import api

    console = command_console()
    run = api.train(
        data,
        images=images,
        read=read,
        checks=checks,
        method=method,
        loss=loss,
        preset=preset,
        settings=settings,
        recipe=recipe,
        encoder=encoder,
        weights=weights,
        image_size=image_size,
        tune=tune,
        epochs=epochs,
        budget=budget,
        probe_epochs=probe_epochs,
        batch_size=batch_size,
        lr=lr,
        augment=augment,
        seed=seed,
        device=device,
        workers=workers,
        cache=cache,
        out=out,
        resume=resume,
        console=console,
    )
    console.print(f"next: probmcl predict {run.folder} IMAGES --out predictions.csv")
    return run
