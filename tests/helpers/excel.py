"""Excel workbooks, written as the few XML files that a reader needs."""

import io
import zipfile
from collections.abc import Mapping, Sequence
from datetime import date
from xml.sax.saxutils import escape

SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
CONTENT = "application/vnd.openxmlformats-officedocument.spreadsheetml"
STYLES = "<cellXfs><xf numFmtId='0'/><xf numFmtId='14'/></cellXfs>"  # the second is a date

Cell = str | float | date


def workbook(sheets: Mapping[str, Sequence[Sequence[Cell]]]) -> bytes:
    """Return an Excel file with sheets of texts, numbers and dates."""
    numbers = range(1, len(sheets) + 1)
    parts = {"/xl/workbook.xml": "sheet.main", "/xl/styles.xml": "styles"}
    parts |= {f"/xl/worksheets/sheet{number}.xml": "worksheet" for number in numbers}
    types = "".join(f"<Override PartName='{part}' ContentType='{CONTENT}.{kind}+xml'/>" for part, kind in parts.items())
    targets = {f"rId{number}": ("worksheet", f"worksheets/sheet{number}.xml") for number in numbers}
    listed = "".join(
        f"<sheet name='{escape(name)}' sheetId='{number}' r:id='rId{number}'/>" for number, name in enumerate(sheets, 1)
    )
    files = {
        "[Content_Types].xml": f"<Types xmlns='{PACKAGE}/content-types'><Default Extension='rels' "
        f"ContentType='application/vnd.openxmlformats-package.relationships+xml'/>{types}</Types>",
        "_rels/.rels": _relationships({"rId1": ("officeDocument", "xl/workbook.xml")}),
        "xl/workbook.xml": f"<workbook xmlns='{SPREADSHEET}' xmlns:r='{OFFICE}'><sheets>{listed}</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": _relationships({**targets, "styles": ("styles", "styles.xml")}),
        "xl/styles.xml": f"<styleSheet xmlns='{SPREADSHEET}'>{STYLES}</styleSheet>",
    }
    for number, rows in zip(numbers, sheets.values(), strict=True):
        lines = "".join(f"<row r='{r}'>{_cells(r, row)}</row>" for r, row in enumerate(rows, 1))
        files[f"xl/worksheets/sheet{number}.xml"] = (
            f"<worksheet xmlns='{SPREADSHEET}'><sheetData>{lines}</sheetData></worksheet>"
        )
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, f"<?xml version='1.0' encoding='UTF-8'?>{text}")
    return file.getvalue()


def _relationships(targets: Mapping[str, tuple[str, str]]) -> str:
    items = "".join(
        f"<Relationship Id='{name}' Type='{OFFICE}/{kind}' Target='{target}'/>"
        for name, (kind, target) in targets.items()
    )
    return f"<Relationships xmlns='{PACKAGE}/relationships'>{items}</Relationships>"


def _cells(row: int, values: Sequence[Cell]) -> str:
    return "".join(_cell(f"{chr(64 + column)}{row}", value) for column, value in enumerate(values, 1))


def _cell(place: str, value: Cell) -> str:
    if isinstance(value, str):
        return f"<c r='{place}' t='inlineStr'><is><t>{escape(value)}</t></is></c>"
    if isinstance(value, date):
        return f"<c r='{place}' s='1'><v>{(value - date(1899, 12, 30)).days}</v></c>"
    return f"<c r='{place}'><v>{value}</v></c>"
