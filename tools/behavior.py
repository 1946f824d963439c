"""Compare what two checkouts print, return and write, on a fixed matrix of cases.

    python tools/behavior.py --reference ../base --keep /tmp/behavior     # about 5 minutes, then 3
    python tools/behavior.py --reference ../base --keep /tmp/behavior --only "check/*" --only "wrong*"
    python tools/behavior.py --list

The cases are in behavior_matrix.py. Each runs in the reference, a worktree of commit 43f1d7b, and in this checkout;
without `--reference`, a temporary worktree is made. With `--keep FOLDER`, the inputs and the records of the reference
stay in the folder, and later runs only execute this checkout; several may use the same folder at the same time.

Texts, exit codes and files are compared, without times and the like (behavior_texts.py). A difference is printed,
unless it is in behavior_differences.toml. The exit code is 1 if there is a difference that is not listed.

The script serves a change of the structure and is deleted after it.
"""

from __future__ import annotations

import argparse
import difflib
import fcntl
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from behavior_matrix import VARIES, Case, all_cases
from behavior_runner import Tree, is_recorded, make_inputs, run_cases
from behavior_texts import artifacts, without

ROOT = Path(__file__).resolve().parent.parent
DIFFERENCES = Path(__file__).with_name("behavior_differences.toml")
COMMIT = "43f1d7b911b368f7a85780724c2625bb2755c833"
SHOWN_LINES, SHOWN_PLACES = 40, 3
LINE_WIDTH = 300
NUMBER = re.compile(r"[-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


# Listed differences.


@dataclass(eq=False)
class Difference:
    """A difference that is intended.

    Attributes:
        case: pattern of the names of cases.
        where: pattern of what differs: `1 code`, `2 stdout`, `file run/run.json`.
        reason: why it is intended.
        reference: regular expression of text of the reference, over all lines.
        head: what replaces it in this checkout; it may refer to groups.
        ignore: regular expression of text that is removed on both sides.
        tolerance: how far numbers may be apart, if everything else is equal.
        only: "reference" or "head" if the whole file or output is only there.
        uses: the number of times it explained something.
    """

    case: str
    where: str
    reason: str
    reference: str | None = None
    head: str = ""
    ignore: str | None = None
    tolerance: float | None = None
    only: str | None = None
    uses: int = 0

    def applies(self, case: str, where: str) -> bool:
        """Return whether it is about an output or a file of a case."""
        return fnmatchcase(case, self.case) and fnmatchcase(where, self.where)

    def explain(self, reference: list[str], head: list[str]) -> tuple[list[str], list[str]]:
        """Return the lines of both sides without this difference."""
        ours, theirs = "\n".join(head), "\n".join(reference)
        before = (theirs, ours)
        if self.reference is not None:
            theirs = re.sub(self.reference, self.head, theirs, flags=re.MULTILINE)
        if self.ignore is not None:
            theirs, ours = (re.sub(self.ignore, "", text, flags=re.MULTILINE) for text in (theirs, ours))
        if self.tolerance is not None:
            theirs = with_close_numbers(theirs, ours, self.tolerance)
        if (theirs, ours) != before:
            self.uses += 1
        return theirs.splitlines(), ours.splitlines()


def with_close_numbers(reference: str, head: str, tolerance: float) -> str:
    """Return the reference with the lines of this checkout that differ only in numbers closer than a tolerance."""
    lines, others = reference.splitlines(), head.splitlines()
    for number, other in aligned(lines, others):
        if is_close(lines[number], others[other], tolerance):
            lines[number] = others[other]
    return "\n".join(lines)


def aligned(lines: Sequence[str], others: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the numbers of lines that are equal without their numbers."""
    texts, other_texts = ([NUMBER.sub("0", line) for line in side] for side in (lines, others))
    if texts == other_texts:
        yield from zip(range(len(texts)), range(len(texts)), strict=True)
        return
    for block in difflib.SequenceMatcher(None, texts, other_texts, autojunk=False).get_matching_blocks():
        yield from ((block.a + k, block.b + k) for k in range(block.size))


def is_close(one: str, other: str, tolerance: float) -> bool:
    """Return whether the numbers of two lines are closer than a tolerance."""
    numbers = [[float(text.replace("−", "-")) for text in NUMBER.findall(side)] for side in (one, other)]
    return all(abs(a - b) <= tolerance for a, b in zip(*numbers, strict=True))


def read_differences() -> list[Difference]:
    """Read the list of intended differences."""
    return [Difference(**entry) for entry in tomllib.loads(DIFFERENCES.read_text()).get("difference", [])]


# Comparison.


@dataclass
class Result:
    """The numbers of the summary, and the places of each unlisted difference by its text."""

    cases: int = 0
    compared: int = 0
    listed: int = 0
    unlisted: dict[str, list[str]] = field(default_factory=dict)


def compare_case(name: str, trees: tuple[Tree, Tree], differences: Sequence[Difference], result: Result) -> None:
    """Compare the records of a case and add what differs to the result."""
    reference, head = (without_varying(name, artifacts(tree.record(name))) for tree in trees)
    result.cases += 1
    for where in sorted({*reference, *head}):
        result.compared += 1
        ours, theirs = head.get(where), reference.get(where)
        if ours == theirs:
            continue
        candidates = [entry for entry in differences if entry.applies(name, where)]
        if is_explained(theirs, ours, candidates):
            result.listed += 1
        else:
            text = difference_text(*explained(theirs or [], ours or [], candidates))
            result.unlisted.setdefault(text, []).append(f"{name}: {where}")


def without_varying(name: str, found: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the lines of a case without what varies in it alone."""
    result = {}
    for where, lines in found.items():
        varying = [entry[2:] for entry in VARIES if fnmatchcase(name, entry[0]) and fnmatchcase(where, entry[1])]
        result[where] = without(lines, varying)
    return result


def is_explained(reference: list[str] | None, head: list[str] | None, candidates: Sequence[Difference]) -> bool:
    """Return whether all that differs is listed."""
    if reference is None or head is None:
        side = "head" if reference is None else "reference"
        whole = [entry for entry in candidates if entry.only == side]
        for entry in whole:
            entry.uses += 1
        return bool(whole)
    one, other = explained(reference, head, candidates)
    return one == other


def explained(reference: list[str], head: list[str], candidates: Sequence[Difference]) -> tuple[list[str], list[str]]:
    """Return the lines of both sides without all differences that are listed."""
    for entry in candidates:
        reference, head = entry.explain(reference, head)
    return reference, head


def difference_text(reference: list[str], head: list[str]) -> str:
    """Return a difference as text."""
    lines = list(difflib.unified_diff(reference, head, "reference", "head", lineterm="", n=1))[2:]
    if not lines:
        return f"  only in {'the reference' if reference else 'head'}, or empty on one side"
    shown = [f"  {line[:LINE_WIDTH]}{' …' if len(line) > LINE_WIDTH else ''}" for line in lines[:SHOWN_LINES]]
    if len(lines) > SHOWN_LINES:
        shown.append(f"  … {len(lines) - SHOWN_LINES} more lines")
    return "\n".join(shown)


def show(text: str, places: Sequence[str]) -> None:
    """Print a difference and where it occurs: it may be the same in many cases."""
    others = f" (and {len(places) - SHOWN_PLACES} others)" if len(places) > SHOWN_PLACES else ""
    print("\n" + "\n".join(places[:SHOWN_PLACES]) + others)
    print(text)


# The command.


@contextmanager
def reference_tree(folder: Path | None) -> Iterator[Path]:
    """Yield a checkout of the reference commit: the folder that the user names, or a temporary worktree."""
    if folder is not None:
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory() as parent:
        worktree = Path(parent) / "reference"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(worktree), COMMIT], check=True)
        try:
            yield worktree
        finally:
            subprocess.run([*git, "remove", "--force", str(worktree)], check=True)


@contextmanager
def kept_folder(folder: Path | None) -> Iterator[Path]:
    """Yield the folder for inputs and records: the one that the user names, or a temporary one."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        yield folder.resolve()
        return
    with tempfile.TemporaryDirectory() as temporary:
        yield Path(temporary)


@contextmanager
def locked(kept: Path) -> Iterator[None]:
    """Let only one process at a time write inputs and records of the reference; the others then find them."""
    with (kept / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def selected(cases: dict[str, Case], patterns: Sequence[str]) -> list[str]:
    """Return the names of the cases that match a pattern; a group is a pattern, too."""
    if not patterns:
        return list(cases)
    wanted = [pattern if "*" in pattern or "/" in pattern else f"{pattern}/*" for pattern in patterns]
    names = [name for name in cases if any(fnmatchcase(name, pattern) for pattern in wanted)]
    if not names:
        raise SystemExit(f"no case matches {' '.join(patterns)}")
    return names


def execute(tree: Tree, names: Sequence[str], cases: dict[str, Case], inputs: Path, jobs: int) -> None:
    """Run cases in a tree and print how long it took.

    They run next to the inputs, in a folder whose path always has the same length, so that lines wrap equally.
    """
    start = time.monotonic()
    print(f"{tree.folder}: {len(names)} cases ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=inputs.parent, ignore_cleanup_errors=True) as work:
        run_cases(replace(tree, work=Path(work)), names, cases, inputs, jobs)
    print(f"{tree.folder}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reference", type=Path, help="worktree of the reference commit (default: a temporary one)")
    parser.add_argument("--head", type=Path, default=ROOT, help="the other checkout (default: that of this script)")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="cases such as 'check/*'")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="folder for the records of the reference")
    parser.add_argument("--save", type=Path, metavar="FOLDER", help="also keep the records of this checkout")
    parser.add_argument("--saved", type=Path, metavar="FOLDER", help="compare these records and run nothing")
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (default: 2)")
    parser.add_argument("--list", action="store_true", help="print the cases and their steps")
    return parser.parse_args()


def main() -> None:
    """Run the selected cases in both trees, and print and count what differs."""
    options = parse_arguments()
    with kept_folder(options.keep) as kept, reference_tree(options.reference) as folder:
        with locked(kept):
            inputs = make_inputs(folder, kept)
            cases = all_cases(inputs)
            names = selected(cases, options.only)
            if options.list:
                for name in names:
                    print("\n    ".join([name, *cases[name].steps]))
                return
            reference = Tree(folder, kept / f"reference-{COMMIT[:7]}")
            missing = [name for name in names if not is_recorded(reference, cases[name], cases, inputs)]
            execute(reference, missing, cases, inputs, options.jobs)
        with tempfile.TemporaryDirectory(dir=kept) as records:
            kept_records = options.saved or options.save or Path(records)
            head = Tree(options.head.resolve(), kept_records.resolve())
            if options.saved is None:
                execute(head, names, cases, inputs, options.jobs)
            sys.exit(report(names, (reference, head), is_full=not options.only))


def report(names: Sequence[str], trees: tuple[Tree, Tree], *, is_full: bool) -> int:
    """Compare all cases, print what differs and a summary, and return the exit code."""
    differences, result = read_differences(), Result()
    for name in names:
        compare_case(name, trees, differences, result)
    for text, places in result.unlisted.items():
        show(text, places)
    if is_full:
        for entry in differences:
            if not entry.uses:
                print(f"\nlisted, but not found: {entry.case}: {entry.where} ({entry.reason})")
    unlisted = sum(map(len, result.unlisted.values()))
    print(
        f"\n{result.cases} cases, {result.compared:,} outputs and files: {unlisted} differ, "
        f"{result.listed} differ as listed"
    )
    return int(unlisted > 0)


if __name__ == "__main__":
    main()
