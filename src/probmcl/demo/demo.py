"""The demo: three methods train a small encoder from scratch on scenes of handwritten digits, with equal budgets."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rich.table

from probmcl.audit.prepare import PreparedData
from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.demo.digits import write_digits
from probmcl.methods import find_method
from probmcl.readers.options import DataSource, ReadOptions
from probmcl.run.results import Run
from probmcl.run.train import RunControl, all_candidates, train_run
from probmcl.settings import EncoderSettings, ProbeSettings, Settings, TrainingJob, method_settings
from probmcl.store import run_folder
from probmcl.store.evaluation import LEGEND
from probmcl.tables import Column, Table, percent, to_rich
from probmcl.training.optimizer import Training

METHODS = ("probmcl", "asl", "bce")
TRAIN, VAL, TEST = 2000, 400, 800  # number of scenes in each split
IMAGES_SEEN = 12_000  # number of views each method is trained on
LEARNING_RATE = 3e-3  # the better of 3e-3 and 1e-2 for ProbMCL on validation


def run_demo(folder: Path, console: Console) -> Run:
    """Write the scenes to a folder, fit a probe on the untrained encoder, and train ProbMCL, ASL and BCE."""
    run_folder.refuse_used(folder)
    console.print(
        f"scenes of handwritten digits: 10 classes, 64 × 64 pixels; train {TRAIN:,} · val {VAL:,} · test {TEST:,}"
    )
    data = folder / "data"
    with console.progress("drawing scenes", TRAIN + VAL + TEST) as bar:
        records = write_digits(data, train=TRAIN, val=VAL, test=TEST, progress=lambda _: bar.advance(images=1))
    source = DataSource.of(data / "labels.csv", None, ReadOptions())
    prepared = PreparedData.of(records, source)
    control = RunControl(test=all_candidates)  # by default, only the kept candidate and the frozen probe are tested
    return train_run(prepared, demo_settings(records), folder / "run", console, control)


def demo_settings(records: Records) -> Settings:
    """Return the settings of the demo. All methods use the same encoder and number of views."""
    images = len(records.rows("train"))
    jobs = [_job(method, images) for method in METHODS]
    encoder = EncoderSettings("test_resnet", weights=None, image_size=64)
    probe = ProbeSettings(epochs=30, views=1, weight_decays=(0.1, 1.0, 10.0, 100.0))
    return Settings(method="demo", jobs=tuple(jobs), encoder=encoder, probe=probe, tune="all")


def _job(method: str, images: int) -> TrainingJob:
    """Return the training of a method on this number of images, for as many epochs as `IMAGES_SEEN` allows."""
    n_views = find_method(method).n_views
    views_per_epoch = images * n_views
    if IMAGES_SEEN % views_per_epoch:
        raise ValueError(
            f"scenes × views, {images} × {n_views}, must divide {IMAGES_SEEN:,}, the number of views per method"
        )
    epochs = IMAGES_SEEN // views_per_epoch
    training = Training(epochs=epochs, batch_size=128 // n_views, learning_rate=LEARNING_RATE)
    return TrainingJob(method, method_settings(method), training)


def comparison(run: Run) -> list[dict[str, Any]]:
    """Return the scores of all tested classifiers in a run, as fractions."""
    rows = []
    for candidate in run.candidates.values():
        test = candidate.test
        if test is None:
            continue
        row = {
            "classifier": candidate.name,
            "kept": candidate.id == run.kept.id,
            "validation_mAP": candidate.validation.mAP,
            "mAP": test.mAP,
            "chance": test.chance,
            "macro_auroc": test.macro_auroc,
            "CF1": test.at.half.CF1,
            "OF1": test.at.half.OF1,
            "seconds": round(candidate.seconds, 1),
        }
        rows.append(row)
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> rich.table.Table:
    """Return a table of the scores in percent; `rows` are those of `comparison`."""
    columns = [Column.of_names("classifier")]
    columns += [Column(header) for header in ("mAP", "AUROC", "CF1", "OF1", "seconds")]
    cells = []
    for row in rows:
        scores = [percent(row[key]) for key in ("mAP", "macro_auroc", "CF1", "OF1")]
        cells.append([row["classifier"], *scores, f"{row['seconds']:.0f}"])
    chance = percent(rows[0]["chance"])
    title = f"test scores in percent (chance mAP {chance}), one seed, {IMAGES_SEEN:,} views"
    return to_rich(Table(title, columns, cells, LEGEND, framed=True))
