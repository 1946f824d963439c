import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from probmcl.runtime import torchvision_compat

SOURCE = Path(torchvision_compat.__file__).parents[2]


def python(code: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter, because imports and declarations cannot be undone."""
    path = os.pathsep.join(map(str, [*folders, SOURCE]))
    settings = {**os.environ, "PYTHONPATH": path}
    return subprocess.run([sys.executable, "-c", code], env=settings, capture_output=True, text=True, check=False)


def fake_torchvision(folder: Path, opening: str) -> Path:
    """Write a torchvision that prints when it is imported, runs `opening` and has transforms.v2."""
    package = folder / "torchvision" / "transforms"
    package.mkdir(parents=True)
    first_lines = "print('imported')\nimport torchvision.part\n"
    (folder / "torchvision" / "__init__.py").write_text(first_lines + opening, encoding="utf-8")
    (folder / "torchvision" / "part.py").write_text("print('part imported')\n", encoding="utf-8")
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "v2.py").write_text("name = 'fake'\n", encoding="utf-8")
    return folder


REPORT = """
import torch
from probmcl.runtime import torchvision_compat
print(torchvision_compat.transforms.name, torchvision_compat.DECLARED is not None)
print([hasattr(torch.ops.torchvision, operator) for operator in ("nms", "qnms")])
"""


@pytest.mark.slow
def test_installed_torchvision_and_timm_can_be_imported() -> None:
    code = """
from PIL import Image
from probmcl.runtime.torchvision_compat import transforms
import timm, torchvision, torchvision.models
print(transforms.Resize((3, 5))(Image.new("RGB", (9, 9))).size, torchvision.transforms.v2 is transforms)
"""
    done = python(code)
    assert done.stdout.splitlines() == ["(5, 3) True"], done.stderr


@pytest.mark.slow
def test_working_torchvision_is_imported_once_without_declarations(tmp_path: Path) -> None:
    done = python(REPORT, fake_torchvision(tmp_path, ""))
    assert done.stdout.splitlines() == ["imported", "part imported", "fake False", "[False, False]"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "trace", ["\\nException raised from lookup at dispatcher.cpp", pytest.param("", marks=pytest.mark.exhaustive)]
)
def test_missing_operators_are_declared_and_all_modules_are_imported_again(tmp_path: Path, trace: str) -> None:
    # With TORCH_SHOW_CPP_STACKTRACES=1 torch appends a trace to its message.
    opening = f"""
import torch
for operator in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, operator):
        raise RuntimeError("operator torchvision::" + operator + " does not exist{trace}")
"""
    done = python(REPORT, fake_torchvision(tmp_path, opening))
    imports = ["imported", "part imported"]
    assert done.stdout.splitlines() == [*imports, *imports, "fake True", "[True, True]"], done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError('operator torchvision::roi_align does not exist')",
        "ValueError('operator torchvision::nms does not exist')",
    ],
)
def test_other_errors_are_not_caught(tmp_path: Path, error: str) -> None:
    done = python(REPORT, fake_torchvision(tmp_path, f"raise {error}"))
    assert done.returncode == 1
    assert done.stdout.splitlines() == ["imported", "part imported"]  # no second attempt
    assert done.stderr.splitlines()[-1] == error.replace("('", ": ").replace("')", "")


def test_only_modules_of_torchvision_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = dict.fromkeys(["torchvision", "torchvision.io.image", "torchvision_extra", "torch", "my.torchvision"])
    monkeypatch.setattr(sys, "modules", modules)
    torchvision_compat.forget_torchvision()
    assert list(modules) == ["torchvision_extra", "torch", "my.torchvision"]


def test_second_call_declares_nothing() -> None:
    assert torchvision_compat.import_torchvision() is None
    assert sys.modules["torchvision.transforms.v2"] is torchvision_compat.transforms
    assert all(hasattr(torch.ops.torchvision, operator) for operator in ("nms", "qnms"))
