"""Layouts in files of different types, delimiters and encodings."""

import io
import json
import zipfile
from collections.abc import Sequence
from xml.sax.saxutils import escape

import pyarrow
import pyarrow.parquet

from layouts.layout import LABELS, TEST, TRAIN_VAL, Layout, columns, expected, table

GERMAN = {"beach": "Küste", "boat": "Fähre", "sunset": "Abendröte"}
GERMAN_LABELS = expected(present=lambda n: [GERMAN[name] for name in LABELS[n]], names=GERMAN.values())

SPREADSHEET = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
WORKBOOK = {
    "[Content_Types].xml": f'<Types xmlns="{PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/>'
    '<Default Extension="xml" ContentType="application/xml"/>'
    '<Override PartName="/xl/workbook.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
    '<Override PartName="/xl/worksheets/sheet1.xml" '
    'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{SPREADSHEET}" xmlns:r="{OFFICE}">'
    '<sheets><sheet name="Sheet1" sheetId="1" r:id="rId1"/></sheets></workbook>',
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{PACKAGE}/relationships">'
    f'<Relationship Id="rId1" Type="{OFFICE}/worksheet" Target="worksheets/sheet1.xml"/></Relationships>',
}


def excel(text: str) -> bytes:
    """Return an Excel workbook with one sheet of the cells of a CSV table; digits are numbers."""
    lines = "".join(
        f'<row r="{r}">{"".join(_cell(f"{chr(64 + c)}{r}", value) for c, value in enumerate(line.split(","), 1))}</row>'
        for r, line in enumerate(text.splitlines(), 1)
    )
    sheet = f'<worksheet xmlns="{SPREADSHEET}"><sheetData>{lines}</sheetData></worksheet>'
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, part in {**WORKBOOK, "xl/worksheets/sheet1.xml": sheet}.items():
            archive.writestr(name, f'<?xml version="1.0" encoding="UTF-8"?>{part}')
    return file.getvalue()


def _cell(place: str, value: str) -> str:
    if value.isdigit():
        return f'<c r="{place}"><v>{value}</v></c>'
    return f'<c r="{place}" t="inlineStr"><is><t>{escape(value)}</t></is></c>'


def parquet() -> bytes:
    """Return a Parquet file with a column of lists."""
    file = io.BytesIO()
    lists = pyarrow.table(
        {"file": [f"{n}.jpg" for n in LABELS], "labels": [list(labels) for labels in LABELS.values()]}
    )
    pyarrow.parquet.write_table(lists, file)
    return file.getvalue()


def objects(key: str = "file", numbers: Sequence[int] = tuple(LABELS)) -> list[str]:
    """Return one JSON object per image."""
    return [json.dumps({key: f"{n}.jpg", "labels": LABELS[n]}) for n in numbers]


MARKED = table("file,beach,boat,sunset", lambda n, labels: f"{n}.jpg,{columns(labels, '1', '0')}")
GERMAN_TABLE = table("Datei;Labels", lambda n, labels: f"{n}.jpg;{', '.join(GERMAN[name] for name in labels)}")

FILES = [
    Layout(
        "tsv",
        "a `.tsv` file (`→` is a tab)",
        {"labels.tsv": table("file\tlabels", lambda n, labels: f"{n}.jpg\t{','.join(labels)}")},
    ),
    Layout(
        "txt",
        "a `.txt` file with semicolons",
        {"labels.txt": table("file;labels", lambda n, labels: f"{n}.jpg;{','.join(labels)}")},
    ),
    Layout(
        "cp1252",
        "text saved by Excel on Windows (cp1252)",
        {"labels.csv": GERMAN_TABLE.encode("cp1252")},
        GERMAN_LABELS,
        shown=GERMAN_TABLE,
    ),
    Layout("bom", "UTF-8 with a byte order mark", {"labels.csv": "\ufeff" + GERMAN_TABLE}, GERMAN_LABELS),
    Layout(
        "decimal-commas",
        "semicolons, and decimal commas",
        {
            "labels.csv": table(
                "file;beach;boat;sunset", lambda n, labels: f"{n}.jpg;{columns(labels, '1,0', '0,0', delimiter=';')}"
            )
        },
    ),
    Layout(
        "trailing-comma",
        "a comma at the end of the header",
        {"labels.csv": table("file,labels,", lambda n, labels: f"{n}.jpg,{'|'.join(labels)}")},
    ),
    Layout(
        "xlsx",
        "an Excel file (`.xlsx`)",
        {"labels.xlsx": excel(MARKED)},
        shown=MARKED,
    ),
    Layout(
        "parquet",
        "a `.parquet` file with lists",
        {"labels.parquet": parquet()},
        shown=table("file labels", lambda n, labels: f"{n}.jpg {json.dumps(labels)}"),
    ),
    Layout("json", "a `.json` file with a list of objects", {"labels.json": "[" + ",\n ".join(objects()) + "]\n"}),
    Layout("jsonl", "a `.jsonl` file", {"labels.jsonl": "\n".join(objects()) + "\n"}),
    Layout(
        "hugging-face",
        "`train/` and `test/` with a `metadata.jsonl` each, as on Hugging Face",
        {
            "train/metadata.jsonl": "\n".join(objects("file_name", TRAIN_VAL)) + "\n",
            "test/metadata.jsonl": "\n".join(objects("file_name", TEST)) + "\n",
        },
        {**expected("train/{}.jpg", TRAIN_VAL), **expected("test/{}.jpg", TEST)},
        split={f"train/{n}.jpg": "train" for n in TRAIN_VAL} | {f"test/{n}.jpg": "test" for n in TEST},
    ),
]
