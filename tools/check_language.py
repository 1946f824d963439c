"""Check the language of the repository: `python tools/check_language.py [PATH …]`.

It lists British spellings and phrases that sound translated, each with a suggested replacement. Code, comments,
docstrings, messages and Markdown are all checked. A phrase that is correct in one file goes into `ALLOWED`, with the
reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PATHS = (
    "src docs tests benchmarks examples recipes tools README.md CHANGELOG.md CONTRIBUTING.md Makefile pyproject.toml"
)
SUFFIXES = {".md", ".py", ".toml"}

THING = "class|classifier|directory|encoder|file|folder|image|label|list|method|model|name|number|run|table|text|value"
PHRASES = {
    rf"(?<!there )(?:is|are|was|were) no (?:\w+ )?(?:{THING})s?": "is not a …",
    r"beside": "next to, with",
    r"anew": "again",
    r"so many": "that many, or the number",
    r"from (?:here|which|there) on": "from now on, above which",
    r"one's own": "your own",
    r"(?:one|either) of both": "either",
    r"(?:go|goes|went|going) on": "continue, resume",
    r"(?:is|are|was|were|be|been) (?:said|told|heard)": "is printed, reported, given",
    r"sa(?:y|ys|id) so": "report it",
    r"(?:every|no)body(?:'s)?": "name the users or processes",
    r"one (?:row|column|file|folder|line|page|value|number|image|map|vector|process|run|fold|table) an? \w+": "per",
    r"where (?:there|it|they|none|nothing|neither) (?:is|are|was|were|has|have)": "if there is",
    r"what (?:was|were) (?:asked|drawn|found|given|reached|read|said|seen)": "name the thing",
    r"none at all|than none": "leave it out",
    r"mend(?:s|ed|ing)?": "fix",
    r"stands? (?:beside|elsewhere|against|at)": "is",
    r"(?:knows?|has) nothing of": "does not depend on",
    r"as it comes|as they come": "unchanged",
}
OPENING = r"^\s*(?:\"\"\"|#|[-*])?\s*What (?:an?|the|it|they|each|is|was|are|were) [^?]*$"  # a clause instead of a noun
STEM = "general|initial|local|normal|optim|organ|penal|random|real|recogn|regular|standard|summar|util"
BRITISH = {
    r"\w*colour\w*": "color",
    r"\w*behaviour\w*": "behavior",
    r"\w*neighbour\w*": "neighbor",
    r"grey\w*": "gray",
    rf"\w*(?:{STEM})is(?:e[ds]?|ing|ations?)": "-ize",
    r"(?:un)?label(?:led|ling)": "labeled, labeling",
    r"cancell(?:ed|ing)|modell(?:ed|ing)": "one l",
    r"\w*centre[sd]?|licence\w*|artefact\w*": "center, license, artifact",
}
PATTERNS = [
    (re.compile(rf"\b(?:{phrase})\b", re.IGNORECASE), better) for phrase, better in {**PHRASES, **BRITISH}.items()
] + [(re.compile(OPENING), "name the thing")]

ALLOWED: dict[str, dict[str, str]] = {
    "CHANGELOG.md": dict.fromkeys(
        ("everybody", "nobody", "initialisation", "neighbour_share", "normalise"), "old names"
    ),
    "tests/test_language.py": dict.fromkeys(
        ("beside", "is no run", "one row a label", "normalisation", "what the table says."), "test cases"
    ),
}
"""Phrases that are correct in a file, with the reason."""


class Hit(NamedTuple):
    """A phrase found in a line, and a suggested replacement."""

    path: Path
    line: int
    phrase: str
    better: str


def find_phrases(path: Path) -> Iterator[Hit]:
    """Yield the phrases in a file that are not allowed there."""
    allowed = ALLOWED.get(path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name, {})
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        for pattern, better in PATTERNS:
            for match in pattern.finditer(line):
                phrase = match.group().strip()
                if phrase.lower() not in allowed:
                    yield Hit(path, number, phrase, better)


def files_under(path: Path) -> list[Path]:
    """Return the file itself, or the text files in a folder and its subfolders."""
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)


def main(arguments: Sequence[str]) -> int:
    """Print every phrase; return 1 if there are any."""
    paths = [Path(argument) for argument in arguments] or [ROOT / path for path in PATHS.split()]
    files = [file for path in paths for file in files_under(path) if file.resolve() != Path(__file__).resolve()]
    hits = [hit for file in files for hit in find_phrases(file)]
    for path, line, phrase, better in hits:
        print(f"{path}:{line}: {phrase!r} (write: {better})")
    return 1 if hits else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
