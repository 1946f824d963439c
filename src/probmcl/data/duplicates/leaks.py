"""Leaks: duplicates and groups that are in two splits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

from probmcl.data.duplicates.search import NearPair
from probmcl.data.records import SPLITS

SHOWN = 3  # leaks of each kind in a message
REMEDY = (
    "scores would be too good. Remove one of each, or drop the split column and let probmcl split: it keeps copies "
    "together, and with `group=COLUMN` groups; `allow_leaks` goes on, and the run records it"
)


@dataclass(frozen=True)
class Leaks:
    """Rows in two splits: equal files, members of a group, and pairs of similar images."""

    split: Sequence[str]
    exact: list[tuple[int, ...]]
    groups: dict[str, tuple[int, ...]]
    confirmed: list[NearPair]
    doubtful: list[NearPair]

    @property
    def blocks(self) -> bool:
        """Whether a run is refused unless leaks are allowed; doubtful pairs alone do not block."""
        return bool(self.exact or self.groups or self.confirmed)

    def lines(self, names: Sequence[str]) -> list[str]:
        """Return a text of several lines: the number of leaks of each kind, and the first few by the names of rows."""
        return [
            *self._lines("equal files", [("", rows) for rows in self.exact], names),
            *self._lines("one group", [(f": group {group!r}", rows) for group, rows in self.groups.items()], names),
            *self._lines("the same picture", [_marked(pair) for pair in self.confirmed], names),
            *self._lines("perhaps the same picture", [_marked(pair) for pair in self.doubtful], names),
        ]

    def _lines(self, title: str, leaking: Sequence[tuple[str, tuple[int, ...]]], names: Sequence[str]) -> list[str]:
        lines: list[str] = []
        for one, other in combinations(SPLITS, 2):
            examples = []
            for mark, rows in leaking:
                first = {self.split[row]: names[row] for row in reversed(rows)}
                if one in first and other in first:
                    examples.append(f"  {first[one]} ({one}) and {first[other]} ({other}){mark}")
            if examples:
                lines += [f"{title} in {one} and {other}: {len(examples):,}", *examples[:SHOWN]]
        return lines


def _marked(pair: NearPair) -> tuple[str, tuple[int, ...]]:
    return f": correlation {pair.correlation:.3f}", (pair.one, pair.other)


def leaks(
    split: Sequence[str],
    groups: Sequence[str] | None,
    exact: Iterable[tuple[int, ...]],
    near: Iterable[NearPair],
    rows: Iterable[int] | None = None,
) -> Leaks:
    """Return the equal files, groups and similar pairs that are in two splits; of groups, only these rows count.

    >>> found = leaks(["train", "test", "train"], ["a", "b", "b"], [(0, 1)], [NearPair(0, 2, 3, 0.99, True)])
    >>> found.blocks, found.exact, found.groups, found.confirmed
    (True, [(0, 1)], {'b': (1, 2)}, [])
    >>> print(*found.lines(["0.jpg", "1.jpg", "2.jpg"])[:4], sep="\\n")
    equal files in train and test: 1
      0.jpg (train) and 1.jpg (test)
    one group in train and test: 1
      2.jpg (train) and 1.jpg (test): group 'b'
    """
    members: dict[str, list[int]] = {}
    if groups is not None:
        for row in range(len(groups)) if rows is None else rows:
            members.setdefault(groups[row], []).append(row)
    across = [pair for pair in near if split[pair.one] != split[pair.other]]
    return Leaks(
        split,
        [rows for rows in exact if len({split[row] for row in rows}) > 1],
        {group: tuple(rows) for group, rows in members.items() if len({split[row] for row in rows}) > 1},
        [pair for pair in across if pair.confirmed],
        [pair for pair in across if not pair.confirmed],
    )
