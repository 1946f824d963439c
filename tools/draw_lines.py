"""Draw lines of the package at random, to test whether a newcomer finds the file of each.

    python tools/draw_lines.py --seed 0 --count 20 --key key.txt

A reader who knows only the tree of the package names the file of each printed line. The name of the function or class
around a line is printed with it. The key has the answers. Lines that say nothing about their place, such as blank
lines, closing brackets, `else:` and imports, are drawn again.
"""

from __future__ import annotations

import argparse
import ast
import random
import re
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parent.parent / "src" / "probmcl"

UNINFORMATIVE = re.compile(
    r"\s*([\W_]*|else:|try:|finally:|return|pass|break|continue|raise|return None|(from \S+ )?import .*)\s*"
)
"""Blank lines, closing lines, imports, and statements that stand in any file."""


class Line(NamedTuple):
    """A line of the package, with its file and the name of the function or class around it."""

    path: Path
    number: int
    text: str
    scope: str


def scopes(source: str) -> dict[int, str]:
    """Return the name of the innermost function or class around each line that is in one."""
    names: dict[int, str] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                names.update(dict.fromkeys(range(child.lineno, (child.end_lineno or child.lineno) + 1), name))
                visit(child, f"{name}.")

    visit(ast.parse(source), "")
    return names


def informative_lines() -> list[Line]:
    """Return every line that can be drawn."""
    lines = []
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        names = scopes(source)
        for number, text in enumerate(source.splitlines(), start=1):
            if not UNINFORMATIVE.fullmatch(text):
                lines.append(Line(path.relative_to(SOURCE), number, text, names.get(number, "the module")))
    return lines


def main() -> None:
    """Print the drawn lines, and write the key."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--key", type=Path, required=True, help="file for the answers")
    options = parser.parse_args()
    drawn = random.Random(options.seed).sample(informative_lines(), options.count)
    answers = []
    for question, line in enumerate(drawn, start=1):
        print(f"{question:3}. in {line.scope}: {line.text.strip()}")
        answers.append(f"{question:3}. {line.path.as_posix()}:{line.number}")
    options.key.write_text("\n".join(answers) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
