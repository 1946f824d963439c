"""The environment in which a run is started, as recorded in run.json."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from probmcl.version import __version__

PACKAGES = ("torch", "timm", "torchvision", "numpy", "pillow")
"""Libraries that affect scores."""


class Environment(NamedTuple):
    """The information needed to repeat a run, apart from its seed and settings."""

    command: tuple[str, ...]
    versions: dict[str, str]
    commit: str | None
    started: str


def environment() -> Environment:
    """Return the command, the versions, the commit of the source tree and the time."""
    command = (Path(sys.argv[0]).name, *sys.argv[1:])
    versions = {"python": platform.python_version(), "probmcl": __version__}
    for name in PACKAGES:
        versions[name] = importlib.metadata.version(name)
    started = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return Environment(command, versions, _commit(), started)


def _commit() -> str | None:
    source = Path(__file__).parents[3]
    if not (source / ".git").exists():
        return None
    git = ["git", "-C", str(source), "rev-parse", "HEAD"]
    try:
        return subprocess.run(git, capture_output=True, encoding="utf-8", check=True, timeout=5).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
