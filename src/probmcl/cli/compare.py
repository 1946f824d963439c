"""`probmcl compare`: several methods with one encoder, one budget and one evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from probmcl.cli import command_console, options
from probmcl.data.options import DataChecks, ReadOptions

if TYPE_CHECKING:
    from probmcl.experiments.results import Comparison


def compare(
    data: options.Data = None,
    /,
    *,
    images: options.Images = None,
    read: options.Read = ReadOptions(),
    checks: options.Checks = DataChecks(),
    methods: Annotated[
        str | None,
        Parameter(
            help="all (default), or a list: bce,probmcl:paper,my_losses.py:my_loss; see methods", group=options.METHOD
        ),
    ] = None,
    encoder: options.EncoderName = None,
    weights: options.Weights = None,
    image_size: options.ImageSize = None,
    tune: options.Tune = None,
    epochs: Annotated[
        int | None, Parameter(help="passes over the images, of two views each (default: 6)", group=options.TRAINING)
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="time for everything, as in 2h; it decides the images seen", group=options.TRAINING)
    ] = None,
    seeds: Annotated[int | None, Parameter(help="runs of each method (default: 3)", group=options.TRAINING)] = None,
    trials: Annotated[
        int | None,
        Parameter(help="learning rates and weight decays for each method; 1 is untuned", group=options.TRAINING),
    ] = None,
    probe_epochs: options.ProbeEpochs = None,
    batch_size: options.BatchSize = None,
    augment: options.Augment = None,
    device: options.Device = None,
    workers: options.Workers = None,
    cache: options.Cache = None,
    out: options.Out = None,
    add: Annotated[
        list[Path] | None,
        Parameter(
            help="results.jsonl of another comparison with the same protocol", negative="", group=options.COMPUTE
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        Parameter(
            help="an interrupted comparison to continue; combines only with --device, --workers, --add and --methods",
            group=options.COMPUTE,
        ),
    ] = None,
) -> Comparison:
    """Compare methods fairly: one encoder, the same images seen by each, one evaluation, and a verdict.

    Every method has a row for its own head, if it has one, and a row for a linear probe on its encoder; the probe on
    the frozen encoder is always there. Test images decide nothing. Tables, a plot and the verdict are written into the
    folder; an interrupted comparison continues with --resume, and nothing that is finished is computed again.

    Example: probmcl compare photos/ --methods bce,asl,probmcl --budget 2h

    Example: probmcl compare photos/ --methods all --epochs 6 --seeds 3 --trials 3

    Example: probmcl compare --resume runs/2026-11-15-photos-comparison --add elsewhere/results.jsonl
    """
    from probmcl import api

    return api.compare(
        data,
        images=images,
        read=read,
        checks=checks,
        methods=methods,
        encoder=encoder,
        weights=weights,
        image_size=image_size,
        tune=tune,
        epochs=epochs,
        budget=budget,
        seeds=seeds,
        trials=trials,
        probe_epochs=probe_epochs,
        batch_size=batch_size,
        augment=augment,
        device=device,
        workers=workers,
        cache=cache,
        out=out,
        add=add,
        resume=resume,
        console=command_console(),
    )
