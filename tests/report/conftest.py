from pathlib import Path

import pytest

from helpers.reports import HOSTILE, finished_run


@pytest.fixture(scope="session")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run whose class names and image names contain markup."""
    return finished_run(tmp_path_factory.mktemp("report") / "run", names=HOSTILE)
