"""The report of a run: its content as plain data, and the pictures that the page shows."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from probmcl.console import Console, ProgressBar
from probmcl.errors import ProbmclError
from probmcl.evaluation.bootstrap import bootstrapped_map, centered, reliable_interval, resamples
from probmcl.inference import Model, load
from probmcl.report import curves, embedding, gallery, pictures, training
from probmcl.report.run_data import RunData, may_read_images, read_run_data
from probmcl.report.scores import ScoredRun, measurements
from probmcl.report.verdict import judge

SCHEMA = 1
"""Version of the content, which is the JSON file next to the page."""

STEPS = 6
Picture = tuple[str, int, int]


@dataclass(frozen=True)
class RunReport:
    """The content of a report, and its pictures as data URIs.

    Attributes:
        content: everything on the page except pictures, as plain data.
        photographs: the test images, by path relative to the folder of all images.
        neighbors: the training images, by path.
        heat: a heat map for each image and label.
    """

    content: dict[str, Any]
    photographs: Mapping[str, Picture] = field(default_factory=dict)
    neighbors: Mapping[str, Picture] = field(default_factory=dict)
    heat: Mapping[tuple[str, str], str] = field(default_factory=dict)

    @property
    def pictures(self) -> int:
        """The number of photographs on the page."""
        return len(self.photographs) + len(self.neighbors)


def run_report(
    folders: Sequence[Path | str],
    *,
    images: bool = True,
    device: str = "auto",
    console: Console | None = None,
    notes: Console | None = None,
) -> RunReport:
    """Gather the report of the first run, with a summary of all runs if there are several.

    Args:
        folders: run folders; the first is described in detail.
        images: whether the page shows photographs.
        device: device that computes features and heat maps.
        console: prints progress.
        notes: prints the folders that images are read from, before they are read (default: not printed).
    """
    console = console or Console.delayed()
    with console.progress("writing the report", STEPS + len(folders) - 1) as bar:
        model = load(folders[0], device=device)
        run = read_run_data(model, Console.quiet())
        run = replace(run, reads_images=may_read_images(run, console, notes or Console.quiet()))
        report = _gather(run, model, images, bar)
        others = []
        for folder in folders[1:]:
            others.append(read_run_data(load(folder, device=device), Console.quiet()))
            bar.advance()
    if others:
        report.content["runs"] = [_summary(other, run) for other in (run, *others)]
    return report


def _gather(run: RunData, model: Model, images: bool, bar: ProgressBar) -> RunReport:
    scored = ScoredRun(run)
    headline, classes = scored.headline(), scored.classes()
    bar.advance()
    groups = gallery.choose_images(run)
    shown = sorted({image.row for group in groups for image in group.images})
    features = embedding.embed_test_images(run, model, shown, Console.quiet())
    bar.advance()
    described = [gallery.describe_group(run, group) for group in groups]
    for group, entry in zip(groups, described, strict=True):
        _add_neighbors(run, features, group, entry)
    content = {
        "schema": SCHEMA,
        "name": run.name,
        "kept": run.metadata.kept,
        "frozen_kept": run.frozen_kept,
        "calibrated": run.calibration is not None,
        "verdict": asdict(judge(measurements(run, headline, classes))),
        "headline": headline,
        "classes": classes,
        "gallery": {"groups": described, "has_neighbors": run.training is not None, "heat_maps": ""},
        "curves": curves.curves(run, classes),
        "label_pairs": curves.label_pairs(run),
        "embedding": embedding.embedding_map(run, features),
        "data": training.data_summary(run),
        "training": {
            "curves": training.learning_curves(run),
            "candidates": training.candidates(run),
            "cost": training.cost(run, model),
        },
        "runs": None,
        "comparison": None,
        "reproduction": training.reproduction(run),
    }
    bar.advance()
    report = _add_pictures(run, model, groups, content, bar) if images and run.reads_images else RunReport(content)
    content["photographs"] = report.pictures
    return report


def _add_neighbors(
    run: RunData, features: embedding.Embedding | None, group: gallery.GalleryGroup, entry: dict[str, Any]
) -> None:
    for shown, image in zip(group.images, entry["images"], strict=True):
        feature = None if features is None else features.of(shown.row)
        image["nearest"] = []
        if run.training is not None and feature is not None:
            image["nearest"] = embedding.nearest_training_images(run, feature)


def _add_pictures(
    run: RunData, model: Model, groups: Sequence[gallery.GalleryGroup], content: dict[str, Any], bar: ProgressBar
) -> RunReport:
    """Add photographs, training images and heat maps. Files that cannot be found or read are left out."""
    intensity = model.preprocessing.intensity
    entries = [image for group in content["gallery"]["groups"] for image in group["images"]]
    large = _thumbnails([entry["path"] for entry in entries], pictures.LARGE, run.root, intensity)
    bar.advance()
    nearest = [image["path"] for entry in entries for image in entry["nearest"]]
    small = _thumbnails(nearest, pictures.SMALL, run.root, intensity)
    bar.advance()
    found = [entry for entry in entries if entry["path"] in large]
    try:
        paths = [run.root / entry["path"] for entry in found]
        maps = gallery.heat_maps(model, paths, [entry["class"] for entry in found], Console.quiet()) if found else []
    except ProbmclError as error:  # for example, an encoder without feature maps
        maps, content["gallery"]["heat_maps"] = [], str(error)
    heat = {
        (entry["path"], entry["class"]): pictures.heat_map_image(heat)
        for entry, heat in zip(found, maps, strict=False)
        if heat is not None
    }
    bar.advance()
    return RunReport(content, large, small, heat)


def _thumbnails(paths: Sequence[str], side: int, root: Path, intensity: Any) -> dict[str, Picture]:
    made = {path: pictures.thumbnail(root / path, side, intensity) for path in dict.fromkeys(paths)}
    return {path: picture for path, picture in made.items() if picture is not None}


def _summary(run: RunData, first: RunData) -> dict[str, Any]:
    """Return the scores of a run and, if it has the same test labels as the first run, the difference from it."""
    scored = ScoredRun(run)
    headline = scored.headline()
    verdict = judge(measurements(run, headline, scored.classes()))
    names = [Path(path).name for path in run.test.paths]
    same = run.names == first.names and names == [Path(path).name for path in first.test.paths]
    return {
        "name": run.name,
        "kept": run.metadata.kept,
        "encoder": run.settings.encoder.name,
        "verdict": verdict.decision,
        "mAP": headline["mAP"],
        "mAP_interval": headline["mAP_interval"],
        "macro_auroc": headline["macro_auroc"],
        "CF1": headline["CF1"],
        "calibration_error": headline["calibration_error"],
        "test_images": headline["images"],
        "seconds": run.metadata.seconds,
        "difference": _difference(run, first) if same and run is not first else None,
    }


def _difference(run: RunData, first: RunData) -> dict[str, Any] | None:
    """Return the difference in mAP from the first run, paired over the same resamples; None if one has no mAP."""
    if run.evaluation["mAP"] is None or first.evaluation["mAP"] is None:
        return None
    weights = resamples(len(run.test.paths), run.test.group, draws=400)
    ours, theirs = (bootstrapped_map(*data.test.entries, weights) for data in (run, first))
    mean = run.evaluation["mAP"] - first.evaluation["mAP"]
    interval = reliable_interval(centered(ours - theirs, mean))
    return {"mAP": mean, "interval": None if interval is None else list(interval)}
