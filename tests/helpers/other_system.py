"""Runs commands in a process that has nothing that only POSIX has, and cannot replace or delete files that are open.

    python -m helpers.other_system '[["check", "photos"], ["train", "photos"]]'

It stops after the first command that fails. `sys.platform` stays the same, so the branches for Windows do not run.
"""

import errno
import json
import os
import shutil  # noqa: F401 (imported first, because it looks for `os.statvfs` when it is imported)
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from helpers.posix import MODULES, POSIX

NEEDED_ON_LINUX = {
    "SIGKILL": "multiprocessing ends processes with it",
    "posix": "the module os consists of it",
    "statvfs": "shutil.disk_usage calls it",
    "uname": "NumPy calls it when it is imported",
}
"""Names that other packages use on Linux without asking whether they exist, and why."""


def hide_posix() -> None:
    """Hide what only POSIX has from everything that is imported afterwards."""
    for name in MODULES - NEEDED_ON_LINUX.keys():
        sys.modules[name] = None  # type: ignore[assignment]
    modules: dict[str, ModuleType] = {"os": os, "signal": signal}
    for module, names in POSIX.items():
        for name in names - NEEDED_ON_LINUX.keys():
            if hasattr(modules[module], name):
                delattr(modules[module], name)
    os.supports_dir_fd = set()
    os.supports_fd = set()


def protect_open_files() -> None:
    """Refuse to replace or delete a file that this process or one of its children has open or mapped."""
    for name in ("remove", "rename", "replace", "unlink"):
        setattr(os, name, _refusing(getattr(os, name)))


def _refusing(change: Callable[..., None]) -> Callable[..., None]:
    """Return a function that does the same as `change`, unless one of its paths is open."""

    def refuse_or_change(*paths: str | Path, **options: Any) -> None:
        for path in paths:
            if _is_open(path):
                raise PermissionError(errno.EACCES, "the file is open, so Windows would refuse this", os.fspath(path))
        change(*paths, **options)

    return refuse_or_change


def _is_open(path: str | Path) -> bool:
    """Return whether this process or one of its children has a file open. A mapped file is also open in Python."""
    if not Path(path).exists():
        return False
    status = Path(path).stat(follow_symlinks=False)
    return any(os.path.samestat(status, open_file) for open_file in _open_files())


def _open_files() -> Iterator[os.stat_result]:
    """Yield every file that this process or one of its children has open."""
    processes = ["self"]
    for file in Path("/proc/self/task").glob("*/children"):  # the children of each thread
        processes += file.read_text(encoding="ascii").split()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            try:
                yield descriptor.stat()
            except OSError:  # the directory of the descriptors itself, or a child that has just ended
                continue


def main() -> None:
    """Run the commands, and exit with the code of the last one."""
    from probmcl import cli

    for words in json.loads(sys.argv[1]):
        sys.argv = ["probmcl", *words]
        try:
            cli.main()
        except SystemExit as end:
            if end.code:
                raise


if __name__ in ("__main__", "__mp_main__"):  # also in a spawned worker
    warnings.filterwarnings("error", category=EncodingWarning, module="probmcl")
    hide_posix()
    protect_open_files()

if __name__ == "__main__":
    main()
