"""Excel workbooks, written as the few XML files that a reader needs."""

import io
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from string import ascii_uppercase
from xml.sax.saxutils import escape

SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
CONTENT = "application/vnd.openxmlformats-officedocument.spreadsheetml"
STYLES = "<cellXfs><xf numFmtId='0'/><xf numFmtId='14'/></cellXfs>"  # style 1 is a date

DAY_ZERO = date(1899, 12, 30)
"""Excel stores a date as the number of days after this one."""

Cell = str | float | date


def workbook(sheets: Mapping[str, Sequence[Sequence[Cell]]]) -> bytes:
    """Return an Excel file with sheets of texts, numbers and dates."""
    parts = {
        "[Content_Types].xml": _content_types(len(sheets)),
        "_rels/.rels": _relationships({"rId1": ("officeDocument", "xl/workbook.xml")}),
        "xl/workbook.xml": _list_of_sheets(sheets),
        "xl/_rels/workbook.xml.rels": _relationships_of_workbook(len(sheets)),
        "xl/styles.xml": f"<styleSheet xmlns='{SPREADSHEET}'>{STYLES}</styleSheet>",
    }
    for number, rows in enumerate(sheets.values(), 1):
        parts[f"xl/worksheets/sheet{number}.xml"] = _sheet(rows)
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, f"<?xml version='1.0' encoding='UTF-8'?>{text}")
    return file.getvalue()


def _content_types(sheets: int) -> str:
    """Return the file that says what each of the other files contains."""
    kinds = {"/xl/workbook.xml": "sheet.main", "/xl/styles.xml": "styles"}
    for number in range(1, sheets + 1):
        kinds[f"/xl/worksheets/sheet{number}.xml"] = "worksheet"
    overrides = [f"<Override PartName='{part}' ContentType='{CONTENT}.{kind}+xml'/>" for part, kind in kinds.items()]
    return (
        f"<Types xmlns='{PACKAGE}/content-types'><Default Extension='rels' "
        f"ContentType='application/vnd.openxmlformats-package.relationships+xml'/>{''.join(overrides)}</Types>"
    )


def _list_of_sheets(names: Iterable[str]) -> str:
    """Return the file that lists the names of the sheets in their order."""
    items = []
    for number, name in enumerate(names, 1):
        items.append(f"<sheet name='{escape(name)}' sheetId='{number}' r:id='rId{number}'/>")
    return f"<workbook xmlns='{SPREADSHEET}' xmlns:r='{OFFICE}'><sheets>{''.join(items)}</sheets></workbook>"


def _relationships_of_workbook(sheets: int) -> str:
    """Return the file that says where the sheets and the styles are."""
    targets = {f"rId{number}": ("worksheet", f"worksheets/sheet{number}.xml") for number in range(1, sheets + 1)}
    return _relationships({**targets, "styles": ("styles", "styles.xml")})


def _relationships(targets: Mapping[str, tuple[str, str]]) -> str:
    """Return a file of relationships from the kind and the path of each target, by id."""
    items = []
    for name, (kind, path) in targets.items():
        items.append(f"<Relationship Id='{name}' Type='{OFFICE}/{kind}' Target='{path}'/>")
    return f"<Relationships xmlns='{PACKAGE}/relationships'>{''.join(items)}</Relationships>"


def _sheet(rows: Sequence[Sequence[Cell]]) -> str:
    """Return the file of a sheet."""
    lines = []
    for number, row in enumerate(rows, 1):
        lines.append(f"<row r='{number}'>{_cells(number, row)}</row>")
    return f"<worksheet xmlns='{SPREADSHEET}'><sheetData>{''.join(lines)}</sheetData></worksheet>"


def _cells(row: int, values: Sequence[Cell]) -> str:
    """Return the cells of a row of at most 26 columns."""
    columns = ascii_uppercase[: len(values)]
    cells = [_cell(f"{column}{row}", value) for column, value in zip(columns, values, strict=True)]
    return "".join(cells)


def _cell(place: str, value: Cell) -> str:
    """Return a cell at a place such as B3."""
    if isinstance(value, str):
        return f"<c r='{place}' t='inlineStr'><is><t>{escape(value)}</t></is></c>"
    if isinstance(value, date):
        return f"<c r='{place}' s='1'><v>{(value - DAY_ZERO).days}</v></c>"
    return f"<c r='{place}'><v>{value}</v></c>"
