"""Rules for the whole package: the order of imports, file names, and forbidden constructs."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

from density import Density, density, source_files
from helpers.posix import system_calls
from probmcl.store.files import FILES as FILES_OF_RUNS
from probmcl.store.files import Folder

SOURCE = Path(__file__).parent.parent / "src" / "probmcl"

PACKAGES = (
    "version",
    "errors",
    "runtime",
    "tables",
    "console",
    "store",
    "data",
    "readers",
    "audit",
    "augment",
    "encoders",
    "mixture",
    "overlap",
    "heads",
    "losses",
    "methods",
    "training",
    "evaluation",
    "calibration",
    "neighbors",
    "settings",
    "cost",
    "explain",
    "inference",
    "run",
    "experiments",
    "report",
    "launch",
    "api",
    "demo",
    "cli",
    "__main__",
)
"""All top-level modules and packages; each may import only from those before it."""

MODULES = {
    "data": (
        "labels",
        "records",
        "stratify",
        "splitting",
        "image_files",
        "pixels",
        "dicom",
        "jpeg_damage",
        "images",
        "deep_images",
        "image_cache",
        "in_memory",
        "loader",
    ),
    "readers": (
        "spreadsheet",
        "label_policy",
        "options",
        "class_knowledge",
        "hierarchy_file",
        "file_index",
        "annotations",
        "table.lists",
        "table.columns",
        "table.entries",
        "table.merging",
        "table.table",
        "split_tables",
        "hugging_face",
        "coco",
        "voc",
        "yolo",
        "label_studio",
        "adp",
        "folders",
        "read",
    ),
    "audit": (
        "duplicates.hashing",
        "duplicates.candidates",
        "duplicates.comparison",
        "duplicates.search",
        "statistics",
        "findings",
        "result",
        "split_file",
        "prepare",
    ),
}
"""All modules of the packages with an inner order; each may import only from those before it."""

ALLOWED_HOMONYMS = {
    "command": ("cli", "the function of a command, which the command line finds by this name"),
    "Config": ("methods", "the settings of the method in the same file"),
    "recognizes": ("readers", "whether a path has the format of a reader; the detection of formats asks every reader"),
}
"""Names that several modules may define, at most five: the package of these modules, and what the name means there."""

DENSITY = {
    "errors": 12.7,
    "runtime": 10.7,
    "tables": 12.9,
    "console": 11.7,
    "store": 12.7,
    "data": 13.0,
    "audit": 14.9,
    "augment": 15.2,
    "encoders": 11.7,
    "mixture": 15.1,
    "overlap": 13.7,
    "heads": 14.4,
    "losses": 12.7,
    "methods": 13.7,
    "training": 12.5,
    "evaluation": 14.3,
    "calibration": 14.4,
    "neighbors": 15.1,
    "settings": 11.8,
    "cost": 11.9,
    "explain": 13.0,
    "inference": 13.6,
    "run": 13.5,
    "experiments": 14.7,
    "report": 13.6,
    "launch": 12.2,
    "api": 10.3,
    "demo": 15.5,
    "cli": 11.9,
}
"""AST nodes per statement in the functions of each package, rounded up to a tenth. These numbers only go down."""

MAX_DENSITY = 15.0
"""The largest density of the whole package."""

MAX_DENSITY_OF_PACKAGES = 16.0
FORMULAS = ("mixture", "losses", "heads", "overlap")
MAX_DENSITY_OF_FORMULAS = 17.0
"""A formula is one statement if it has the shape of the paper's formula."""

NOT_UNPACKED = ("readers",)
"""Packages that are not held to a density."""

LIGHT_MODULES = (
    "probmcl",
    "probmcl.methods",
    "probmcl.cli",
    "probmcl.cli.train",
    "probmcl.api",
    "probmcl.cli.check",
    "probmcl.cli.evaluate",
    "probmcl.data",
    "probmcl.readers.options",
    "probmcl.settings.options",
    "probmcl.settings.model_options",
)
HEAVY_LIBRARIES = {"torch", "timm", "sklearn", "scipy", "numpy", "PIL", "jaxtyping", "matplotlib"}
VAGUE_NAMES = {"utils", "util", "common", "core", "helpers", "misc", "base_utils"}

OPTION = re.compile(r"(?<![\w-])--[a-z]")
COMMAND = re.compile(r"\bprobmcl (train|compare|check|evaluate|predict|explain|calibrate|report|demo)\b")
UNQUOTED = re.compile(r"`[a-z][a-z_]*=(?!True|False|share)[a-z'/.][^`\"]*`")
FILE_NAMES = {row.name for row in FILES_OF_RUNS if not isinstance(row, Folder)}
CLONE_ONLY = re.compile(  # "make the splits" names no target
    r"\b(docs|examples|recipes|benchmarks|tools)/|\w\.md\b|\bREADME|decisions? 0\d|\bmake (check|test|demo|format|lint)"
)
OUTPUT_FILES = {"comparison.md"}
MODE = re.compile("[rwxa][bt]?[+]?|[rwxa][+][bt]")
"""The mode in which a file is opened."""
PLURAL = re.compile(r" (images|classes|cells|columns|groups|copies|epochs|seeds)\b(?!/)")
ALWAYS_PLURAL = {
    "{' and '.join(sorted(first))} images": "two kinds of images",
    "{comparison.seeds:,} seeds": "more than the seeds of another method",
    "{len(values):,} images": "as many as distinct values, which exceed a limit",
    "{total_views:,} images": "whole batches",
}
OTHER_FILES = {
    "demo/digits.py": "labels.csv is a file of the dataset",
    "encoders/weights.py": "model.safetensors is also the name of a file on the model hub",
    "runtime/folders.py": "the lock comes before the store, whose row takes the name from it",
}
OTHER_HASHES = {
    "runtime/tensor_files.py": "the module",
    "report/page.py": "the hash of a content security policy",
    "run/state.py": "a seed",
}

FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


def every_file(rule: Callable[[Path], None]) -> Callable[[], None]:
    """Turn a rule for a file into one test of all files. A test for each file and rule would take ten times as long."""

    def test() -> None:
        broken = {}
        for path in FILES:
            try:
                rule(path)
            except AssertionError as error:
                broken[path.relative_to(SOURCE).as_posix()] = str(error)
        assert not broken

    test.__name__ = rule.__name__
    test.__doc__ = rule.__doc__
    return test


def package_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def module_of(path: Path) -> str:
    """Return the dotted name of a module; a package has the name of its folder."""
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


PATHS = {module_of(path): path for path in (SOURCE / "__init__.py", *FILES)}
"""The file of every module by its dotted name."""


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules of this package that a file imports, also inside functions and for type checking only."""
    names = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{path.name}, line {node.lineno}: a relative import"
            # A name may be a module of its own or an object in the module.
            members = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            names |= {name if name in PATHS else node.module for name in members.values()}
    return frozenset(names & PATHS.keys())


def strings(path: Path, *, docstrings: bool = True) -> Iterator[tuple[int, str]]:
    """Yield every string of a file with its line number, including the text of f-strings."""
    nodes = list(ast.walk(tree(path)))
    statements = set() if docstrings else {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in statements:
            yield node.lineno, node.value


def test_all_top_level_modules_are_listed() -> None:
    assert {package_of(path) for path in FILES} == set(PACKAGES)


@every_file
def test_imports_follow_the_order_of_packages(path: Path) -> None:
    position = PACKAGES.index(package_of(path))
    packages = {name.split(".")[1] for name in imported(path) if name != "probmcl"}
    late = {name for name in packages if PACKAGES.index(name) > position}
    assert not late, f"{path.name} is part of {PACKAGES[position]} and imports {late}"


@pytest.mark.parametrize("package", MODULES)
def test_all_modules_of_a_package_with_an_inner_order_are_listed(package: str) -> None:
    files = [path for path in FILES if package_of(path) == package and path.name != "__init__.py"]
    assert {module_of(path).removeprefix(f"probmcl.{package}.") for path in files} == set(MODULES[package])


@pytest.mark.parametrize(("package", "name"), [(package, name) for package in MODULES for name in MODULES[package]])
def test_imports_follow_the_order_of_modules(package: str, name: str) -> None:
    prefix, order = f"probmcl.{package}", MODULES[package]
    inner = {module for module in imported(PATHS[f"{prefix}.{name}"]) if f"{module}.".startswith(f"{prefix}.")}
    allowed = {f"{prefix}.{earlier}" for earlier in order[: order.index(name)]}
    assert not inner - allowed


def test_no_modules_import_each_other() -> None:
    """Imports in functions and for type checking count: they hide a cycle from Python, not from a reader."""
    try:
        TopologicalSorter({module: imported(path) for module, path in PATHS.items()}).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle of imports: {' <- '.join(error.args[1])}")


def test_a_name_means_one_thing() -> None:
    definitions: dict[str, list[Path]] = defaultdict(list)
    for path in FILES:
        for node in tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                definitions[node.name].append(path)
    repeated = {name: paths for name, paths in definitions.items() if len(paths) > 1}
    stray = {}
    for name, paths in repeated.items():
        package, _ = ALLOWED_HOMONYMS.get(name, ("", ""))
        others = [module_of(path) for path in paths if package_of(path) != package]
        if others:
            stray[name] = others
    assert not stray
    assert len(ALLOWED_HOMONYMS) <= 5
    assert ALLOWED_HOMONYMS.keys() <= repeated.keys(), "an exception that nothing needs"


@pytest.mark.parametrize("package", DENSITY)
def test_statements_do_not_become_denser(package: str) -> None:
    measured = density_of(package).nodes_per_statement
    limit = MAX_DENSITY_OF_FORMULAS if package in FORMULAS else MAX_DENSITY_OF_PACKAGES
    assert DENSITY[package] <= limit
    assert measured <= DENSITY[package], "more thoughts in a statement than before; name the steps"
    assert measured > DENSITY[package] - 0.5, "less dense than before: write the smaller number into DENSITY"


def test_every_package_has_a_density() -> None:
    assert set(DENSITY) == {name for name in PACKAGES if density_of(name).statements} - set(NOT_UNPACKED)


def test_the_package_as_a_whole_has_one_thought_per_statement() -> None:
    assert density(source_files(SOURCE, NOT_UNPACKED)).nodes_per_statement <= MAX_DENSITY


def density_of(package: str) -> Density:
    return density([path for path in FILES if package_of(path) == package])


def test_no_file_has_a_vague_name() -> None:
    assert not [path for path in FILES if path.stem in VAGUE_NAMES or path.parent.name in VAGUE_NAMES]


@every_file
def test_only_the_command_line_spells_options(path: Path) -> None:
    if package_of(path) != "cli":
        assert not [f"line {line}: {text.strip()[:80]}" for line, text in strings(path) if OPTION.search(text)]


@every_file
def test_only_the_command_line_spells_commands(path: Path) -> None:
    """A message writes a call such as `probmcl.train(resume="runs/x")`, which is right in Python."""
    if package_of(path) not in ("cli", "__main__"):
        texts = strings(path, docstrings=False)
        assert not [f"line {line}: {text.strip()[:80]}" for line, text in texts if COMMAND.search(text)]


@every_file
def test_text_values_of_options_in_messages_are_quoted(path: Path) -> None:
    """In Python, group=patient would be a variable. Placeholders are in capitals."""
    if package_of(path) != "cli":
        unquoted = [(line, value) for line, text in strings(path) for value in UNQUOTED.findall(text)]
        assert not unquoted


@every_file
def test_only_the_store_has_the_file_names_of_a_run(path: Path) -> None:
    name = path.relative_to(SOURCE).as_posix()
    if package_of(path) != "store" and name not in OTHER_FILES:
        names = [f"line {line}: {text}" for line, text in strings(path) if text in FILE_NAMES]
        assert not names


@every_file
def test_only_one_module_computes_digests_and_checksums(path: Path) -> None:
    if path.relative_to(SOURCE).as_posix() not in OTHER_HASHES:
        calls = [ast.unparse(node.func) for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
        assert not [call for call in calls if re.search(r"hashlib\.|crc32|adler32|blake2", call)]


@every_file
def test_only_runtime_uses_what_not_every_system_has(path: Path) -> None:
    if package_of(path) != "runtime":
        assert not [f"line {line}: {name}" for line, name in system_calls(tree(path))]


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import fcntl", "fcntl"),
        ("from resource import getrusage", "resource.getrusage"),
        ("from os import fork, path", "os.fork"),
        ("os.open(path, os.O_NOFOLLOW)", "os.O_NOFOLLOW"),
        ("signal.signal(signal.SIGHUP, ended)", "signal.SIGHUP"),
        ("os.mkdir(name, dir_fd=folder)", "dir_fd="),
        ("Path(f'/proc/{pid}/stat').read_text()", "/proc/"),
        ("if sys.platform == 'linux': pass", "sys.platform"),
    ],
)
def test_what_not_every_system_has_is_found(code: str, name: str) -> None:
    assert [use.name for use in system_calls(ast.parse(code))] == [name]


@every_file
def test_written_text_has_line_endings_that_do_not_depend_on_the_system(path: Path) -> None:
    """Without `newline`, Windows writes two characters for each line ending. The linter requires `encoding`."""
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call) and writes_text(node)]
    assert not [node.lineno for node in calls if "newline" not in {keyword.arg for keyword in node.keywords}]


def writes_text(call: ast.Call) -> bool:
    """Return whether a call opens a file in order to write text to it, or writes it."""
    function = ast.unparse(call.func).rpartition(".")
    if function[2] in ("write_text", "TextIOWrapper") and function[0]:
        return True
    if function[2] not in ("open", "fdopen", "NamedTemporaryFile", "TemporaryFile"):
        return False
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    texts = [node.value for node in arguments if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    modes = [text for text in texts if MODE.fullmatch(text)]
    return any(not set(mode).isdisjoint("wax+") and "b" not in mode for mode in modes)


@pytest.mark.parametrize(
    ("code", "writes"),
    [
        ("path.write_text(text, encoding='utf-8')", True),
        ("path.open('w', encoding='utf-8')", True),
        ("os.fdopen(descriptor, 'a')", True),
        ("open(path, mode='r+')", True),
        ("path.open('xb')", False),
        ("path.open(encoding='utf-8')", False),
        ("np.memmap(path, mode='w+')", False),
        ("write_text(path, text)", False),  # our own, which writes bytes
    ],
)
def test_calls_that_write_text_are_found(code: str, writes: bool) -> None:
    [statement] = ast.parse(code).body
    assert isinstance(statement, ast.Expr)
    assert isinstance(statement.value, ast.Call)
    assert writes_text(statement.value) == writes


@every_file
def test_messages_do_not_refer_to_files_that_only_a_clone_has(path: Path) -> None:
    texts = [(line, text) for line, text in strings(path, docstrings=False) if text not in OUTPUT_FILES]
    assert not [f"line {line}: {text}" for line, text in texts if CLONE_ONLY.search(text)]


@every_file
def test_numbers_agree_with_their_nouns(path: Path) -> None:
    """A plural after a formatted value is wrong if the value is 1; `counted` chooses the right form."""
    texts = [node.values for node in ast.walk(tree(path)) if isinstance(node, ast.JoinedStr)]
    pairs = [(one, other) for values in texts for one, other in pairwise(values) if isinstance(other, ast.Constant)]
    plurals = [(one, PLURAL.match(str(other.value))) for one, other in pairs if isinstance(one, ast.FormattedValue)]
    assert not {ast.unparse(ast.JoinedStr([one]))[2:-1] + m[0] for one, m in plurals if m} - ALWAYS_PLURAL.keys()


@every_file
def test_no_function_uses_locals_or_forwards_keyword_arguments(path: Path) -> None:
    calls = [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]
    assert not [node.lineno for node in calls if isinstance(node.func, ast.Name) and node.func.id == "locals"]
    functions = [node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef)]
    assert not [node.name for node in functions if forwards_kwargs(node) and not is_wrapper(node)]


def forwards_kwargs(function: ast.FunctionDef) -> bool:
    """Return whether a function passes its **kwargs to another call."""
    name = function.args.kwarg and function.args.kwarg.arg
    passed = [k for node in ast.walk(function) if isinstance(node, ast.Call) for k in node.keywords if k.arg is None]
    return name is not None and any(isinstance(k.value, ast.Name) and k.value.id == name for k in passed)


def is_wrapper(function: ast.FunctionDef) -> bool:
    """Return whether a function is the wrapper in a decorator, which must accept any arguments."""
    return any("wraps" in ast.unparse(decorator) for decorator in function.decorator_list)


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_import_loads_no_heavy_library(module: str) -> None:
    code = f"import {module}, sys; sys.exit(bool({HEAVY_LIBRARIES} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
