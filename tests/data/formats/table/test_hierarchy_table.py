from pathlib import Path

import pytest

from helpers.tables import states_of, write_table
from probmcl.data.formats.table.hierarchy_table import read_hierarchy
from probmcl.data.options import ReadOptions
from probmcl.data.read import read
from probmcl.errors import DataError

NAMES = ("animal", "dog", "puppy", "car")


def write(folder: Path, text: str) -> Path:
    (folder / "parents.csv").write_text(text)
    return folder / "parents.csv"


def test_parents_are_read_by_name(tmp_path: Path) -> None:
    table = write(tmp_path, "Parent;Child\nanimal;dog\ndog;puppy\n")
    assert read_hierarchy(table, NAMES) == {"dog": "animal", "puppy": "dog"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("child,parent\ndog,animl\n", r"row 2: 'animl' is no class of the data; did you mean 'animal'"),
        ("child,parent\ndog,animal\ndog,car\n", r"row 3: 'dog' has the parents 'animal' and 'car'; leave one"),
        ("child,parent\ndog,puppy\npuppy,dog\n", r"parents\.csv: class 'dog' is its own ancestor"),
        ("one,other\ndog,animal\n", r"row 1: its columns are one, other; name them child and parent"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read_hierarchy(write(tmp_path, text), NAMES)


def test_children_imply_their_parents_in_what_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    table = write_table(folder, "file,animal,dog,car\n1.jpg,,1,0\n2.jpg,0,,1\n3.jpg,,,0\n")
    parents = write(tmp_path, "child,parent\ndog,animal\n")
    records = read(table, options=ReadOptions(blank=("unknown",), hierarchy=parents), seed=None)
    assert records.label_space.hierarchy == {"dog": "animal"}
    assert states_of(records) == ["++-", "--+", "??-"]
