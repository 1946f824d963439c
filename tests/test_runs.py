from pathlib import Path

import torch

from probmcl import runs


def test_folders_of_one_day_are_numbered_and_never_reused(tmp_path: Path) -> None:
    first, second, third = (runs.new_folder(tmp_path, "demo") for _ in range(3))
    assert first.name.endswith("-demo")
    assert second.name == f"{first.name}-2"
    assert third.name == f"{first.name}-3"


def test_circumstances_name_versions_and_no_path_of_the_machine() -> None:
    about = runs.circumstances(seed=3)
    assert about["seed"] == 3
    assert about["versions"]["torch"] == torch.__version__
    assert "/" not in about["command"][0]
