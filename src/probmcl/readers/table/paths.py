"""Finds the image files named in a table, and the column that names them."""

import os
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from probmcl.data.image_files import is_image
from probmcl.data.records import Missing
from probmcl.errors import DataError, OptionError, counted, listing, quoted
from probmcl.readers.file_index import CASE, FileIndex, Place, common_folders, files_in
from probmcl.readers.spreadsheet import Spreadsheet, named

PATH = (
    *("filename", "file_name", "filepath", "file_path", "file", "path", "image", "image_path", "imagepath"),
    *("image_name", "image_file", "image_filename", "img", "img_path", "img_name", "img_file"),
)
ID_AS_PATH = ("image_index", "imageindex", "image_id", "imageid")  # ignored if there is a path column

SAMPLED = 200  # texts of a column that are looked up to choose the column and the root folder
MIN_SHARE = 0.5  # of the sampled texts that must match files, if the name of the column does not indicate paths
EXCEL_CELL = re.compile(  # such as 1.2E+15, 2024-03-01, 1-Mar and Mar-01
    r"\d+([.,]\d+)?E[+-]?\d+|\d{1,4}[-./]\d{1,2}[-./]\d{1,4}( \d.*)?|\d{1,2}-[A-Z][a-z]{2}(-\d+)?|[A-Z][a-z]{2}-\d{2}"
)


def find_index(folder: Path, images: Path | None, extra: Sequence[Path] = ()) -> FileIndex:
    """Return the index of `images` or, by default, of the table's folder, its `images/` and other folders in it."""
    if images and not images.is_dir():
        raise OptionError("images", images, "is not a folder")
    inner = [folder / "images"] if (folder / "images").is_dir() else []
    return FileIndex([images] if images else [folder, *inner, *extra])


def find_path_column(table: Spreadsheet, index: FileIndex, taken: set[str]) -> str:
    """Return the column that names the images: by name if its texts match files, otherwise by content."""
    free = [column for column in table.columns if column not in taken]
    by_name = named(free, PATH) or named(free, ID_AS_PATH)
    hits = {column: index.count(_sample(table, column)) for column in by_name}
    if not any(hits.values()) and len(table.columns) > 1:
        samples = {column: _sample(table, column) for column in free if column not in by_name}
        counts = {column: index.count(texts) for column, texts in samples.items() if texts}
        hits |= {column: count for column, count in counts.items() if count >= MIN_SHARE * len(samples[column])}
    best = [column for column, count in hits.items() if count and count == max(hits.values())] or by_name
    if best and is_image(best[0]):
        raise DataError(f"{table.path}, row 1: {best[0]!r} is an image; add a first row with the names of the columns")
    rows = range(0, len(table), max(1, len(table) // SAMPLED))
    texts = [[table.texts(column)[row] for row in rows] for column in best if len(best) > 1]
    files = [index.find(column, index.places(column)[0][0], len(common_folders(column))) for column in texts]
    if best and all([paths for paths, _ in other] == [paths for paths, _ in files[0]] for other in files):
        return best[0]
    if best:
        problem = f"columns {quoted(best)} could all be the {PATH[0]} column"
        raise DataError(f"{table.path}: {problem}; choose one with `path_column=COLUMN`")
    cells = listing(repr(texts[0]) for texts in table.data[:5])
    raise DataError(
        f"{table.path}: none of the columns {listing(table.columns)} names files in {index.roots[0]} (row "
        f"{table.lines[0]}: {cells}); choose the folder with `images=FOLDER`, or the column with `path_column=COLUMN`"
    )


def _sample(table: Spreadsheet, column: str) -> list[str]:
    texts = table.texts(column)
    spread = dict.fromkeys(texts[:: max(1, len(texts) // (4 * SAMPLED))])
    distinct = [text for text in spread if text and "\0" not in text]
    return distinct[:: max(1, len(distinct) // SAMPLED)][:SAMPLED]


def find_images(table: Spreadsheet, column: str, index: FileIndex, missing: Missing) -> tuple[list[str], list[str]]:
    """Return the image file of each row, and notes on how the files were found. A missing file is an error.

    With `missing="keep"`, it is an error only if all files are missing.
    """
    texts = table.texts(column)
    _refuse_invalid_paths(table, column, texts)
    sample = _sample(table, column)
    places, count = index.places(sample)
    if count and (count == len(sample) or missing == "keep"):
        _refuse_two_places(table, index, places, sample)
    files = places[0].paths(texts)
    absent = [row for row, file in enumerate(files) if not index.has(file)]
    found = index.find([texts[row] for row in absent], places[0], len(common_folders(texts))) if absent else []
    for row, (paths, how) in zip(absent, found, strict=True):
        if len(paths) > 1 and how != CASE:
            both = " and ".join(os.path.relpath(path, index.roots[0]) for path in paths[:2])
            remedy = "add the folder or the suffix, or choose a folder with `images=FOLDER`"
            raise DataError(f"{table.where(row)}: {texts[row]!r} matches {both}; {remedy}")
        files[row] = paths[0] if len(paths) == 1 else files[row]
    absent = [row for row, (paths, _) in zip(absent, found, strict=True) if len(paths) != 1]
    if absent and (missing == "error" or len(absent) == len(files)):
        roots = index.roots if len(absent) == len(texts) else [places[0].root]
        raise DataError(_missing_message(table, texts, absent, roots))
    notes = ["'\\' in paths read as '/'"] if places[0].backslashes and count else []
    if places[0].dropped and count:
        notes.append(f"paths without {'/'.join(common_folders(sample)[: places[0].dropped])}/ in front")
    counts = Counter(
        how for _, how in dict.fromkeys((paths[0], how) for paths, how in found if how and len(paths) == 1)
    )
    notes += [f"{counted(count, 'image')} found {how}" for how, count in counts.items()]
    index.clear()
    return files, notes


def _refuse_invalid_paths(table: Spreadsheet, column: str, texts: Sequence[str]) -> None:
    joined = "\n".join(texts)
    if "" not in texts and "\0" not in joined and ".." not in joined:  # faster than a test of each text
        return
    for row, text in enumerate(texts):
        if not text:
            remedy = "enter the path of the image, or delete the row"
            raise DataError(f"{table.where(row)}: column {column!r} is blank; {remedy}")
        if "\0" in text:
            raise DataError(f"{table.where(row)}: {text!r} in column {column!r} is not a valid path; correct it")
        if os.path.normpath(text.replace("\\", "/")).split("/")[0] == "..":
            raise DataError(
                f"{table.where(row)}: {text!r} is outside the image folder; make all paths relative to one folder "
                f"and pass it as `images=FOLDER`"
            )


def _refuse_two_places(table: Spreadsheet, index: FileIndex, places: Sequence[Place], texts: Sequence[str]) -> None:
    """Refuse different files in two places that match equally well; absolute paths match the same files."""
    for other in places[1:]:
        pairs = zip(places[0].paths(texts), other.paths(texts), strict=True)
        if any(one != two and index.has(one) and index.has(two) for one, two in pairs):
            where = listing(str(place.root) for place in places)
            raise DataError(
                f"{table.path}: the images exist in several folders: {where}; choose one with `images=FOLDER`"
            )


def _missing_message(table: Spreadsheet, texts: Sequence[str], absent: Sequence[int], roots: Sequence[Path]) -> str:
    text, remedy = texts[absent[0]], "use `images=FOLDER` if the images are in another folder"
    folder, _, name = text.rpartition("/")
    for other in (other for root in roots for other in files_in(str(root / folder))):
        if unicodedata.normalize("NFC", other) == unicodedata.normalize("NFC", name):
            same = f"{os.path.join(folder, other)!r} differs only in Unicode normalization"  # noqa: PTH118
            remedy = f"{same} (é as one or two characters); rename one of them"
    if re.match(r"[A-Za-z]:[\\/]", text):
        drive = f"{text[:2]!r} is a Windows drive"
        remedy = f"{drive}; make all paths relative to one folder and pass it as `images=FOLDER`"
    if EXCEL_CELL.fullmatch(text):
        remedy = "it looks like a number or date that Excel changed; format the column as text and enter it again"
    others = f" ({counted(len(absent) - 1, 'more is', 'more are')} missing)" if len(absent) > 1 else ""
    where = " or ".join(f"{root}/" for root in roots)
    return f"{table.where(absent[0])}: {text!r} does not exist in {where}{others}; {remedy}"
