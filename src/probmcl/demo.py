"""The demo: scenes of handwritten digits, one small encoder from scratch, four ways to train it on one budget."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from probmcl import runs
from probmcl.data.digits import write_digits
from probmcl.data.records import Records
from probmcl.methods import find_method
from probmcl.pipeline import Run, train
from probmcl.probing import ProbeSettings
from probmcl.settings import EncoderSettings, Settings, method_settings
from probmcl.training.optim import Training
from probmcl.training.progress import Display

TRAIN, VAL, TEST = 2000, 400, 800
"""Scenes of each split."""

IMAGES_SEEN = 12_000
"""Views that each method may look at: the unit in which the budgets are equal."""

LEARNING_RATE = 3e-3
"""For this encoder from scratch: the better of 3e-3 and 1e-2 on validation, tried with ProbMCL."""


TITLES = {
    "probe": "Untrained encoder: a linear probe on what random weights see",
    "probmcl": "ProbMCL: contrast between mixtures, then a linear probe",
    "asl": "ASL: end to end, then a linear probe beside its own head",
    "bce": "BCE: end to end, then a linear probe beside its own head",
}


def run_demo(folder: Path, display: Display) -> Iterator[tuple[str, Run]]:
    """Write the scenes, then train the untrained encoder's probe, ProbMCL, ASL and BCE, each into its own folder."""
    runs.claim(folder)
    display.say(
        f"Scenes of handwritten digits: 10 classes, 64 × 64 pixels, {TRAIN:,} to train on, {VAL} + {TEST} to judge by"
    )
    with display.stage("drawing scenes", TRAIN + VAL + TEST) as bar:
        records = write_digits(
            folder / "data", train=TRAIN, val=VAL, test=TEST, progress=lambda _: bar.advance(images=1)
        )
    for method, title in TITLES.items():
        display.say(title)
        yield method, train(records, demo_settings(method, records), folder / method, display)


def demo_settings(method: str, records: Records) -> Settings:
    """One method on the demo's budget."""
    per_epoch = len(records.rows("train")) * find_method(method).n_views
    return Settings(
        method=method,
        method_settings=method_settings(method),
        encoder=EncoderSettings("test_resnet", image_size=64),
        training=Training(
            epochs=IMAGES_SEEN // per_epoch,
            batch_size=128 // find_method(method).n_views,
            learning_rate=LEARNING_RATE,
        ),
        probe=ProbeSettings(epochs=30, views=1, weight_decays=(0.1, 1.0, 10.0, 100.0)),
    )


def comparison(method: str, run: Run) -> list[dict[str, Any]]:
    """What a run reached, a row for each of its classifiers, as fractions on the test split."""
    return [
        {
            "method": "untrained encoder" if method == "probe" else method,
            "classifier": name,
            "kept": candidate is run.kept,
            "validation_mAP": candidate.validation["mAP"],
            "mAP": candidate.test["mAP"],
            "CF1": candidate.test["at"]["0.5"]["CF1"],
            "OF1": candidate.test["at"]["0.5"]["OF1"],
            "seconds": round(run.seconds, 1),
        }
        for name, candidate in run.candidates.items()
    ]


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The same for people, in percent."""
    shown = Table(
        title=f"test split, percent; each method has seen {IMAGES_SEEN:,} views; one seed", title_justify="left"
    )
    for column in ("method", "classifier", "mAP", "CF1", "OF1", "seconds"):
        shown.add_column(column, justify="left" if column in ("method", "classifier") else "right")
    for row in rows:
        percent = [f"{100 * row[key]:.1f}" for key in ("mAP", "CF1", "OF1")]
        shown.add_row(row["method"], row["classifier"], *percent, f"{row['seconds']:.0f}")
    return shown
