"""`probmcl calibrate`: fit the probabilities and thresholds of a trained model again."""

import warnings
from pathlib import Path

from probmcl.cli.options import Given, Layout, ModelCommand, command_console, own_command_of
from probmcl.settings.model_options import CalibrateOptions

WORDS = {"images": Path | None, "rename": Path | None, "thresholds": str | None}


@own_command_of(ModelCommand, CalibrateOptions, Layout(types=WORDS))
def command(own: ModelCommand, given: Given) -> None:
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
        fitted = load(own.run, device=own.device).calibrate(**given, console=console)
    console.rich.print(to_rich(calibration_table(fitted)))
    for line in fitted.summary():
        console.print(line)
    console.print(
        f"probmcl predict {own.run} and probmcl evaluate {own.run} now use these probabilities and thresholds"
    )
