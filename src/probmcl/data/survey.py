"""What is in some data and what is wrong with it: counts, likenesses and findings, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from probmcl.data.duplicates.hashing import Fingerprint
from probmcl.data.duplicates.leaks import REMEDY, Leaks, NearPair
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Records

Level = Literal["blocked", "warning", "note"]

IMBALANCE = 100.0
"""The commonest class has so many times the positives of the rarest: methods and thresholds will feel it."""

FEW = 10
"""Positives of a class in train below which little can be learned of it."""

PAIRS = 20
"""Pairs of classes that are listed, those first that stand together most often."""


@dataclass(frozen=True)
class Finding:
    """Something that whoever trains on the data should know, and how grave it is."""

    level: Level
    text: str


def survey(
    records: Records,
    fingerprints: Sequence[Fingerprint],
    exact: Sequence[tuple[int, ...]],
    near: Sequence[NearPair],
    leaks: Leaks,
) -> dict[str, Any]:
    """Everything that was found, in the order in which it is told; `findings` comes last and sums it up."""
    per_class = _per_class(records)
    content = {
        "images": len(records),
        "classes": len(records.label_space),
        "splits": {split: len(records.rows(split)) for split in SPLITS},
        "groups": None if records.group is None else len(set(records.group)),
        "per_class": per_class,
        "images_without_labels": int((np.diff(records.present().indptr) == 0).sum()),
        "labels_per_image": records.present().nnz / max(len(records), 1),
        "not_known": 1 - records.states.known_share(),
        "imbalance": _imbalance(per_class),
        "together": _together(records),
        "sizes": _sizes(fingerprints),
        "unreadable": [
            {"image": records.where(row), "reason": seen.reason}
            for row, seen in enumerate(fingerprints)
            if seen.reason is not None
        ],
        "nearly_constant": [records.where(row) for row, seen in enumerate(fingerprints) if seen.nearly_constant],
        "exact_duplicates": [[records.where(row) for row in rows] for rows in exact],
        "conflicting_labels": [_conflict(records, rows) for rows in exact if _conflict(records, rows)["classes"]],
        "near_duplicates": [_pair(records, pair) for pair in near],
    }
    found = [*_of_images(content), *_of_leaks(records, leaks), *_of_labels(records, content)]
    return content | {"findings": [vars(finding) for finding in found], "verdict": verdict(found)}


def verdict(findings: Sequence[Finding]) -> Literal["fine", "warnings", "blocked"]:
    """The gravest of all.

    >>> verdict([Finding("note", "a"), Finding("warning", "b")])
    'warnings'
    """
    levels = {finding.level for finding in findings}
    return "blocked" if "blocked" in levels else "warnings" if "warning" in levels else "fine"


# What is there.


def _per_class(records: Records) -> dict[str, dict[str, Any]]:
    by_split = {split: records.states.take(records.rows(split)).settled_counts() for split in SPLITS}
    names = records.label_space.names
    return {
        name: {
            state.name.lower(): {split: int(counts[state, k]) for split, counts in by_split.items()} for state in State
        }
        for k, name in enumerate(names)
    }


def _positives(per_class: Mapping[str, Mapping[str, Any]]) -> dict[str, int]:
    return {name: sum(states["present"].values()) for name, states in per_class.items()}


def _imbalance(per_class: Mapping[str, Mapping[str, Any]]) -> dict[str, Any] | None:
    """The commonest and the rarest class that has a positive at all."""
    there = {name: count for name, count in _positives(per_class).items() if count}
    if not there:
        return None
    most, least = max(there, key=lambda name: there[name]), min(there, key=lambda name: there[name])
    return {"most": [most, there[most]], "least": [least, there[least]], "ratio": there[most] / there[least]}


def _together(records: Records) -> list[dict[str, Any]]:
    """Pairs of classes that stand together most often, with the share of the rarer one's images that this is."""
    from scipy.sparse import triu

    present = records.present().astype(np.int64)
    counts = present.sum(axis=0)
    pairs = triu(present.T @ present, k=1).tocoo()
    order = np.argsort(-pairs.data, kind="stable")[:PAIRS]
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
    sizes = np.array([seen.size for seen in fingerprints if seen.reason is None]).reshape(-1, 2)
    modes = Counter(seen.mode for seen in fingerprints if seen.reason is None)
    return {"width": _spread(sizes[:, 0]), "height": _spread(sizes[:, 1]), "modes": dict(modes.most_common())}


def _spread(values: Int[ndarray, "K"]) -> dict[str, int] | None:
    if not len(values):
        return None
    return {"least": int(values.min()), "median": int(np.median(values)), "most": int(values.max())}


def _conflict(records: Records, rows: Sequence[int]) -> dict[str, Any]:
    """Classes that are present in one of some equal images and absent in another."""
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


# What is wrong with it.


def _of_images(content: Mapping[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    if content["unreadable"]:
        first = content["unreadable"][0]
        text = f"{len(content['unreadable']):,} of {content['images']:,} images cannot be used, {first['image']}: "
        found.append(Finding("blocked", f"{text}{first['reason']}; mend or remove them, or --skip-bad SHARE"))
    if content["nearly_constant"]:
        text = f"images that are nearly of one color: {len(content['nearly_constant']):,}"
        found.append(Finding("warning", f"{text} ({content['nearly_constant'][0]}, …)"))
    if content["conflicting_labels"]:
        first = content["conflicting_labels"][0]
        text = f"equal images with different labels: {len(content['conflicting_labels']):,} times"
        found.append(Finding("warning", f"{text}; {' and '.join(first['images'][:2])}: {', '.join(first['classes'])}"))
    if content["exact_duplicates"]:
        more = sum(len(rows) - 1 for rows in content["exact_duplicates"])
        found.append(Finding("note", f"images that are there already, byte by byte: {more:,}"))
    sure = [pair for pair in content["near_duplicates"] if pair["confirmed"]]
    inside = sum(pair["splits"][0] == pair["splits"][1] for pair in sure)
    if inside:
        found.append(Finding("note", f"pairs of nearly equal images within a split: {inside:,}"))
    return found


def _of_leaks(records: Records, leaks: Leaks) -> list[Finding]:
    level: Level = "blocked" if leaks.blocks else "warning"
    lines = leaks.lines([records.where(row) for row in range(len(records))])
    remedy = [REMEDY] if leaks.blocks else []
    return [Finding(level, "\n".join([*lines, *remedy]))] if lines else []


def _of_labels(records: Records, content: Mapping[str, Any]) -> list[Finding]:
    per_class, positives = content["per_class"], _positives(content["per_class"])
    trained = {name: states["present"]["train"] for name, states in per_class.items()}
    negatives = {name: sum(states["absent"].values()) for name, states in per_class.items()}
    listed = {
        "classes without any positive": [name for name, count in positives.items() if not count],
        "classes without a positive in train": [n for n, count in trained.items() if not count and positives[n]],
        f"classes with fewer than {FEW} positives in train": [n for n, count in trained.items() if 0 < count < FEW],
        "classes without a known negative, which nothing can be learned of": [
            name for name, count in negatives.items() if not count and positives[name]
        ],
        "classes without a positive in test, which cannot be judged": [
            name for name, states in per_class.items() if trained[name] and not states["present"]["test"]
        ],
    }
    said = [Finding("warning", text) for text in (records.origin.warnings if records.origin else ())]
    said += [Finding("warning", f"{what}: {_some(names)}") for what, names in listed.items() if names]
    if content["imbalance"] and content["imbalance"]["ratio"] > IMBALANCE:
        most, least = content["imbalance"]["most"], content["imbalance"]["least"]
        said.append(Finding("warning", f"{most[0]!r} is in {most[1]:,} images and {least[0]!r} in {least[1]:,}"))
    empty = int((~records.states.any_known()).sum())
    if empty:
        said.append(Finding("warning", f"images of which no label is known: {empty:,}"))
    return said


def _some(names: Sequence[str], most: int = 8) -> str:
    return f"{len(names):,} ({', '.join(names[:most])}{', …' if len(names) > most else ''})"
