"""The layout as data: the order of the packages, and rules that no single test of a module could hold."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "probmcl"

PACKAGES = (
    "errors",
    "files",
    "console",
    "tables",
    "runtime",
    "legacy",
    "run_folder",
    "data",
    "augment",
    "encoders",
    "mixture",
    "overlap",
    "heads",
    "losses",
    "methods",
    "training",
    "evaluation",
    "settings",
    "cost",
    "inference",
    "run",
    "experiments",
    "report",
    "api",
    "demo",
    "cli",
    "__main__",
)
"""Every top-level name, in the order in which they may import each other: each only from those before it."""

WITHOUT_LIBRARIES = (
    "probmcl",
    "probmcl.methods",
    "probmcl.cli",
    "probmcl.cli.train",
    "probmcl.api",
    "probmcl.cli.check",
    "probmcl.cli.evaluate",
    "probmcl.data",
    "probmcl.data.options",
)
HEAVY = {"torch", "timm", "sklearn", "scipy", "numpy", "PIL", "jaxtyping", "matplotlib"}
VAGUE = {"utils", "util", "common", "core", "helpers", "misc", "base_utils"}

OPTION = re.compile(r"(?<![\w-])--[a-z]")
RUN_FILES = re.compile(
    r"(config|labels|preprocessing|run|evaluation|retrieval|spec)\.json|(split|folds)\.csv|metrics\.jsonl|views\.png"
    r"|model\.safetensors"
)
SPELLS_RUN_FILES = {"run_folder.py", "legacy.py"}
NOT_OF_A_RUN = {
    "data/formats/digits.py": "labels.csv of the data set that it writes",
    "encoders/weights.py": "model.safetensors is also the name of a file on the model hub",
}

FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]
every_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> set[str]:
    """Return the top-level names of this package that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "probmcl":
            modules = [f"probmcl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        names |= {name.split(".")[1] for name in modules if name.startswith("probmcl.")}
    return names - {"__version__"}


def strings(path: Path) -> Iterator[tuple[int, str]]:
    """Yield every string of a file with its line, docstrings and the text of f-strings included."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def test_the_top_level_names_are_those_listed() -> None:
    assert {package_of(path) for path in FILES} == set(PACKAGES)


@every_file
def test_a_package_imports_only_from_those_before_it(path: Path) -> None:
    position = PACKAGES.index(package_of(path))
    late = {name for name in imported(path) if PACKAGES.index(name) > position}
    assert not late, f"{path.name} belongs to {PACKAGES[position]} and imports {late}"


def test_no_file_has_a_vague_name() -> None:
    assert not [path for path in FILES if path.stem in VAGUE or path.parent.name in VAGUE]


@every_file
def test_only_the_command_line_spells_options(path: Path) -> None:
    if package_of(path) != "cli":
        assert not [f"line {line}: {text.strip()[:80]}" for line, text in strings(path) if OPTION.search(text)]


@every_file
def test_only_run_folder_spells_the_file_names_of_a_run(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    if name not in SPELLS_RUN_FILES | NOT_OF_A_RUN.keys():
        spelled = [f"line {line}: {text}" for line, text in strings(path) if RUN_FILES.fullmatch(text)]
        assert not spelled


@every_file
def test_no_function_takes_its_locals_as_data_or_relays_keyword_arguments(path: Path) -> None:
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    assert not [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "locals"]
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    assert not [node.name for node in functions if relays(node) and not is_wrapper(node)]


def relays(function: ast.FunctionDef) -> bool:
    """True if a function passes its own **kwargs on to another call."""
    name = function.args.kwarg and function.args.kwarg.arg
    passed = [k for node in ast.walk(function) if isinstance(node, ast.Call) for k in node.keywords if k.arg is None]
    return name is not None and any(isinstance(k.value, ast.Name) and k.value.id == name for k in passed)


def is_wrapper(function: ast.FunctionDef) -> bool:
    """True for the wrapper that a decorator returns, which takes whatever the wrapped function takes."""
    return any("wraps" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize("module", WITHOUT_LIBRARIES)
def test_importing_it_loads_no_heavy_library(module: str) -> None:
    code = f"import {module}, sys; sys.exit(bool({HEAVY} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
