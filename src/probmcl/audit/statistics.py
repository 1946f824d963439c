"""Statistics of images and labels for the report of `probmcl check`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from probmcl.audit.duplicates.hashing import Fingerprint
from probmcl.audit.duplicates.search import Duplicates, NearPair
from probmcl.data.labels import State
from probmcl.data.records import SPLITS, Records

PerClass = Mapping[str, Mapping[str, Mapping[str, int]]]
"""Number of images by class, label state and split."""

COOCCURRENCES = 20  # number of class pairs in the report, most frequent first


def statistics(records: Records, duplicates: Duplicates) -> dict[str, Any]:
    """Return the counts, sizes and duplicates of readable images, ready for JSON."""
    per_class, present, where = _per_class(records), records.states.present(), records.where
    conflicts = [_conflict(records, rows) for rows in duplicates.exact]
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
        "sizes": _sizes(duplicates.fingerprints),
        "nearly_constant": [where(row) for row, image in enumerate(duplicates.fingerprints) if image.nearly_constant],
        "exact_duplicates": [[where(row) for row in rows] for rows in duplicates.exact],
        "conflicting_labels": [conflict for conflict in conflicts if conflict["classes"]],
        "near_duplicates": [_pair(records, pair) for pair in duplicates.near],
    }


def _per_class(records: Records) -> PerClass:
    by_split = {split: records.states.take(records.rows(split)).settled_counts() for split in SPLITS}
    return {
        name: {
            state.name.lower(): {split: int(counts[state, k]) for split, counts in by_split.items()} for state in State
        }
        for k, name in enumerate(records.label_space.names)
    }


def totals(per_class: PerClass, state: str) -> dict[str, int]:
    """Return the number of labels in a state, by class."""
    return {name: sum(counts[state].values()) for name, counts in per_class.items()}


def _imbalance(per_class: PerClass) -> dict[str, Any] | None:
    """Return the most and the least frequent of the classes with at least one positive."""
    positives = {name: count for name, count in totals(per_class, "present").items() if count}
    if not positives:
        return None
    most, least = max(positives, key=positives.__getitem__), min(positives, key=positives.__getitem__)
    ratio = positives[most] / positives[least]
    return {"most": [most, positives[most]], "least": [least, positives[least]], "ratio": ratio}


def _cooccurrences(records: Records) -> list[dict[str, Any]]:
    """Return the class pairs that co-occur most often; `share` is relative to the images of the rarer class."""
    from scipy.sparse import triu

    present, names = records.states.present().astype(np.int64), records.label_space.names
    counts = present.sum(axis=0)
    pairs = triu(present.T @ present, k=1).tocoo()
    order = np.argsort(-pairs.data, kind="stable")[:COOCCURRENCES]
    return [
        {"classes": [names[a], names[b]], "images": int(images), "share": float(images / min(counts[a], counts[b]))}
        for a, b, images in zip(pairs.row[order], pairs.col[order], pairs.data[order], strict=True)
    ]


def _sizes(readable: Sequence[Fingerprint]) -> dict[str, Any]:
    sizes = dict(zip(("width", "height"), zip(*(image.size for image in readable), strict=True), strict=False))
    ranges = {side: {"least": min(x), "median": int(np.median(x)), "most": max(x)} for side, x in sizes.items()}
    modes = Counter(image.mode for image in readable)
    return {"width": None, "height": None, **ranges, "modes": dict(modes.most_common())}


def _conflict(records: Records, rows: Sequence[int]) -> dict[str, Any]:
    """Return the classes that are positive for some of these identical images and negative for others."""
    labels, known = records.states.labels_and_known(np.array(rows))
    differ = ((labels == 1) & known).any(axis=0) & ((labels == 0) & known).any(axis=0)
    names = records.label_space.names
    return {"images": [records.where(row) for row in rows], "classes": [names[k] for k in np.flatnonzero(differ)]}


def _pair(records: Records, pair: NearPair) -> dict[str, Any]:
    rows = (pair.one, pair.other)
    scores = {"distance": pair.distance, "correlation": pair.correlation, "confirmed": pair.confirmed}
    return {"images": [records.where(row) for row in rows], "splits": [records.split[row] for row in rows], **scores}
