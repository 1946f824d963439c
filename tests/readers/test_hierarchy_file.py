from pathlib import Path

import pytest

from probmcl.errors import DataError
from probmcl.readers.hierarchy_file import read_hierarchy

CLASSES = ("animal", "dog", "puppy", "car")


def write_parents(folder: Path, text: str) -> Path:
    (folder / "parents.csv").write_text(text)
    return folder / "parents.csv"


def test_parents_are_read_by_name(tmp_path: Path) -> None:
    table = write_parents(tmp_path, "Parent;Child\nanimal;dog\ndog;puppy\n")
    assert read_hierarchy(table, CLASSES) == {"dog": "animal", "puppy": "dog"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("child,parent\ndog,animl\n", r"row 2: 'animl' is not a class in the data; did you mean 'animal'"),
        ("child,parent\ndog,animal\ndog,car\n", r"row 3: 'dog' has two parents, 'animal' and 'car'"),
        ("child,parent\ndog,puppy\npuppy,dog\n", r"parents\.csv: class 'dog' is its own ancestor"),
        ("one,other\ndog,animal\n", r"row 1: expected the columns child and parent, got one, other"),
    ],
)
def test_invalid_hierarchy_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_hierarchy(write_parents(tmp_path, text), CLASSES)
