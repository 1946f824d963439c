"""Statistics of data, and the findings that follow from them, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.duplicates.hashing import Fingerprint
from probmcl.data.duplicates.search import Duplicates, NearPair
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Records

Level = Literal["blocked", "warning", "note"]
BlockingKind = Literal["data", "empty_split", "unreadable", "leak", "doubtful_leak"]
ImageKind = Literal["nearly_constant", "conflicting_labels", "exact_duplicates", "near_duplicates"]
ClassKind = Literal["no_positive", "no_train_positive", "few_train_positives", "no_negative", "no_test_positive"]
Kind = BlockingKind | ImageKind | ClassKind | Literal["reading", "imbalance", "nothing_known"]

IMBALANCE = 100.0
"""Ratio of the positives of the most and the least frequent class above which a warning is given."""

MIN_TRAIN_POSITIVES = 10
NO_NEGATIVE = "without a known negative, which cannot be learned"
NO_TEST_POSITIVE = "without a positive in test, which cannot be scored"
COOCCURRENCES = 20  # pairs of classes listed, the most frequent first


@dataclass(frozen=True)
class Finding:
    """Something that a user should know before training; a blocked one prevents it."""

    level: Level
    kind: Kind
    text: str


def verdict(findings: Sequence[Finding]) -> Literal["fine", "warnings", "blocked"]:
    """Return the most serious level.

    >>> verdict([Finding("note", "near_duplicates", "a"), Finding("warning", "imbalance", "b")])
    'warnings'
    """
    levels = {finding.level for finding in findings}
    return "blocked" if "blocked" in levels else "warnings" if "warning" in levels else "fine"


def statistics(records: Records, duplicates: Duplicates) -> dict[str, Any]:
    """Return counts, sizes, unreadable images and duplicates, as JSON."""
    fingerprints, exact, near = duplicates
    per_class, present = _per_class(records), records.present()
    seen = list(enumerate(fingerprints))
    conflicts = [_conflict(records, rows) for rows in exact]
    return {
        "images": len(records),
        "classes": len(records.label_space),
        "splits": {split: len(records.rows(split)) for split in SPLITS},
        "groups": None if records.group is None else len(set(records.group)),
        "per_class": per_class,
        "images_without_labels": int((np.diff(present.indptr) == 0).sum()),
        "labels_per_image": present.nnz / max(len(records), 1),
        "not_known": 1 - records.states.known_share(),
        "imbalance": _imbalance(per_class),
        "together": _cooccurrences(records),
        "sizes": _sizes(fingerprints),
        "unreadable": [{"image": records.where(row), "reason": x.reason} for row, x in seen if x.reason is not None],
        "nearly_constant": [records.where(row) for row, x in seen if x.nearly_constant],
        "exact_duplicates": [[records.where(row) for row in rows] for rows in exact],
        "conflicting_labels": [conflict for conflict in conflicts if conflict["classes"]],
        "near_duplicates": [_pair(records, pair) for pair in near],
    }


def findings(records: Records, content: Mapping[str, Any]) -> list[Finding]:
    """Return warnings and notes about the images and labels that `statistics` describes."""
    return [*_about_images(content), *_about_labels(records, content)]


def _per_class(records: Records) -> dict[str, dict[str, Any]]:
    by_split = {split: records.states.take(records.rows(split)).settled_counts() for split in SPLITS}
    return {
        name: {
            state.name.lower(): {split: int(counts[state, k]) for split, counts in by_split.items()} for state in State
        }
        for k, name in enumerate(records.label_space.names)
    }


def _totals(per_class: Mapping[str, Mapping[str, Any]], state: State) -> dict[str, int]:
    return {name: sum(counts[state.name.lower()].values()) for name, counts in per_class.items()}


def _imbalance(per_class: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the most and the least frequent of the classes that have a positive."""
    positives = {name: count for name, count in _totals(per_class, State.PRESENT).items() if count}
    if not positives:
        return None
    most, least = (choose(positives, key=lambda name: positives[name]) for choose in (max, min))
    ratio = positives[most] / positives[least]
    return {"most": [most, positives[most]], "least": [least, positives[least]], "ratio": ratio}


def _cooccurrences(records: Records) -> list[dict[str, Any]]:
    """Return the pairs of classes with most images in common, and these as a share of the rarer class's images."""
    from scipy.sparse import triu

    present = records.present().astype(np.int64)
    counts = present.sum(axis=0)
    pairs = triu(present.T @ present, k=1).tocoo()
    order = np.argsort(-pairs.data, kind="stable")[:COOCCURRENCES]
    names = records.label_space.names
    return [
        {
            "classes": [names[pairs.row[i]], names[pairs.col[i]]],
            "images": int(pairs.data[i]),
            "share": float(pairs.data[i] / min(counts[pairs.row[i]], counts[pairs.col[i]])),
        }
        for i in order
    ]


def _sizes(fingerprints: Sequence[Fingerprint]) -> dict[str, Any]:
    sizes = np.array([seen.size for seen in fingerprints if seen.reason is None], dtype=np.int64).reshape(-1, 2)
    modes = Counter(seen.mode for seen in fingerprints if seen.reason is None)
    return {"width": _spread(sizes[:, 0]), "height": _spread(sizes[:, 1]), "modes": dict(modes.most_common())}


def _spread(values: Int[ndarray, "K"]) -> dict[str, int] | None:
    if not len(values):
        return None
    return {"least": int(values.min()), "median": int(np.median(values)), "most": int(values.max())}


def _conflict(records: Records, rows: Sequence[int]) -> dict[str, Any]:
    """Return the classes that are present in one of some equal images and absent in another."""
    labels, known = records.states.labels_and_known(np.array(rows))
    differ = ((labels == 1) & known).any(axis=0) & ((labels == 0) & known).any(axis=0)
    names = records.label_space.names
    return {"images": [records.where(row) for row in rows], "classes": [names[k] for k in np.flatnonzero(differ)]}


def _pair(records: Records, pair: NearPair) -> dict[str, Any]:
    return {
        "images": [records.where(pair.one), records.where(pair.other)],
        "splits": [records.split[pair.one], records.split[pair.other]],
        "distance": pair.distance,
        "correlation": pair.correlation,
        "confirmed": pair.confirmed,
    }


def _about_images(content: Mapping[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    constant, conflicts = content["nearly_constant"], content["conflicting_labels"]
    if constant:
        text = f"images that are nearly of one color: {len(constant):,} ({constant[0]}, …)"
        found.append(Finding("warning", "nearly_constant", text))
    if conflicts:
        pair, classes = " and ".join(conflicts[0]["images"][:2]), ", ".join(conflicts[0]["classes"])
        text = f"equal images with different labels: {len(conflicts):,} times; {pair}: {classes}"
        found.append(Finding("warning", "conflicting_labels", text))
    copies = sum(len(rows) - 1 for rows in content["exact_duplicates"])
    if copies:
        text = f"images that are byte-for-byte copies of others: {copies:,}"
        found.append(Finding("note", "exact_duplicates", text))
    within = sum(pair["confirmed"] and len(set(pair["splits"])) == 1 for pair in content["near_duplicates"])
    if within:
        found.append(Finding("note", "near_duplicates", f"pairs of nearly equal images within a split: {within:,}"))
    return found


def _about_labels(records: Records, content: Mapping[str, Any]) -> list[Finding]:
    per_class = content["per_class"]
    positives, negatives = _totals(per_class, State.PRESENT), _totals(per_class, State.ABSENT)
    train, test = ({name: x["present"][split] for name, x in per_class.items()} for split in ("train", "test"))
    few = MIN_TRAIN_POSITIVES
    lists: list[tuple[ClassKind, str, Callable[[str], bool]]] = [
        ("no_positive", "without any positive", lambda n: not positives[n]),
        ("no_train_positive", "without a positive in train", lambda n: not train[n] and positives[n] > 0),
        ("few_train_positives", f"with fewer than {few} positives in train", lambda n: 0 < train[n] < few),
        ("no_negative", NO_NEGATIVE, lambda n: not negatives[n] and positives[n] > 0),
        ("no_test_positive", NO_TEST_POSITIVE, lambda n: train[n] > 0 and not test[n]),
    ]
    found = [Finding("warning", "reading", text) for text in (records.origin.warnings if records.origin else ())]
    for kind, problem, applies in lists:
        names = [name for name in per_class if applies(name)]
        found += [Finding("warning", kind, f"classes {problem}: {_first(names)}")] if names else []
    if content["imbalance"] and content["imbalance"]["ratio"] > IMBALANCE:
        (most, more), (least, fewer) = content["imbalance"]["most"], content["imbalance"]["least"]
        text = f"{most!r} is in {more:,} images and {least!r} in {fewer:,}"
        found.append(Finding("warning", "imbalance", text))
    unknown = int((~records.states.any_known()).sum())
    if unknown:
        found.append(Finding("warning", "nothing_known", f"images without any known label: {unknown:,}"))
    return found


def _first(names: Sequence[str], most: int = 8) -> str:
    return f"{len(names):,} ({', '.join(names[:most])}{', …' if len(names) > most else ''})"
