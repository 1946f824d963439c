"""Round trips: random labels, written in any dialect, are read back unchanged."""

import csv
import io
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.tables import labels_of, states_of
from probmcl.data.records import Records
from probmcl.readers.folders import NOT_A_CLASS
from probmcl.readers.label_policy import NONE, flag_value
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import read
from probmcl.readers.table.lists import LITERAL
from probmcl.tables import original_cell

SEPARATORS = "|;, "
CODINGS = [
    ("0", "1", "", "-1"),
    ("False", "TRUE", "nan", "-1"),
    ("0.0", "1.0", "NaN", "-1.0"),
    ("no", "Yes", "NULL", "-1"),
]

Sets = list[frozenset[str]]


def texts(forbidden: str) -> st.SearchStrategy[str]:
    """Names in any script, without forbidden characters and surrounding spaces, that look like nothing else."""
    letters = st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs"), exclude_characters=forbidden)
    words = st.text(letters, min_size=1, max_size=8).map(str.strip)
    words = words.filter(lambda text: bool(text) and not LITERAL.match(text) and original_cell(text) == text)
    return words.filter(lambda text: text.lower() not in NONE and flag_value(text) is None)


@st.composite
def labeled(draw: st.DrawFn, names: st.SearchStrategy[str]) -> tuple[list[str], Sets]:
    """Classes and the labels of images: one with all classes, one per class, and random ones."""
    classes = draw(st.lists(names, min_size=2, max_size=5, unique=True))
    others = draw(st.lists(st.frozensets(st.sampled_from(classes)), max_size=5))
    return classes, [frozenset(classes), *(frozenset({name}) for name in classes), *others]


@st.composite
def dialects(draw: st.DrawFn) -> dict[str, object]:
    """Delimiter, name, encoding, line ends and quoting of a file."""
    delimiter, suffix = draw(st.sampled_from([(",", "csv"), (";", "csv"), ("\t", "csv"), ("\t", "tsv")]))
    return {
        "delimiter": delimiter,
        "name": f"labels.{suffix}",
        "encoding": draw(st.sampled_from(["utf-8", "utf-8-sig"])),
        "line": draw(st.sampled_from(["\n", "\r\n"])),
        "quoting": draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
    }


def write(folder: Path, dialect: dict[str, object], rows: Sequence[Sequence[str]]) -> Path:
    """Write a table in a dialect, and the images in its first column."""
    text = io.StringIO(newline="")
    line, quoting = str(dialect["line"]), dialect["quoting"]
    csv.writer(text, delimiter=str(dialect["delimiter"]), lineterminator=line, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    for row in rows[1:]:
        (folder / row[0]).touch()
    path = folder / str(dialect["name"])
    path.write_bytes(text.getvalue().encode(str(dialect["encoding"])))
    return path


def by_name(records: Records) -> dict[str, set[str]]:
    return {path.name: labels for path, labels in zip(records.paths, labels_of(records), strict=True)}


@pytest.mark.parametrize("separator", SEPARATORS)
@settings(max_examples=25)
@given(data=st.data(), dialect=dialects())
def test_lists_of_labels(separator: str, data: st.DataObject, dialect: dict[str, object]) -> None:
    plain = texts(SEPARATORS + "/")  # names with / may be a hierarchy
    one_word = plain.filter(lambda text: len(text.split()) == 1)
    names = one_word if separator == " " else st.tuples(plain, plain).map(" ".join)
    _, sets = data.draw(labeled(names))
    files = [f"{i} {data.draw(texts('/' + chr(92)))}.jpg" for i in range(len(sets))]
    rows = [("file", "labels"), *zip(files, (separator.join(sorted(names)) for names in sets), strict=True)]
    with TemporaryDirectory() as folder:
        assert by_name(read(write(Path(folder), dialect, rows), seed=None)) == dict(zip(files, sets, strict=True))


@pytest.mark.parametrize("coding", CODINGS, ids="/".join)
@settings(max_examples=25)
@given(data=st.data(), dialect=dialects())
def test_one_column_per_class(coding: tuple[str, ...], data: st.DataObject, dialect: dict[str, object]) -> None:
    names = [f"has {name}" for name in data.draw(st.lists(texts(""), min_size=1, max_size=4, unique=True))]
    width = st.lists(st.integers(0, 3), min_size=len(names), max_size=len(names))
    states = [[0] * len(names), *data.draw(st.lists(width, max_size=5))]
    rows = [["file", *names], *([f"{i}.jpg", *(coding[s] for s in row)] for i, row in enumerate(states))]
    with TemporaryDirectory() as folder:
        records = read(write(Path(folder), dialect, rows), seed=None)
    assert records.label_space.names == tuple(names)
    assert states_of(records) == ["".join("-+?~"[state] for state in row) for row in states]


@settings(max_examples=40)
@given(sample=labeled(texts(SEPARATORS[:3] + "/")), dialect=dialects(), order=st.randoms(use_true_random=False))
def test_one_row_per_label(sample: tuple[list[str], Sets], dialect: dict[str, object], order: random.Random) -> None:
    files = {f"{i}.jpg": names for i, names in enumerate(sample[1])}
    pairs = [(file, name) for file, names in files.items() for name in sorted(names) or [""]]
    order.shuffle(pairs)
    with TemporaryDirectory() as folder:
        table = write(Path(folder), dialect, [("file", "label"), *pairs])
        assert by_name(read(table, options=ReadOptions(rows="labels"), seed=None)) == files


@settings(max_examples=40)
@given(sample=labeled(texts("").map(lambda text: f"{text}|, {text}")))
def test_lists_in_parquet(sample: tuple[list[str], Sets]) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    from pyarrow import parquet

    files = {f"{i}.jpg": names for i, names in enumerate(sample[1])}
    with TemporaryDirectory() as folder:
        for file in files:
            (Path(folder) / file).touch()
        columns = {"file": list(files), "labels": [sorted(names) for names in files.values()]}
        parquet.write_table(pyarrow.table(columns), Path(folder) / "labels.parquet")
        assert by_name(read(folder, seed=None)) == files


@settings(max_examples=25)
@given(
    sample=labeled(texts("/").filter(lambda text: text[0] not in "._" and not NOT_A_CLASS.fullmatch(text))),
    link=st.booleans(),
)
def test_one_folder_per_class(sample: tuple[list[str], Sets], link: bool) -> None:
    files = {f"{i}.jpg": names for i, names in enumerate(sample[1]) if names}
    with TemporaryDirectory() as folder:
        for file, names in files.items():
            first, *others = (Path(folder) / name / file for name in sorted(names))
            for path in (first, *others):
                path.parent.mkdir(exist_ok=True)
            first.write_text(file)
            for path in others:
                path.symlink_to(first) if link else path.write_text(file)
        records = read(folder, seed=None)
    assert by_name(records) == files
    assert records.label_space.names == tuple(sorted(sample[0]))
