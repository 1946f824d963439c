"""The content of the report of a comparison, as it is written to report.json."""

from dataclasses import dataclass
from typing import Any

import msgspec

from probmcl.experiments.results import Comparison, Row
from probmcl.report.comparison import comparison_verdict
from probmcl.store.report import SCHEMA
from probmcl.version import __version__


@dataclass(frozen=True, kw_only=True)
class ComparisonSummary:
    """The rows of a comparison, the conditions that they share, and the verdict with a sentence per line."""

    protocol: str
    verdict: str
    rows: tuple[Row, ...]


@dataclass(frozen=True, kw_only=True)
class ComparisonContent:
    """The content of report.json in the folder of a comparison. It has no sections about a single run."""

    probmcl: str = __version__
    schema: int = SCHEMA
    name: str
    photographs: int = 0
    runs: None = None
    comparison: ComparisonSummary

    @classmethod
    def of(cls, comparison: Comparison) -> "ComparisonContent":
        """Return the content of the report of a comparison."""
        verdict = comparison_verdict(comparison)
        summary = ComparisonSummary(protocol=comparison.protocol, verdict=verdict, rows=comparison.ordered)
        return cls(name=comparison.data, comparison=summary)

    def to_dict(self) -> dict[str, Any]:
        """Return the content in JSON form. Fingerprints are left out: they identify the protocol of the rows."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        for row in content["comparison"]["rows"]:
            del row["fingerprint"]
        return content
