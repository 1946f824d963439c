"""The report of a run: the list of its sections, and the pictures that the page shows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec

from probmcl.console import Console
from probmcl.inference import Model, load
from probmcl.report.embedding import ImageFeatures, embed_test_images, embedding_map
from probmcl.report.gallery import ChosenGroup, Pictures, choose_images, describe_group, take_pictures
from probmcl.report.other_runs import run_summaries
from probmcl.report.run_data import RunData, data_summary, may_read_images, read_run_data
from probmcl.report.scores import ScoredRun, curves, label_pairs
from probmcl.report.training import reproduction, training_summary
from probmcl.report.verdict import judge, measurements
from probmcl.store.report import (
    SCHEMA,
    ClassScores,
    Curves,
    DataSummary,
    EmbeddingMap,
    Gallery,
    Headline,
    ImageGroup,
    LabelPairs,
    Reproduction,
    RunSummary,
    TrainingSection,
    Verdict,
)
from probmcl.version import __version__

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class ReportInput:
    """The input of all sections of a report. Results that several sections need are computed once.

    Attributes:
        run: the stored results of the run.
        model: its model, which computes features and heat maps.
        others: the other runs that it is compared with.
        shows_images: whether the page has photographs.
    """

    run: RunData
    model: Model
    others: Sequence[RunData] = ()
    shows_images: bool = True

    @cached_property
    def _scored(self) -> ScoredRun:
        return ScoredRun(self.run)

    @cached_property
    def headline(self) -> Headline:
        """The headline numbers."""
        return self._scored.headline()

    @cached_property
    def classes(self) -> list[ClassScores]:
        """The scores of each class."""
        return self._scored.classes()

    @cached_property
    def _chosen(self) -> list[ChosenGroup]:
        return choose_images(self.run)

    @cached_property
    def features(self) -> ImageFeatures | None:
        """Features of the images of the gallery and of a sample of the test images."""
        shown = {image.row for group in self._chosen for image in group.images}
        return embed_test_images(self.run, self.model, sorted(shown), Console.quiet())

    @cached_property
    def groups(self) -> list[ImageGroup]:
        """The images of the gallery."""
        return [describe_group(self.run, group, self.features) for group in self._chosen]

    @cached_property
    def pictures(self) -> Pictures:
        """The pictures on the page."""
        if not self.shows_images or not self.run.reads_images:
            return Pictures()
        return take_pictures(self.model, self.run.root, self.groups)


@dataclass(frozen=True)
class PageSection:
    """A section of the page: `anchor` names its template and is the id of its element; `title` is its link."""

    anchor: str
    title: str
    build: Callable[[ReportInput], Any]
    optional: bool  # left out of the page without content

    @property
    def template(self) -> str:
        """The file name of the template."""
        return f"{self.anchor}.html.j2"

    def is_shown(self, content: object) -> bool:
        """Return whether the section is on a page with this content."""
        return not self.optional or content is not None


def section(anchor: str, title: str, build: Callable[[ReportInput], T], *, optional: bool = False) -> T:
    """Declare a field of `ReportContent` as a section of the page, whose content is the result of `build`.

    The declared type lets a type checker compare the result with the field.
    """
    page_section = PageSection(anchor, title, build, optional)
    declared = field(metadata={"section": page_section})
    return cast(T, declared)


def _verdict(given: ReportInput) -> Verdict:
    """Return whether to use the model, according to the rules of the verdict."""
    measured = measurements(given.run, given.headline, given.classes)
    return judge(measured)


def _gallery(given: ReportInput) -> Gallery:
    """Return the test images on the page, and why they have no heat maps or nearest training images."""
    has_neighbors = given.run.training is not None
    return Gallery(groups=given.groups, has_neighbors=has_neighbors, heat_maps=given.pictures.problem)


def _runs(given: ReportInput) -> list[RunSummary] | None:
    """Return the scores of all runs; None if the report has only one."""
    if not given.others:
        return None
    return run_summaries(given.run, given.others)


@dataclass(frozen=True, kw_only=True)
class ReportContent:
    """The content of report.json, and the sections of the page in their order.

    A new section is a row here, the function that computes its content, and its template.

    Attributes:
        probmcl: the version of the package.
        schema: the version of this layout.
        name: the name of the run folder.
        kept: the name of the kept candidate.
        frozen_kept: whether it is the probe on the frozen encoder.
        calibrated: whether the probabilities are calibrated.
        comparison: always None; the report of a comparison has its summary here.
        photographs: number of photographs on the page.
    """

    probmcl: str = __version__
    schema: int = SCHEMA
    name: str
    kept: str
    frozen_kept: bool
    calibrated: bool
    verdict: Verdict = section("verdict", "Verdict", _verdict)
    headline: Headline = section("scores", "Scores", lambda given: given.headline)
    classes: list[ClassScores] = section("classes", "Classes", lambda given: given.classes)
    gallery: Gallery = section("gallery", "Gallery", _gallery)
    curves: Curves = section("curves", "Curves", lambda given: curves(given.run, given.classes))
    label_pairs: LabelPairs = section("pairs", "Label pairs", lambda given: label_pairs(given.run))
    embedding: EmbeddingMap | None = section("map", "Embedding", lambda given: embedding_map(given.run, given.features))
    data: DataSummary = section("data-summary", "Data", lambda given: data_summary(given.run))
    training: TrainingSection = section("training", "Training", lambda given: training_summary(given.run, given.model))
    runs: list[RunSummary] | None = section("runs", "Runs", _runs, optional=True)
    comparison: None = None
    reproduction: Reproduction = section("reproduce", "Reproduce", lambda given: reproduction(given.run))
    photographs: int

    def to_dict(self) -> dict[str, Any]:
        """Return the content as it is written to report.json."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content


SECTIONS: dict[str, PageSection] = {
    declared.name: declared.metadata["section"] for declared in fields(ReportContent) if "section" in declared.metadata
}
"""The sections of the page, by the name of their field."""


@dataclass(frozen=True)
class RunReport:
    """The content of a report, and the pictures on its page."""

    content: ReportContent
    pictures: Pictures


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
    notes = notes or Console.quiet()
    steps = len(folders) + len(SECTIONS)
    with console.progress("writing the report", steps) as bar:
        model = load(folders[0], device=device)
        stored = read_run_data(model)
        reads_images = may_read_images(stored, console, notes)
        run = replace(stored, reads_images=reads_images)
        bar.advance()

        others = []
        for folder in folders[1:]:
            other_model = load(folder, device=device)
            others.append(read_run_data(other_model))
            bar.advance()

        given = ReportInput(run, model, others, shows_images=images)
        sections: dict[str, Any] = {}
        for name, page_section in SECTIONS.items():
            sections[name] = page_section.build(given)
            bar.advance()
    content = _report_content(given, sections)
    return RunReport(content, given.pictures)


def _report_content(given: ReportInput, sections: dict[str, Any]) -> ReportContent:
    """Return the content of a report from that of its sections, which are named as the fields of `ReportContent`."""
    run = given.run
    is_calibrated = run.calibration is not None
    return ReportContent(
        name=run.name,
        kept=run.kept,
        frozen_kept=run.frozen_kept,
        calibrated=is_calibrated,
        photographs=given.pictures.count,
        **sections,
    )
