import numpy as np
import pytest

from probmcl.data.labels import State
from probmcl.errors import OptionError
from probmcl.readers.label_policy import LabelPolicy, meaning_notes

NAMES = ("Edema", "Fracture", "Mass")


def test_meanings_for_all_and_for_single_classes() -> None:
    policy = LabelPolicy.of(["negative", "Mass=unknown"], ["Edema=positive", "unknown", "Mass=soft:0.6"])
    states = policy.blank_states(NAMES, default="unknown")
    assert states.tolist() == [State.ABSENT, State.ABSENT, State.UNKNOWN]
    np.testing.assert_array_equal(policy.chance(NAMES), np.array([1.0, np.nan, 0.6], dtype=np.float32))
    assert meaning_notes(policy, 1, 2, "unknown") == [
        "blank = negative, 'Mass' unknown (1 cell)",
        "-1 = unknown, 'Edema' positive, 'Mass' soft:0.6 (2 cells)",
    ]


def test_default_meanings() -> None:
    policy = LabelPolicy.of()
    assert policy.blank_states(NAMES, default="negative").tolist() == [State.ABSENT] * 3
    assert np.isnan(policy.chance(NAMES)).all()
    assert meaning_notes(policy, 0, 0, "negative") == []


@pytest.mark.parametrize(
    ("blank", "minus_one", "message"),
    [
        (["absent"], [], '`blank="absent"` must be negative or unknown'),
        (["soft:0.5"], [], '`blank="soft:0.5"`'),
        ([], ["soft:1.5"], '`minus_one="soft:1.5"` must be unknown, negative, positive or soft:P'),
        ([], ["soft:x"], '`minus_one="soft:x"`'),
        ([], ["soft:0"], '`minus_one="soft:0"`'),
        ([], ["Edema=maybe"], '`minus_one="maybe"`'),
        (["negative", "unknown"], [], '`blank="unknown"` contradicts'),
        ([], ["Edema=unknown", "Edema=negative"], "`minus_one=\"Edema=negative\"` contradicts .*'Edema'"),
    ],
)
def test_invalid_meanings_are_refused(blank: list[str], minus_one: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        LabelPolicy.of(blank, minus_one)


def test_missing_class_is_refused_with_a_suggestion() -> None:
    with pytest.raises(OptionError, match=r"""`minus_one="Edemma=positive"` .*'Edema'\?"""):
        LabelPolicy.of([], ["Edemma=positive"]).chance(NAMES)
    with pytest.raises(OptionError, match='`blank="Bone=unknown"`'):
        LabelPolicy.of(["Bone=unknown"]).blank_states(NAMES, default="negative")


def test_class_name_may_contain_an_equals_sign() -> None:
    assert LabelPolicy.of(["pH=7=unknown"]).blank_of == {"pH=7": "unknown"}


def test_meanings_are_separated_by_commas_unless_a_class_name_has_one() -> None:
    assert LabelPolicy.of(["negative,Mass=unknown"]) == LabelPolicy.of(["negative", "Mass=unknown"])
    assert LabelPolicy.of([], ["Mass=soft:0.6, Edema=positive"]).minus_one_of == {
        "Mass": "soft:0.6",
        "Edema": "positive",
    }
    assert LabelPolicy.of(["Lung, left=negative"]).blank_of == {"Lung, left": "negative"}
