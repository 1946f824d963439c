import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from helpers.excel import workbook
from helpers.tables import Write, labels_of, refused, states_of
from probmcl.errors import DataError
from probmcl.readers.read import read
from probmcl.readers.spreadsheet import OPEN_CELL, load_spreadsheet

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


def test_long_header_and_long_cell(write: Write) -> None:
    names = [f"class {number} {'x' * 90}" for number in range(1000)]
    table = write(f"file,{','.join(names)}\n1.jpg,{','.join('01' * 500)}\n2.jpg,{','.join('10' * 500)}\n")
    assert read(table, seed=None).label_space.names == tuple(names)
    table = write(f"file,mask,tags\n1.jpg,{'1 9 ' * 50_000},cat\n2.jpg,,dog\n")
    assert labels_of(read(table, seed=None)) == [{"cat"}, {"dog"}]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("filename,labels\n1.jpg,cat\n2.jpg,cat,dog\n", "row 3: 3 cells, but 2 columns; quote cells"),
        ("filename,labels\n1.jpg\n", "row 2: 1 cell, but 2 columns"),
        ('filename,labels\n1.jpg,cat\n2.jpg,"cat\n', "row 3"),
        ("filename,labels\n", "no rows"),
        ("", "no rows"),
        ('"filename"s,labels\n1.jpg,cat\n', "row 1"),
        (",\n,\n", "labels.csv"),
        ("filename,labels,labels\n1.jpg,a,b\n", "two columns have the name 'labels'"),
        ("filename,labels\n,cat\n", "row 2: column 'filename' is blank"),
        ("filename,cat\n1.jpg,0\n2.jpg,1\n./1.jpg,1\n", "rows 2 and 4: both have the path './1.jpg'"),
    ],
)
def test_invalid_table_is_refused_with_the_row(write: Write, text: str, part: str) -> None:
    refused(write(text), "labels.csv", part)


SHEET = [["file", "tags"], ["1.jpg", "cat"], ["2.jpg", "dog"]]


def test_sheet_with_a_path_column_is_read(write: Write) -> None:
    table = write("", name="labels.xlsx")
    table.write_bytes(workbook({"Notes": [["author"], ["me"]], "Labels": SHEET, "Empty": []}))
    assert labels_of(read(table, seed=None)) == [{"cat"}, {"dog"}]


def test_two_sheets_that_fit_are_refused(write: Write) -> None:
    table = write("", name="labels.xlsx")
    table.write_bytes(workbook({"2023": SHEET, "2024": SHEET}))
    refused(table, "labels.xlsx", "'2023' and '2024'")


def test_rows_of_a_sheet_are_numbered_as_in_excel(write: Write) -> None:
    table = write("", name="labels.xlsx")
    table.write_bytes(workbook({"Labels": [["file", "tags"], ["1.jpg", "cat"], ["", ""], ["9.jpg", "dog"]]}))
    refused(table, "labels.xlsx, row 4: '9.jpg' does not exist")


def test_dates_and_numbers_in_a_sheet(write: Write) -> None:
    table = write("", name="labels.xlsx", images="0007 0008")
    table.write_bytes(workbook({"Labels": [["id", "tags"], [7, date(2024, 3, 1)], [8.0, "dog"]]}))
    records = read(table, seed=None)
    assert labels_of(records) == [{"2024-03-01"}, {"dog"}]
    assert "label '2024-03-01' looks like a date or number that Excel changed" in str(records.origin)
    table.write_bytes(workbook({"Labels": [["file", "tags"], [date(2024, 3, 1), "cat"], ["0008.jpg", "dog"]]}))
    refused(table, "row 2: '2024-03-01' does not exist", "Excel")


def test_file_that_is_not_a_workbook_is_refused(write: Write) -> None:
    refused(write("file,tags\n1.jpg,cat\n", name="labels.xlsx"), "labels.xlsx: cannot be read as an Excel workbook")


@pytest.mark.parametrize("label", ["1-Mar", "Mar-02", "1.2E+15", "01.03.2024"])
def test_labels_that_excel_changed_are_reported(write: Write, label: str) -> None:
    records = read(write(f"file,tags\n1.jpg,{label}\n2.jpg,SEPT9\n"), seed=None)
    assert f"label '{label}' looks like a date or number that Excel changed" in str(records.origin)


def test_table_with_as_many_rows_as_excel_allows_is_reported(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    table = write("file,tags\n1.jpg,cat\n2.jpg,dog\n")
    assert "maximum" not in str(read(table, seed=None).origin)
    monkeypatch.setattr("probmcl.readers.table.table.EXCEL_ROWS", 3)  # with the header
    assert "3 rows are the maximum in Excel" in str(read(table, seed=None).origin)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.json", '{"1.jpg": ["cat", "dog"], "2.jpg": [], "3.jpg": ["dog"]}'),
        (
            "labels.json",
            '[{"f": "1.jpg", "tags": "cat|dog"}, {"f": "2.jpg", "tags": null}, {"f": "3.jpg", "tags": "dog"}]',
        ),
        (
            "labels.json",
            '[{"f": "1", "cat": true, "dog": 1}, {"f": 2, "cat": false, "dog": 0}, {"f": 3, "dog": 1, "cat": 0}]',
        ),
        ("labels.jsonl", '{"f": "1.jpg", "tags": ["cat", "dog"]}\n\n{"f": "2.jpg"}\n{"f": "3.jpg", "tags": ["dog"]}'),
    ],
)
def test_json(write: Write, name: str, text: str) -> None:
    assert labels_of(read(write(text, name=name), seed=None)) == [{"cat", "dog"}, set(), {"dog"}]


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("labels.jsonl", '{"file": "1.jpg"}\n{"file": "2.jpg",\n', "labels.jsonl, row 2: not valid JSON"),
        ("labels.jsonl", '{"file": "1.jpg"}\n\n[1]\n', "labels.jsonl, row 3: expected an object"),
        ("labels.json", '{"1.jpg": ["cat"', "labels.json: not valid JSON"),
        ("labels.json", '["1.jpg"]', "labels.json, row 1: expected an object"),
    ],
)
def test_invalid_json_is_refused(write: Write, name: str, text: str, part: str) -> None:
    refused(write(text, name=name), part)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "cp1252"])
@pytest.mark.parametrize(("name", "delimiter"), [("labels.csv", ","), ("labels.txt", "\t"), ("labels.txt", "|")])
def test_encodings_and_delimiters(write: Write, encoding: str, name: str, delimiter: str) -> None:
    table = write("", name=name)
    table.write_bytes(f"file{delimiter}tags\r\n1.jpg{delimiter}dög;cät\r\n2.jpg{delimiter}dög\r\n".encode(encoding))
    assert labels_of(read(table, seed=None)) == [{"dög", "cät"}, {"dög"}]


@pytest.mark.parametrize(
    "text",
    [
        "file,tags,\n1.jpg,cat\n2.jpg,dog\n",
        "file,tags,\n1.jpg,cat,\n2.jpg,dog\n",
        "file,tags\n1.jpg,cat,\n2.jpg,dog,,\n",
    ],
)
def test_delimiter_at_the_end_of_a_line(write: Write, text: str) -> None:
    assert labels_of(read(write(text), seed=None)) == [{"cat"}, {"dog"}]


def test_missing_cell_is_refused_if_the_header_ends_in_a_delimiter(write: Write) -> None:
    refused(write("file,tags,\n1.jpg\n2.jpg,dog\n"), "row 2: 1 cell, but 3 columns")


def test_decimal_commas(write: Write) -> None:
    records = read(write("file;cat;dog;score\n1.jpg;1,0;0,0;0,35\n2.jpg;0,0;1,0;1,25\n"), seed=None)
    assert states_of(records) == ["+-", "-+"]
    assert str(records.origin).endswith("ignored: 'score'")


@pytest.mark.parametrize("value", ['{"size": "big"}', '[{"size": "big"}]'])
def test_objects_without_labels_are_refused(write: Write, value: str) -> None:
    refused(write(f'[{{"file": "1.jpg", "labels": {value}}}]', name="a.json"), "row 1", "'labels'", '{"size":"big"}')


def test_titles_above_the_header_are_skipped(tmp_path: Path) -> None:
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / name).touch()
    rows = [
        ["Defects in 2024", "", ""],
        ["", "", ""],
        ["File", "scratch", "rust"],
        ["1.jpg", "x", ""],
        ["2.jpg", "", "x"],
    ]
    (tmp_path / "labels.xlsx").write_bytes(workbook({"Sheet1": rows}))
    records = read(tmp_path, seed=None)
    assert labels_of(records) == [{"scratch"}, {"rust"}]
    assert ", row 5: " in records.where(1)


@pytest.mark.parametrize("top", ["# Exported by a tool\n# Date: 2024-05-01, user: max\n\n", "Photos of 2024\n"])
def test_lines_above_the_header_are_skipped(write: Write, top: str) -> None:
    records = read(write(f"{top}file,labels\n1.jpg,cat|dog\n2.jpg,dog\n"), seed=None)
    assert labels_of(records) == [{"cat", "dog"}, {"dog"}]
    assert f", row {top.count(chr(10)) + 3}: " in records.where(1)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_header_may_contain_line_ends(write: Write, end: str) -> None:
    table = load_spreadsheet(write(f'"file{end}name","lab{end}els"{end}0.jpg,cat{end}'), lambda columns: True)
    assert table.columns == (f"file{end}name", f"lab{end}els")
    assert table.data == (["0.jpg"], ["cat"])


def test_quotation_mark_in_a_title_does_not_hide_the_header(write: Write) -> None:
    assert load_spreadsheet(write('Tiles of 5"\nfile,label\n0.jpg,cat\n'), lambda columns: True).columns == (
        "file",
        "label",
    )


@pytest.mark.parametrize("text", ["\t", " ", '"', ', "', ',"""'])
def test_long_first_line_takes_linear_time(text: str) -> None:
    start = time.process_time()
    OPEN_CELL.search(text * 50_000 + "\n")
    assert time.process_time() - start < 1


def test_header_may_start_with_a_number_sign(write: Write) -> None:
    assert labels_of(read(write("#,file,labels\n1,1.jpg,cat\n2,2.jpg,dog\n"), seed=None)) == [{"cat"}, {"dog"}]


def test_rows_of_different_lengths_without_a_header_are_refused(write: Write) -> None:
    refused(write("1.jpg,cat,dog\n2.jpg,dog\n"), "row 1", "'1.jpg' is an image", "names of the columns")


@pytest.mark.parametrize(
    "text",
    [
        '{"1.jpg": {"width": 8, "labels": ["cat", "dog"]}, "2.jpg": {"width": 8, "labels": []}}',
        '{"1.jpg": [{"label": "cat", "score": 1.0}, {"label": "dog", "score": 0.9}], "2.jpg": []}',
    ],
)
def test_objects_in_json(write: Write, text: str) -> None:
    assert labels_of(read(write(text, name="labels.json"), seed=None)) == [{"cat", "dog"}, set()]


def test_objects_without_a_name_are_refused(write: Write) -> None:
    refused(write('{"1.jpg": [{"score": 1.0}], "2.jpg": []}', name="labels.json"), "row 1", "score", "names")
