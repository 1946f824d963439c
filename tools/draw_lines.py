"""Draw lines of the package at random, to test whether a newcomer finds the file of each.

    python tools/draw_lines.py --seed 0 --count 20 --key key.txt

A reader who knows only the tree of the package names the file of each printed line. Who looks for a line knows what it
does, so the name of the function or class around it is printed with it, and the first sentence of their docstring. The
key has the answers. Lines that say nothing about their place, such as blank lines, closing brackets, `else:` and
imports, are drawn again.
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
    r"\s*([\W_]*|\) -> .*|\W*(True|False|None)\W*|else:|try:|finally:|return|pass|break|continue|raise|return None"
    r"|@dataclass.*|@final|@runtime_checkable|@property)\s*"
)
"""Blank lines, closing lines, and lines that stand in any file."""


class Line(NamedTuple):
    """A line of the package, with its file and the function or class around it."""

    path: Path
    number: int
    text: str
    scope: "Scope"


class Scope(NamedTuple):
    """The innermost function or class around a line, and the first line of its docstring, if it has one."""

    name: str
    summary: str


MODULE = Scope("the module", "")


def scopes(source: str) -> dict[int, Scope]:
    """Return the innermost function or class around each line that is in one."""
    found: dict[int, Scope] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                docstring = ast.get_docstring(child) or ""
                scope = Scope(f"{prefix}{child.name}", docstring.partition("\n")[0])
                last = child.end_lineno or child.lineno
                found.update(dict.fromkeys(range(child.lineno, last + 1), scope))
                visit(child, f"{scope.name}.")

    visit(ast.parse(source), "")
    return found


def import_lines(source: str) -> set[int]:
    """Return the numbers of all lines of import statements."""
    numbers: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            numbers.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return numbers


def informative_lines() -> list[Line]:
    """Return every line that can be drawn."""
    lines = []
    for path in sorted(SOURCE.rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        scope_of = scopes(source)
        imports = import_lines(source)
        for number, text in enumerate(source.splitlines(), start=1):
            if number not in imports and not UNINFORMATIVE.fullmatch(text):
                lines.append(Line(path.relative_to(SOURCE), number, text, scope_of.get(number, MODULE)))
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
        summary = f" ({line.scope.summary})" if line.scope.summary else ""
        print(f"{question:3}. in {line.scope.name}{summary}: {line.text.strip()}")
        answers.append(f"{question:3}. {line.path.as_posix()}:{line.number}")
    options.key.write_text("\n".join(answers) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
