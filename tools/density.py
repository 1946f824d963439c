"""Measure how densely code is packed: AST nodes per statement in the bodies of functions.

    python tools/density.py src/probmcl --skip readers

Lines can be made fewer by packing more into each; nodes per statement cannot. timm has 13.1 nodes per statement,
scikit-learn 12.3 and attrs 9.9. Code with many formulas has a few more.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple


class Density(NamedTuple):
    """The size of all functions in some files, without their signatures and docstrings."""

    functions: int
    statements: int
    nodes: int

    @property
    def nodes_per_statement(self) -> float:
        """The mean number of AST nodes of a statement; 0 without statements."""
        return self.nodes / self.statements if self.statements else 0.0


def density(files: Iterable[Path]) -> Density:
    """Measure all functions in some files. A nested function is a part of the function around it."""
    functions = 0
    statements = 0
    nodes = 0
    for file in files:
        for body in function_bodies(ast.parse(file.read_text(encoding="utf-8"))):
            functions += 1
            for statement in body:
                for node in ast.walk(statement):
                    nodes += 1
                    if isinstance(node, ast.stmt):
                        statements += 1
    return Density(functions, statements, nodes)


def function_bodies(parent: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield the statements of every outermost function and method, without its docstring, if there are any."""
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from function_bodies(node)
            continue
        body = node.body if ast.get_docstring(node) is None else node.body[1:]
        if body:
            yield body


def source_files(path: Path, skip: Iterable[str] = ()) -> list[Path]:
    """Return a file itself, or the Python files below a folder without those below folders with a skipped name."""
    if path.is_file():
        return [path]
    skipped = set(skip)
    return [file for file in sorted(path.rglob("*.py")) if skipped.isdisjoint(file.relative_to(path).parts)]


def main() -> None:
    """Print the density of a folder and of each of its subfolders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--skip", nargs="*", default=[], metavar="NAME", help="folders to leave out")
    options = parser.parse_args()
    subfolders = sorted(path for path in options.folder.iterdir() if path.is_dir() and path.name not in options.skip)
    print(f"{'folder':<30}{'functions':>10}{'statements':>12}{'nodes/statement':>17}")
    for path in (options.folder, *subfolders):
        measured = density(source_files(path, options.skip))
        if measured.statements:
            print(
                f"{path.name:<30}{measured.functions:>10}{measured.statements:>12}{measured.nodes_per_statement:>17.1f}"
            )


if __name__ == "__main__":
    main()
