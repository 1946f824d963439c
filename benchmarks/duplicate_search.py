"""Search the images in a folder for duplicates and print the times and the confirmed pairs as JSON.

`duplicates.py --against` runs this script with two versions of probmcl, which it finds on PYTHONPATH.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any


def timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Return the result of a function, and its time and the CPU time of all processes, in seconds."""
    wall, cpu = time.perf_counter(), _cpu()
    result = work()
    return result, {"wall": time.perf_counter() - wall, "CPU": _cpu() - cpu}


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Search the folder given as the first argument, with the number of workers given as the second."""
    paths = sorted(Path(sys.argv[1]).iterdir())
    options: dict[str, Any] = {"workers": int(sys.argv[2])}
    try:
        modules = [importlib.import_module(f"probmcl.audit.duplicates.{name}") for name in ("hashing", "search")]
        opened = importlib.import_module("probmcl.audit.duplicates.hashing").open_results(None)
    except ModuleNotFoundError:  # version 0.1
        modules = [importlib.import_module(f"probmcl.data.copies.{name}") for name in ("fingerprints", "duplicates")]
        opened = nullcontext()
    with opened as cache:
        options |= {"cache": cache} if cache else {}
        if hasattr(modules[0], "SearchSettings"):  # other versions take each setting by its name
            options = {"settings": modules[0].SearchSettings(**options)}
        prints, reading = timed(lambda: modules[0].fingerprints(paths, **options))
        near, search = timed(lambda: modules[1].near_duplicates(paths, prints, **options))
    total = {clock: reading[clock] + search[clock] for clock in search}
    pairs = [(pair.one, pair.other) for pair in near if pair.confirmed]
    print(json.dumps({"search": search, "reading and search": total, "pairs": pairs}))


if __name__ == "__main__":
    main()
