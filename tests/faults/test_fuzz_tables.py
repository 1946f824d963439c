"""Random and damaged tables: they are read, or refused with a message."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from helpers.excel import workbook
from probmcl.data import Records
from probmcl.errors import ProbmclError
from probmcl.readers import read

CASES = 2_000
FORMATS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".xlsx")
IMAGES = [f"{number}.jpg" for number in range(1, 7)]

LARGE = "9" * 5000  # in JSON also as a number, which Python refuses to convert to text
HOSTILE = [
    "",
    " ",
    '"',
    '""',
    "\\",
    "\x00",
    "\r",
    "\n",
    "\u2028",
    "\ufeff",
    "=1+1",
    "'=1",
    "-",
    "?",
    "nan",
    "inf",
    "1e999",
]
HOSTILE += [
    "9" * 5000,
    "0x1f",
    "../1.jpg",
    "/",
    "con",
    "a" * 300,
    "a" * 200_000,
    "[" * 5000,
    '{"a":',
    "['a'",
    "\x1b[2J",
]
NAMES = ["filename", "path", "image", "labels", "label", "split", "cat", "dog", "fold", "group", "# comment", "x", "y"]
CELLS = [*IMAGES, "cat", "dog", "cat|dog", "cat;dog", "['cat', 'dog']", "0", "1", "-1", "0.5", "train", "val", "test"]

cells = st.sampled_from(CELLS) | st.sampled_from(HOSTILE) | st.text(max_size=12)
headers = st.lists(st.sampled_from(NAMES) | cells, min_size=1, max_size=6)
encodings = st.sampled_from(["utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252", "latin-1"])


@st.composite
def rows(draw: st.DrawFn) -> list[list[str]]:
    """Draw a table that is mostly regular: a column of images, and cells with labels, splits or anything."""
    header = draw(st.just(["filename", "labels", "split"]) | st.just(["path", "cat", "dog"]) | headers)
    count, wild = draw(st.integers(0, 8)), draw(st.booleans())
    table = [header]
    for number in range(count):
        tame = [IMAGES[number % len(IMAGES)], *(draw(st.sampled_from(CELLS)) for _ in header[1:])]
        table.append(draw(st.lists(cells, max_size=7)) if wild and draw(st.booleans()) else tame)
    return table


@st.composite
def texts(draw: st.DrawFn, delimiters: Sequence[str]) -> bytes:
    """Draw the bytes of a delimited text file."""
    quoting = draw(st.sampled_from(["some", "all", "none"]))
    delimiter, end, table = draw(st.sampled_from(delimiters)), draw(st.sampled_from(["\n", "\r\n", "\r"])), draw(rows())
    if quoting == "none":
        text = end.join(delimiter.join(row) for row in table)
    else:
        file = io.StringIO()
        csv.writer(
            file,
            delimiter=delimiter,
            lineterminator=end,
            quoting=csv.QUOTE_ALL if quoting == "all" else csv.QUOTE_MINIMAL,
        ).writerows(table)
        text = file.getvalue()
    return text.encode(draw(encodings), errors="replace")


scalars = st.none() | st.booleans() | st.integers() | st.floats() | cells | st.sampled_from([10**400, -(10**30)])
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(cells, inner, max_size=4), max_leaves=8
)


@st.composite
def objects(draw: st.DrawFn) -> object:
    """Draw the content of a JSON table: a row per image, labels by image, or any value."""
    header, *body = draw(rows())
    listed: list[dict[str, object]] = [dict(zip(header, row, strict=False)) for row in body]
    listed = [row | ({"labels": draw(values)} if draw(st.booleans()) else {}) for row in listed]
    by_image = {row[0]: row[1:] for row in body if row}
    return draw(st.sampled_from([listed, by_image]) | values)


deep = st.builds(
    lambda depth, opening, closing: opening * depth + closing * depth,
    st.sampled_from([10, 500, 2_000, 100_000]),
    st.sampled_from(["[", '{"labels":', '[{"file": "1.jpg", "labels":']),
    st.sampled_from(["", "]", "}", "}]"]),
)


@st.composite
def json_files(draw: st.DrawFn, *, lines: bool) -> bytes:
    """Draw the bytes of a JSON file, or of one with an object per line."""
    if draw(st.integers(0, 9)) == 0:
        return str(draw(deep)).encode()
    content = draw(objects())
    parts = content if lines and isinstance(content, list) else [content]
    return (
        "\n".join(json.dumps(part) for part in parts)
        .replace(f'"{LARGE}"', LARGE)
        .encode(draw(encodings), errors="replace")
    )


@st.composite
def workbooks(draw: st.DrawFn) -> bytes:
    """Draw the bytes of an Excel file with one or two sheets."""
    table = st.lists(st.lists(cells | st.floats(allow_nan=False) | st.dates(), max_size=7), max_size=8)
    sheets = draw(st.lists(rows() | table, min_size=1, max_size=2))
    return workbook({f"sheet {number}": sheet for number, sheet in enumerate(sheets)})


@st.composite
def damaged(draw: st.DrawFn, content: st.SearchStrategy[bytes]) -> bytes:
    """Draw content, and cut it, or change, insert or repeat some of its bytes in half of all cases."""
    data = bytearray(draw(content))
    for _ in range(draw(st.sampled_from([0, 0, 1, 4]))):
        start = draw(st.integers(0, len(data)))
        kind = draw(st.sampled_from(["cut", "insert", "change", "repeat"]))
        if kind == "cut":
            del data[start:]
        elif kind == "repeat":
            data[start:start] = data[:start]
        else:
            new = draw(st.binary(min_size=1, max_size=4))
            data[start : start + len(new) * (kind == "change")] = new
    return bytes(data)


CONTENT = {
    ".csv": texts([",", ";", "\t"]),
    ".tsv": texts(["\t"]),
    ".txt": texts(["\t", ";", ",", "|", " "]),
    ".json": json_files(lines=False),
    ".jsonl": json_files(lines=True),
    ".xlsx": workbooks(),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with empty images."""
    path = tmp_path_factory.mktemp("tables")
    for name in IMAGES:
        (path / name).touch()
    return path


def check(path: Path, content: bytes) -> None:
    """Assert that a table is read, or refused with a message."""
    path.write_bytes(content)
    try:
        records = read(path)
    except ProbmclError as error:
        assert str(error).strip()  # noqa: PT017
    else:
        assert isinstance(records, Records)


@pytest.mark.fuzz
@pytest.mark.parametrize("suffix", FORMATS)
def test_random_tables_are_read_or_refused(folder: Path, suffix: str) -> None:
    share = CASES // len(FORMATS) + 1

    @settings(
        max_examples=share,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(damaged(CONTENT[suffix]) | st.binary(max_size=60))
    def run(content: bytes) -> None:
        check(folder / f"table{suffix}", content)

    run()
