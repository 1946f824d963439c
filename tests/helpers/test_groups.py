import pytest


def test_each_file_runs_on_one_worker(request: pytest.FixtureRequest) -> None:
    """Otherwise every worker sets up every session fixture, trained runs included."""
    if request.config.getoption("loadgroup", False):  # set by pytest-xdist in its workers
        assert request.node.nodeid.endswith("@test_groups")
