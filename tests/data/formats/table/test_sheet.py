import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.tables import Write, labels_of, refused, states_of
from probmcl.data.read import read
from probmcl.errors import DataError

pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")


def write(folder: Path, columns: dict[str, list[Any]]) -> Path:
    from pyarrow import parquet

    for name in columns["file"]:
        (folder / str(name)).touch()
    parquet.write_table(pyarrow.table(columns), folder / "labels.parquet")
    return folder / "labels.parquet"


def test_separators_inside_list_items_are_part_of_the_name(tmp_path: Path) -> None:
    table = write(
        tmp_path, {"file": ["1.jpg", "2.jpg", "3.jpg", "4.jpg"], "labels": [["a b", "c|d"], ["x, y"], [], None]}
    )
    records = read(tmp_path, seed=None)
    assert labels_of(records) == [{"a b", "c|d"}, {"x, y"}, set(), set()]
    assert "column 'labels', names, one list per cell, 3 labels" in str(records.origin)
    assert records.where(1) == f"{table}, row 2: {tmp_path / '2.jpg'}"


def test_lists_with_one_label(tmp_path: Path) -> None:
    write(tmp_path, {"file": ["1.jpg", "2.jpg"], "labels": [["traffic light"], ["none"]]})
    assert labels_of(read(tmp_path, seed=None)) == [{"traffic light"}, set()]


def test_numbers_in_lists_are_indices_into_the_classes(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("zebra\ncat\n")
    write(tmp_path, {"file": ["1.jpg", "2.jpg"], "labels": [[0, 1], [0]]})
    assert labels_of(read(tmp_path, seed=None)) == [{"zebra", "cat"}, {"zebra"}]


def test_flags_of_every_type_and_null(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "file": ["1.jpg", "2.jpg", "3.jpg"],
        "a": [True, False, None],
        "b": [1, 0, -1],
        "c": [1.0, 0.0, float("nan")],
    }
    assert states_of(read(write(tmp_path, columns), seed=None)) == ["+++", "---", "?~?"]


def test_long_form_with_groups_of_numbers(tmp_path: Path) -> None:
    columns: dict[str, list[Any]] = {
        "file": ["1.jpg", "2.jpg", "1.jpg"],
        "label": ["cat", "dog", "dog"],
        "patient_id": [7, 8, 7],
    }
    records = read(write(tmp_path, columns), seed=None)
    assert labels_of(records) == [{"cat", "dog"}, {"dog"}]
    assert records.group == ("7", "8")


def test_missing_pyarrow_is_reported_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write(tmp_path, {"file": ["1.jpg"], "label": ["cat"]})
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(DataError, match=r"labels\.parquet: .*pip install 'probmcl\[parquet\]'"):
        read(table)


@pytest.mark.parametrize("data", [b"", b"PAR1 and no more"])
def test_invalid_parquet_file_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "labels.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"labels\.parquet: pyarrow cannot read"):
        read(tmp_path / "labels.parquet")
    with pytest.raises(DataError, match=r"labels\.parquet: no rows"):
        read(write(tmp_path, {"file": [], "label": []}))
    with pytest.raises(DataError, match="does not exist"):
        read(tmp_path / "other.parquet")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufefffilename;labels\r\n1.jpg;cat,dög\r\n"),
        ("a.tsv", 'filename\tlabels\n1.jpg\t"cat,dög"\n'),
        ("a.csv", "filename\tlabels\n1.jpg\tcat,dög\n"),
        ("a.CSV", '\n"filename","labels"\n"1.jpg","cat,dög"\n\n'),
        ("a.csv", "filename;labels;a,b\n1.jpg;cat|dög;x\n"),
    ],
)
def test_delimiters_quotes_byte_order_marks_and_line_ends(write: Write, name: str, text: str) -> None:
    assert labels_of(read(write(text, name=name), seed=None)) == [{"cat", "dög"}]


def test_text_in_another_encoding(write: Write) -> None:
    table = write("")
    table.write_bytes(b"filename,labels\n1.jpg,d\xf6g\n")
    assert labels_of(read(table, seed=None)) == [{"dög"}]
    table.write_bytes(b"filename,labels\n1.jpg,d\xf6\x81g\n")  # 0x81 is not defined in Windows-1252
    refused(table, "UTF-8", "Windows-1252", "0x81")


def test_rows_are_numbered_as_in_an_editor(write: Write) -> None:
    table = write('filename,note,labels\n\n1.jpg,"two\nlines",cat\n\n2.jpg,,dog\n7.jpg,,dog\n')
    refused(table, "row 7", "'7.jpg'")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("filename,labels\n1.jpg,cat\n2.jpg,cat,dog\n", "row 3: 3 cells, but 2 columns; quote cells"),
        ("filename,labels\n1.jpg\n", "row 2: 1 cells, but 2 columns"),
        ('filename,labels\n1.jpg,cat\n2.jpg,"cat\n', "row 3"),
        ("filename,labels\n", "no rows"),
        ("", "no rows"),
        ("filename,labels,labels\n1.jpg,a,b\n", "two columns have the name 'labels'"),
        ("filename,labels\n,cat\n", "row 2: column 'filename' is blank"),
        ("filename,cat\n1.jpg,0\n2.jpg,1\n./1.jpg,1\n", "rows 2 and 4: both have the path './1.jpg'"),
    ],
)
def test_invalid_table_is_refused_with_the_row(write: Write, text: str, part: str) -> None:
    refused(write(text), "labels.csv", part)
