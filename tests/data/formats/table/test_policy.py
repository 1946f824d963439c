import numpy as np
import pytest

from probmcl.data.formats.table.policy import LabelPolicy, Said
from probmcl.data.labels import State
from probmcl.errors import DataError

NAMES = ("Edema", "Fracture", "Mass")


def test_a_meaning_for_all_and_others_for_some() -> None:
    policy = LabelPolicy.of(["negative", "Mass=unknown"], ["Edema=positive", "unknown", "Mass=soft:0.6"])
    states = policy.blank_states(NAMES, otherwise="unknown")
    assert states.tolist() == [State.ABSENT, State.ABSENT, State.UNKNOWN]
    np.testing.assert_array_equal(policy.chance(NAMES), np.array([1.0, np.nan, 0.6], dtype=np.float32))
    assert policy.describe() == "blank = negative, 'Mass' unknown; -1 = unknown, 'Edema' positive, 'Mass' soft:0.6"


def test_nothing_said_is_what_the_reader_says_and_uncertain_is_unknown() -> None:
    policy = LabelPolicy.of()
    assert policy.blank_states(NAMES, otherwise="negative").tolist() == [State.ABSENT] * 3
    assert np.isnan(policy.chance(NAMES)).all()
    assert policy.describe() == ""


@pytest.mark.parametrize(
    ("blank", "minus_one", "message"),
    [
        ("absent", None, "--blank absent: say negative or unknown"),
        ("soft:0.5", None, "--blank soft:0.5"),
        (None, "soft:1.5", "--minus-one soft:1.5: say unknown, negative, positive or soft:P"),
        (None, "soft:x", "--minus-one soft:x"),
        (None, "soft:0", "--minus-one soft:0"),
        (None, "Edema=maybe", "--minus-one maybe"),
        (["negative", "unknown"], None, "--blank says both negative and unknown for all classes"),
        (None, ["Edema=unknown", "Edema=negative"], "both unknown and negative for 'Edema'"),
    ],
)
def test_meanings_that_are_none_are_refused(blank: Said, minus_one: Said, message: str) -> None:
    with pytest.raises(DataError, match=message):
        LabelPolicy.of(blank, minus_one)


def test_a_class_that_is_not_there_is_answered_with_the_nearest() -> None:
    with pytest.raises(DataError, match=r"--minus-one Edemma=positive: there is no class 'Edemma'.*'Edema'\?"):
        LabelPolicy.of(None, "Edemma=positive").chance(NAMES)
    with pytest.raises(DataError, match="--blank Bone=unknown"):
        LabelPolicy.of("Bone=unknown").blank_states(NAMES, otherwise="negative")


def test_a_class_name_may_hold_an_equals_sign() -> None:
    assert LabelPolicy.of("pH=7=unknown").blank_of == {"pH=7": "unknown"}
