"""Commands where nothing exists that only POSIX has, and open files cannot be replaced, as on Windows.

This runs on Linux: it shows that nothing else is needed, but not that the commands work on another system.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from called_modules import OPTIONS, write_photos
from helpers.commands import HANGS, main

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")]


def run_without_posix(commands: list[list[str]], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run commands where text has an encoding of Windows, unless the code names another one."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "PYTHONIOENCODING": "cp1252",
        "PYTHONWARNDEFAULTENCODING": "1",
    }
    words = [sys.executable, "-m", "helpers.other_system", json.dumps(commands)]
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, encoding="cp1252", check=False, timeout=HANGS
    )


def test_commands_need_nothing_that_only_posix_has(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos")
    ended = run_without_posix(
        [
            ["check", "photos", "--workers", "2"],
            ["train", "photos", "--out", "run", *OPTIONS.split(), "--method", "bce", "--no-report"],
            ["predict", "run", "photos", "--out", "new.csv", "--workers", "2"],
            ["report", "run"],
        ],
        tmp_path,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "OK: no problems found" in ended.stdout
    assert r"+/\u2212: over the frozen probe" in ended.stdout  # cp1252 has no minus sign
    assert {"check.json", "new.csv"} <= {path.name for path in tmp_path.iterdir()}
    files = [path.name for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"manifest.json", "model.safetensors", "report.html"} <= set(files)
    assert not [name for name in files if name.endswith((".part", ".lock", ".npy"))]
    again = main("predict", "run", "photos", "--out", "again.csv", "--workers", "0", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "new.csv").read_bytes()
