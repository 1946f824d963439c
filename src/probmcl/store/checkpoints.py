"""The metadata in the checkpoints of a candidate, whose tensors are its parameters and scores."""

from __future__ import annotations

from typing import Any

import msgspec

from probmcl.store.evaluation import Retrieval, SplitMetrics


class StoredCandidate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A candidate; see `probmcl.run.results.Candidate`. The settings are those of its method, as plain values."""

    method: str
    settings: dict[str, Any]
    validation: SplitMetrics
    seconds: float
    fit_seconds: float
    weight_decay: float | None


class StoredTest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The metrics of a candidate on the test split, with retrieval metrics for a probe."""

    evaluation: SplitMetrics
    retrieval: Retrieval | None
