from pathlib import Path

import numpy as np

from probmcl.data.labels import LabelStates
from probmcl.data.records import Records
from probmcl.readers.options import ReadOptions
from probmcl.run.run_files import class_labels


def test_labels_json_has_names_parents_and_policy() -> None:
    states = LabelStates.from_states(
        np.array([[1, 1], [0, 3]], dtype=np.uint8), chance=np.array([np.nan, 0.5], dtype=np.float32)
    )
    records = Records.from_labels(
        ["animal", "cat"], [Path("a"), Path("b")], ["train", "test"], states, hierarchy={"cat": "animal"}
    )
    metadata = class_labels(records, ReadOptions(minus_one=("unknown", "cat=soft:0.5")))
    assert metadata.names == ("animal", "cat")
    assert metadata.counts == (1, 1)
    assert metadata.hierarchy == {"cat": "animal"}
    assert metadata.policy.minus_one == ("unknown", "cat=soft:0.5")
    assert metadata.policy.chance_of_uncertain == {"cat": 0.5}
    assert metadata.policy.labels == {
        "absent": 2,
        "present": 2,
        "unknown": 0,
        "uncertain": 0,
    }  # the parent is absent
