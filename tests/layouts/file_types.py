"""Layouts in files of different types, delimiters and encodings."""

import io
import json
from collections.abc import Sequence

import pyarrow
import pyarrow.parquet

from helpers.excel import workbook
from layouts.layout import LABELS, TEST, TRAIN_VAL, Layout, columns, expected, table

GERMAN = {"beach": "Küste", "boat": "Fähre", "sunset": "Abendröte"}
GERMAN_LABELS = expected(present=lambda n: [GERMAN[name] for name in LABELS[n]], names=GERMAN.values())


def excel(text: str) -> bytes:
    """Return an Excel workbook with one sheet of the cells of a CSV table; digits are numbers."""
    rows = [[int(cell) if cell.isdigit() else cell for cell in line.split(",")] for line in text.splitlines()]
    return workbook({"Sheet1": rows})


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
