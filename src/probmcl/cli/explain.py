"""`probmcl explain`: show which parts of images labels were predicted from."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from probmcl.cli.options import Given, Layout, ModelCommand, command_console, own_command_of
from probmcl.errors import counted, listed, one_line
from probmcl.settings.declaration import Option
from probmcl.settings.model_options import ExplainedLabels, ExplainOptions

if TYPE_CHECKING:
    from probmcl.explain import Explanations
    from probmcl.inference import Model

MAPS, MAPS_AGAINST = "maps.npz", "maps-against.npz"


@dataclass(frozen=True)
class ExplainCommand(ModelCommand):
    """What only the command has."""

    _: KW_ONLY
    out: Annotated[Path, Option("new or empty folder for the pictures and maps")]
    against: Annotated[Path | None, Option("second run, shown below the first for the same labels")] = None


LAYOUT = Layout(
    types={"images": list[str], "labels": list[str]},
    follows={"against": "labels", "device": "threshold"},
    has_groups=False,
)


@own_command_of(ExplainCommand, ExplainOptions, LAYOUT)
def command(own: ExplainCommand, given: Given) -> None:
    """Show which parts of images labels were predicted from, as Grad-CAM heat maps.

    The folder gets a PNG file for each image: the photograph and, for each label, its heat map and probability. Labels
    in bold are assigned by the model. Of more than 24 labels, the most probable are drawn. The file maps.npz has all
    maps as numbers, one row per map, in the arrays path, label, probability and maps. A map usually has 1/32 of the
    width and height of the model's input.

    With --against, a second row has the maps of another run for the same labels, as in Figure 3 of the paper. By
    default, these are the labels that at least one of the two runs assigns.

    A heat map shows what a score depends on, not where an object ends. Its largest value is always shown in the same
    color, so colors cannot be compared between maps; use maps.npz for that.

    Example: probmcl explain runs/2026-11-15-photos new/a.jpg new/b.jpg --out explained

    Example: probmcl explain runs/2026-11-15-photos new/ --labels dog person --out explained

    Example: probmcl explain runs/asl new/ --against runs/probmcl --out figure_3
    """
    from probmcl.explain.sheet import write_sheets
    from probmcl.inference import load
    from probmcl.run.run_files import drawable
    from probmcl.store.run_folder import refuse_used

    refuse_used(own.out)
    labels = given.get("labels", ["decided"])
    console = command_console(stderr=True)
    folders = _folders_by_caption(own.run, own.against)
    models = {caption: load(folder, device=own.device) for caption, folder in folders.items()}
    given["labels"] = _labels(labels, list(models.values()))
    explained = {caption: model.explain(**given, console=console) for caption, model in models.items()}
    if labels == ["decided"]:
        explained = _only_decided(explained)

    first_model = next(iter(models.values()))
    drawable_names = {name: drawable(name, number) for number, name in enumerate(first_model.names)}
    count = len(next(iter(explained.values())))  # the same for all runs
    with console.progress("drawing", count) as bar:
        errors = write_sheets(own.out, explained, drawable_names, lambda: bar.advance(1))
    for file_name, explanations in zip((MAPS, MAPS_AGAINST), explained.values(), strict=False):
        explanations.to_npz(own.out / file_name)
    console.print(f"pictures of {counted(count - len(errors), 'image')} and {MAPS}: {own.out}")
    if errors:
        reasons = listed([f"{one_line(path)}: {reason}" for path, reason in errors.items()])
        message = "\n".join([f"{len(errors):,} of {counted(count, 'image')} could not be read:", *reasons])
        if len(errors) == count:
            raise ValueError(message)
        console.print(message)


def _folders_by_caption(run: Path, against: Path | None) -> dict[str, Path]:
    """Return the run folders by their captions, which are the names of the folders if they differ."""
    if against is None:
        return {run.name: run}
    if run.resolve() == against.resolve():
        raise ValueError(f"--against {against} is the same run; choose another one")
    run_name, against_name = run.resolve().name, against.resolve().name
    if run_name == against_name:
        return {str(run): run, str(against): against}
    return {run_name: run, against_name: against}


def _labels(labels: list[str], models: "list[Model]") -> ExplainedLabels:
    """Return the labels to explain; for two runs, the classes of both are needed to compare decisions."""
    if labels not in (["decided"], ["all"]):
        return labels
    if len(models) == 1:
        return "decided" if labels == ["decided"] else "all"
    shared = [name for name in models[0].names if name in models[1].names]
    if not shared:
        raise ValueError("the two runs have no class in common")
    return shared


def _only_decided(runs: "dict[str, Explanations]") -> "dict[str, Explanations]":
    """Keep the maps of the labels that at least one of the runs assigns to an image."""
    from probmcl.explain import Explanations

    decided_labels: list[set[str]] = []  # of each image
    for explanations_of_image in zip(*runs.values(), strict=True):
        labels: set[str] = set()
        for explanation in explanations_of_image:
            labels.update(explanation.decided)
        decided_labels.append(labels)

    kept = {}
    for caption, explanations in runs.items():
        images = []
        for image, labels in zip(explanations, decided_labels, strict=True):
            decided_maps = [label for label in image.maps if label in labels]
            images.append(image.only(decided_maps))
        kept[caption] = Explanations(explanations.names, tuple(images))
    return kept
