"""Configuration of all tests: no network access, an own cache folder, and one thread (or PROBMCL_TEST_THREADS)."""

import gc
import os
import signal
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # missing weights fail immediately, without a minute of retries
os.environ["OMP_NUM_THREADS"] = os.environ.get("PROBMCL_TEST_THREADS", "1")  # also applies to child processes
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import jaxtyping
import pytest
import torch
from hypothesis import HealthCheck, settings

from helpers.pairwise import pairwise_cover

os.environ.setdefault("MPLCONFIGDIR", str(Path.home() / ".cache" / "matplotlib"))  # collecting fonts again is slow
CACHE = tempfile.TemporaryDirectory()  # instead of the user's cache folder, also in child processes
os.environ["XDG_CACHE_HOME"] = CACHE.name

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))  # with busy cores, more threads make small operations slower

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in a background job; processes under test would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example depends on the machine, so no test has a deadline.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("random"), derandomize=True)
settings.load_profile("same")  # `make fuzz` and `make test-exhaustive` draw new examples each time


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Make random numbers independent of the tests that ran before."""
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats three tracebacks without a GPU, which is slow


@pytest.fixture(autouse=True)
def _empty_cache() -> None:
    """Make the images that a test decodes independent of the tests that ran before."""
    Path(CACHE.name, "probmcl", "duplicates.sqlite").unlink(missing_ok=True)


@pytest.fixture
def without_type_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turn off the run-time type checks of HOOK=1, which users do not have, to test other types."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the results of two processes in one process group, which all tests share."""
    from helpers import images, processes

    folder = tmp_path_factory.mktemp("two_processes")
    images.folder_of_photographs(folder)
    return processes.run(processes.everything, folder, folder)


@pytest.hookimpl(tryfirst=True)  # before tests are deselected by their markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the cases and the worker of each test, and the order of the files."""
    tests = []
    for item in items:
        assert isinstance(item, pytest.Function)
        tests.append(item)
    for test in tests:
        _choose_worker(test)
    _mark_cases_outside_a_pairwise_cover(tests)
    slow_tests = Counter(test.path for test in tests if test.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow_tests[item.path])  # a slow file that starts last would keep one worker busy alone


def _choose_worker(test: pytest.Function) -> None:
    """Run all tests of a file, and all tests of two processes, in one worker, so that they share their fixtures."""
    if "two_processes" in test.fixturenames:
        test.add_marker(pytest.mark.slow)
        test.add_marker(pytest.mark.xdist_group("two_processes"))
    elif test.get_closest_marker("xdist_group") is None:
        test.add_marker(pytest.mark.xdist_group(test.path.stem))


def _mark_cases_outside_a_pairwise_cover(tests: Iterable[pytest.Function]) -> None:
    """Mark the cases of a pairwise test as exhaustive, except for those that cover all pairs of values."""
    grids: dict[str, list[pytest.Function]] = defaultdict(list)
    for test in tests:
        if test.get_closest_marker("pairwise"):
            name_without_case = test.nodeid.partition("[")[0]
            grids[name_without_case].append(test)
    for cases in grids.values():
        cover = pairwise_cover([case.callspec.params for case in cases])
        for index, case in enumerate(cases):
            if index not in cover:
                case.add_marker(pytest.mark.exhaustive)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from searching the imported libraries again and again."""
    gc.collect()
    gc.freeze()
