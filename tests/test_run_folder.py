import json
from pathlib import Path

import numpy as np
import torch

from probmcl import run_folder
from probmcl.data.labels import LabelStates
from probmcl.data.records import Records


def test_folders_of_one_day_are_numbered_and_never_reused(tmp_path: Path) -> None:
    first, second, third = (run_folder.new_folder(tmp_path, "demo") for _ in range(3))
    assert first.name.endswith("-demo")
    assert second.name == f"{first.name}-2"
    assert third.name == f"{first.name}-3"


def test_circumstances_name_versions_and_no_path_of_the_machine() -> None:
    about = run_folder.circumstances(seed=3)
    assert about["seed"] == 3
    assert about["versions"]["torch"] == torch.__version__
    assert "/" not in about["command"][0]


def test_an_interrupt_is_noted_where_a_run_was_begun(tmp_path: Path) -> None:
    run_folder.note_interrupt(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "run.json").write_text('{"status": "running", "seed": 3}')
    run_folder.note_interrupt(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text()) == {"status": "interrupted", "seed": 3}


def test_the_file_of_labels_has_names_parents_and_policy() -> None:
    held = LabelStates.from_states(
        np.array([[1, 1], [0, 3]], dtype=np.uint8), chance=np.array([np.nan, 0.5], dtype=np.float32)
    )
    records = Records.from_labels(
        ["animal", "cat"], [Path("a"), Path("b")], ["train", "test"], held, hierarchy={"cat": "animal"}
    )
    found = run_folder.labels_file(records, {"options": {"minus_one": ["unknown", "cat=soft:0.5"]}})
    assert found["names"] == ("animal", "cat")
    assert found["counts"] == [1, 1]
    assert found["hierarchy"] == {"cat": "animal"}
    assert found["policy"]["minus_one"] == ["unknown", "cat=soft:0.5"]
    assert found["policy"]["chance_of_uncertain"] == {"cat": 0.5}
    assert found["policy"]["labels"] == {"absent": 2, "present": 2, "unknown": 0, "uncertain": 0}  # absent parent
