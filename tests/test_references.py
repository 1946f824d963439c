"""Every file, module, function, option and command that pages, comments and docstrings name exists.

The changelog is history and may name what is gone. A name is looked for where its spelling says that it is one: a path
by its suffix, an option by its dashes, and a function or class in backticks by its underscores, capitals or brackets.
"""

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from probmcl.cli.commands import COMMANDS

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("[!.]*/README.md")} - {ROOT / "CHANGELOG.md"}
)
FOLDERS = ("src", "tests", "benchmarks", "tools", "examples", "docs", "recipes")
FILES = sorted([*ROOT.glob("*"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*"))])
CODE = [path for path in FILES if path.suffix == ".py" and path != Path(__file__)]  # this file names what is missing
NAMES_IN = {".py", ".toml", ".js", ".css", ".j2", ".bib", ".json"}
"""Suffixes of files whose words are names that a text may use."""

FILE = re.compile(r"(?<![\w./<{*-])(?:\.\./)*[\w./-]*\w\.(?:py|md|toml|j2|bib)(?![\w/(*-])")
MODULE = re.compile(r"\bprobmcl(?:\.[A-Za-z_]\w*)+")
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
COMMAND = re.compile(r"(?<=`)(?:\$ )?probmcl ([a-z]+)\b|^\$ probmcl ([a-z]+)\b", re.MULTILINE)
TARGET = re.compile(r"(?:`|^\$ )make ([a-z]+(?:-[a-z]+)*)")
DECISION = re.compile(r"\bdecision (\d{4})\b")
IN_BACKTICKS = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
IDENTIFIER = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(\(\))?")
WORD = re.compile(r"[A-Za-z_]\w*")

EXAMPLE_FILES = re.compile(r"(.*/)?(my_\w+|script|mine|(test_)?NAME|FILE)\.(py|md|toml)")
"""Files of users in examples, and placeholders."""

OTHER_OPTIONS = {
    "nproc-per-node",  # torchrun
    "max-restarts",
    "nnodes",
    "rdzv-backend",
    "rdzv-endpoint",
    "index-url",  # pip
    "durations",  # pytest
}


class Reference(NamedTuple):
    """A name in a text, and its line."""

    line: int
    kind: str
    name: str


def references(text: str) -> Iterator[Reference]:
    """Yield what a text names: files, modules, options, commands, make targets, decisions and identifiers."""
    for number, line in enumerate(text.splitlines(), start=1):
        named = re.sub(r"https?://\S+", "", line)
        for match in FILE.finditer(named):
            yield Reference(number, "file", match[0])
        for match in MODULE.finditer(named):
            yield Reference(number, "module", match[0])
        for match in OPTION.finditer(named):
            yield Reference(number, "option", match[1])
        for match in COMMAND.finditer(named):
            yield Reference(number, "command", match[1] or match[2])
        for match in TARGET.finditer(named):
            yield Reference(number, "target", match[1])
        for match in DECISION.finditer(named):
            yield Reference(number, "decision", match[1])
        for match in IN_BACKTICKS.finditer(named):
            identifier = IDENTIFIER.fullmatch(match[1])
            if identifier is not None and looks_like_code(identifier):
                yield Reference(number, "identifier", identifier[1])


def looks_like_code(identifier: re.Match[str]) -> bool:
    """Return whether a word in backticks is a name in code rather than a value or an abbreviation."""
    name = identifier[1]
    has_two_humps = re.search("[a-z][A-Z]", name) is not None
    return identifier[2] is not None or "_" in name.strip("_") or has_two_humps


def missing(text: str) -> list[str]:
    """Return the names in a text that do not exist, each with its line."""
    return [f"line {line}: {kind} {name}" for line, kind, name in references(text) if not EXISTS[kind](name)]


def file_exists(name: str) -> bool:
    """Return whether a file of the repository has this name, or a path that ends with it."""
    path = re.sub(r"^(\.{1,2}/)+", "", name)
    if EXAMPLE_FILES.fullmatch(path):
        return True
    return f"/{path}\n" in file_list()


@cache
def file_list() -> str:
    """Return the paths of all files in one text, each with a leading slash on a line."""
    return "".join(f"/{path.relative_to(ROOT).as_posix()}\n" for path in FILES)


@cache
def module_exists(name: str) -> bool:
    """Return whether a dotted name is a module, or a module followed by names that it defines."""
    path = ROOT / "src"
    rest = name.split(".")
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    if rest and (path / f"{rest[0]}.py").is_file():
        rest.pop(0)
    return all(part in words() for part in rest)


@cache
def words() -> frozenset[str]:
    """Return every word in the code, recipes and templates of the repository."""
    found: set[str] = set()
    for path in FILES:
        if path in CODE:
            found.update(code_words(path.read_text(encoding="utf-8")))
        elif path.suffix in NAMES_IN and path.is_file() and path != Path(__file__):
            found.update(WORD.findall(path.read_text(encoding="utf-8")))
    return frozenset(found)


def code_words(source: str) -> Iterator[str]:
    """Yield the words in the names and strings of a Python file, but not those in its comments and docstrings."""
    tree = ast.parse(source)
    docstrings = {id(text) for text in documented(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            if isinstance(node.value, str) and id(node) not in docstrings:
                yield from WORD.findall(node.value)
            continue
        for _, value in ast.iter_fields(node):
            names = value if isinstance(value, list) else [value]
            for name in names:
                if isinstance(name, str):
                    yield from name.split(".")


def documented(tree: ast.AST) -> Iterator[ast.Constant]:
    """Yield the docstrings of a file, including the strings below attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value


@cache
def options() -> frozenset[str]:
    """Return the names of all options of commands, scripts and tools: their parameters, and the flags in strings."""
    flags = set(OTHER_OPTIONS)
    for path in CODE:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {id(text) for text in documented(tree)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                flags.update(OPTION.findall(node.value))
    return frozenset(flags)


def option_exists(name: str) -> bool:
    """Return whether some command has this option, whose parameter has underscores."""
    return name in options() or name.removeprefix("no-").replace("-", "_") in words()


@cache
def make_targets() -> frozenset[str]:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([a-z-]+):", text, re.MULTILINE))


def decision_exists(number: str) -> bool:
    return any((ROOT / "docs" / "decisions").glob(f"{number}-*.md"))


EXISTS: dict[str, Callable[[str], bool]] = {
    "file": file_exists,
    "module": module_exists,
    "option": option_exists,
    "command": lambda name: name in COMMANDS,
    "target": lambda name: name in make_targets(),
    "decision": decision_exists,
    "identifier": lambda name: name in words(),
}


def texts_of(source: str) -> str:
    """Return the comments and docstrings of a Python file, each on its line; the other lines are empty."""
    lines = [""] * (source.count("\n") + 2)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0]] += token.string
    for constant in documented(ast.parse(source)):
        for offset, line in enumerate(str(constant.value).splitlines()):
            lines[constant.lineno + offset] += line
    return "\n".join(lines[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_names_exists(page: Path) -> None:
    assert missing(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("folder", FOLDERS[:-1])
def test_what_comments_and_docstrings_name_exists(folder: str) -> None:
    files = [path for path in CODE if path.relative_to(ROOT).parts[0] == folder]
    problems = {
        path.relative_to(ROOT).as_posix(): missing(texts_of(path.read_text(encoding="utf-8"))) for path in files
    }
    assert {name: lines for name, lines in problems.items() if lines} == {}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("`gone.py` reads the labels", "file gone.py"),
        ("see [x](../src/probmcl/gone/records.py)", "file ../src/probmcl/gone/records.py"),
        ("`probmcl.data.gone_module` decodes", "module probmcl.data.gone_module"),
        ("use `--gone-option`", "option gone-option"),
        ("run `probmcl goner x`", "command goner"),
        ("run `make gone-too`", "target gone-too"),
        ("(decision 9999)", "decision 9999"),
        ("`gone_function()` and `GoneClass`", "identifier gone_function"),
    ],
)
def test_a_missing_name_is_found(text: str, name: str) -> None:
    assert f"line 2: {name}" in missing(f"\n{text}")


def test_names_that_exist_are_not_reported() -> None:
    text = "`records.py`, `probmcl.data.records.Records`, `--image-size`, `probmcl train`, `make test`, `LabelSpace`"
    assert missing(text) == []
    assert len(list(references(text))) >= 6
