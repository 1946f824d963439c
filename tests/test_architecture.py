"""The flow is the layout: a stage imports only from the stages before it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "probmcl"

STAGES = (
    "nearest",
    "hierarchy",
    "recipes",
    "memory",
    "files",
    "precision",
    "devices",
    "distributed",
    "vision",
    "data",
    "augment",
    "encoders",
    "mixture",
    "overlap",
    "heads",
    "losses",
    "collapse",
    "methods",
    "training",
    "evaluation",
    "probing",
    "settings",
    "feed",
    "views",
    "store",
    "planning",
    "costs",
    "runs",
    "model",
    "results",
    "material",
    "phases",
    "pipeline",
    "runner",
    "admission",
    "flags",
    "intake",
    "front",
    "comparison",
    "demo",
    "cli",
    "__main__",
)
LIGHT = (
    "probmcl",
    "probmcl.methods",
    "probmcl.cli",
    "probmcl.api",
    "probmcl.experiments.compare",
    "probmcl.data.records",
    "probmcl.data",
)
VAGUE = {"utils", "util", "common", "core", "helpers", "misc", "base_utils"}


def stage_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """Stages of this package that a file imports, anywhere in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "probmcl":
            modules = [f"probmcl.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        found |= {name.split(".")[1] for name in modules if name.startswith("probmcl.")}
    return found - {"__version__"}


FILES = [path for path in sorted(SOURCE.rglob("*.py")) if path != SOURCE / "__init__.py"]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_stage_imports_only_from_stages_before_it(path: Path) -> None:
    here = STAGES.index(stage_of(path))
    late = {name for name in imported(path) if STAGES.index(name) > here}
    assert not late, f"{path.name} belongs to {STAGES[here]} and imports {late}"


def test_every_file_belongs_to_a_stage_and_every_stage_exists() -> None:
    assert {stage_of(path) for path in FILES} == set(STAGES)


def test_no_file_has_a_name_that_says_nothing() -> None:
    assert not [path for path in FILES if path.stem in VAGUE or path.parent.name in VAGUE]


@pytest.mark.parametrize("module", LIGHT)
def test_importing_it_loads_no_torch(module: str) -> None:
    code = f"import {module}, sys; sys.exit(any(heavy in sys.modules for heavy in ('torch', 'timm', 'sklearn')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
