"""`probmcl calibrate`: fit the probabilities and thresholds of a trained model again."""

import warnings
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from probmcl.cli import options
from probmcl.cli.terminal import command_console
from probmcl.readers.options import ReadOptions


def command(
    run: Annotated[Path, Parameter(help="run folder of the model")],
    data: Annotated[
        Path | None, Parameter(help="labeled images from another site (default: the same held-out images as before)")
    ] = None,
    /,
    *,
    calibration: Annotated[
        Literal["sigmoid", "isotonic", "none"] | None,
        Parameter(help="kind of curve (default: as before); isotonic needs 1,000 positives", group=options.DECISIONS),
    ] = None,
    thresholds: Annotated[
        str | None,
        Parameter(
            help="balanced, f1, precision:P, recall:R, cost:FN,FP or a number (default: as before)",
            group=options.DECISIONS,
        ),
    ] = None,
    rename: Annotated[
        Path | None, Parameter(help="CSV (columns data,model) or JSON file that maps class names", group=options.DATA)
    ] = None,
    images: options.Images = None,
    read: options.Read = ReadOptions(),
    skip_bad: options.SkipBad = None,
    device: options.Device = "auto",
    workers: options.Workers = None,
    batch_size: options.BatchSize = None,
) -> None:
    """Fit the probabilities and thresholds of a trained model again, and store them in its run folder.

    Use it for other thresholds, or for images from another site, where the classes may be more or less frequent. Only
    the validation images of DATA are used; without splits, all of its images are. Images that the model was trained on
    are left out, and classes that DATA lacks keep their curves. The ranking of images, and therefore mAP, does not
    change.

    Example: probmcl calibrate runs/chest --thresholds recall:0.95

    Example: probmcl calibrate runs/chest other_hospital.csv --group patient

    Example: probmcl calibrate runs/chest --thresholds cost:10,1
    """
    from probmcl.inference import load
    from probmcl.report.evaluation_tables import calibration_table
    from probmcl.tables import to_rich

    console = command_console()
    with console.working(), warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: console.print(f"note: {message}")
        fitted = load(run, device=device).calibrate(
            data,
            calibration=calibration,
            thresholds=thresholds,
            rename=rename,
            images=images,
            read=read,
            skip_bad=skip_bad,
            workers=workers,
            batch_size=batch_size,
            console=console,
        )
    console.rich.print(to_rich(calibration_table(fitted)))
    for line in fitted.summary():
        console.print(line)
    console.print(f"probmcl predict {run} and probmcl evaluate {run} now use these probabilities and thresholds")
