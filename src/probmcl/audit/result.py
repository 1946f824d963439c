"""The result of `check`: statistics of the data, and problems that training would warn about or refuse."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from probmcl.audit.findings import Finding, audit_verdict
from probmcl.audit.statistics import AuditStatistics
from probmcl.errors import counted, listed
from probmcl.runtime.files import write_json


@dataclass(frozen=True, eq=False, repr=False)
class DataAudit:
    """The result of `check`: statistics of the readable images, and all findings.

    If the data cannot be read at all, `summary` is empty, counts are 0 and lists are empty.

    Attributes:
        data: the table or folder, as passed to `check`.
        findings: problems and notes, each with a `level` (blocked, warning or note), a `kind`, a short `text`, the
            complete list of `items`, and `readings`: the options with which `train` accepts the data.
        statistics: all numbers and lists, as attributes and, in JSON form, by key; the most important are also
            properties of this object.
    """

    data: str
    findings: tuple[Finding, ...]
    statistics: AuditStatistics

    def __repr__(self) -> str:
        lines = [f"DataAudit({self.data!r}): {self.verdict}"]
        if self.summary:
            splits = " · ".join(f"{split} {count:,}" for split, count in self.splits.items())
            classes = counted(len(self.per_class), "class", "classes")
            lines.append(f"  {counted(self.images, 'image')}, {classes}; {splits}")
        counts = Counter(finding.level for finding in self.findings)
        levels = ", ".join(_counted_level(level, count) for level, count in counts.items())
        lines.append(f"  findings: {levels or 'none'}")
        titles = []
        for finding in self.findings:
            title = finding.text.splitlines()[0].rstrip(":")
            titles.append(f"{finding.level}: {title}")
        lines += [f"  {line}" for line in listed(titles)]
        return "\n".join(lines)

    @property
    def verdict(self) -> Literal["fine", "warnings", "blocked"]:
        """The most serious level of the findings; `train` refuses the data if this is "blocked"."""
        return audit_verdict(self.findings)

    @property
    def ok(self) -> bool:
        """True if `train` accepts the data, possibly with warnings."""
        return self.verdict != "blocked"

    @property
    def summary(self) -> str:
        """A few lines about how the data were read, and the number of images, classes and labels."""
        return self.statistics.summary

    @property
    def images(self) -> int:
        """The number of readable images."""
        return self.statistics.images

    @property
    def splits(self) -> Mapping[str, int]:
        """The number of images in train, val and test."""
        if self.statistics.is_empty:
            return {}
        return asdict(self.statistics.splits)

    @property
    def per_class(self) -> Mapping[str, Mapping[str, Mapping[str, int]]]:
        """The number of images by class, label state (present, absent, unknown or uncertain) and split."""
        return {name: asdict(counts) for name, counts in self.statistics.per_class.items()}

    @property
    def missing(self) -> Sequence[str]:
        """The images whose files do not exist."""
        return list(self.statistics.missing)

    @property
    def unreadable(self) -> Mapping[str, str]:
        """The reason for each image that cannot be decoded."""
        return {image.image: image.reason for image in self.statistics.unreadable}

    @property
    def exact_duplicates(self) -> Sequence[Sequence[str]]:
        """Sets of images whose files have the same content."""
        return list(self.statistics.exact_duplicates)

    @property
    def near_duplicates(self) -> Sequence[tuple[str, str]]:
        """Pairs of images that are resized, re-encoded, flipped or cropped copies of each other."""
        confirmed = [pair.images for pair in self.statistics.near_duplicates if pair.confirmed]
        return [(one, other) for one, other in confirmed]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict that can be written as JSON."""
        findings = [asdict(finding) for finding in self.findings]
        return {"data": self.data, **self.statistics, "findings": findings, "verdict": self.verdict}

    def to_json(self, path: Path | str) -> None:
        """Write everything as JSON; an existing file is overwritten."""
        write_json(Path(path), self.to_dict())


def _counted_level(level: str, count: int) -> str:
    """Return the number of findings with a level, for a message: "blocked" has no plural."""
    plural = "" if count == 1 or level == "blocked" else "s"
    return f"{count} {level}{plural}"
