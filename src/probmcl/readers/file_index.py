"""Index of the files below folders, and the image files that a table names.

A text matches a file if it is its path, possibly without the suffix, with fewer or more folders in front, or in another
case; a number also matches a file name with leading zeros. Each folder is listed only once, because checking a million
files one by one is much slower, especially on a network drive.
"""

import itertools
import os
import re
import unicodedata
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from probmcl.data.image_files import is_file, is_folder, is_image, walk
from probmcl.data.records import Missing, Split
from probmcl.errors import DataError, OptionError, counted, listing, quoted
from probmcl.readers.spreadsheet import Spreadsheet, named

URL = re.compile(r"\b\w+://[^?#]*/([^/?#]+).*")  # the last part is the name; without \b, long cells take minutes

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

SPLIT_FOLDERS: Mapping[str, Split] = {
    "train": "train",
    "training": "train",
    "validation": "val",
    "valid": "val",
    "val": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""The split for each folder name, in lower case."""


class Place(NamedTuple):
    """A root folder, and the number of leading folders of each text that are not part of the path below it."""

    root: Path
    dropped: int = 0
    backslashes: bool = False

    def paths(self, texts: Sequence[str]) -> list[str]:
        """Return the paths that texts have here."""
        if self.backslashes:
            texts = [text.replace("\\", "/") for text in texts]
        if self.dropped:
            texts = [text.split("/", self.dropped)[-1] for text in texts]
        unusual = re.compile(r"/?\.|.*/[/.]").match
        texts = [os.path.normpath(text) if unusual(text) else text for text in texts]
        start = "" if self.root == Path() else f"{self.root}/"
        return [text if text[:1] == "/" else start + text for text in texts]


Found = tuple[list[str], str]  # files that match a text equally well, and how they were found
Folders = tuple[str, ...]  # of a file, from the inside out


class FileIndex:
    """The files below the folders where images may be."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self._listed: dict[str, frozenset[str]] = {}
        self._rows_by_key: dict[str, dict[str, list[int]]] = {}
        self._sorted: dict[tuple[str, str], list[tuple[Folders, str]]] = {}

    def clear(self) -> None:
        """Forget the listings: a million names take 130 MB."""
        self._listed.clear()

    def has(self, path: str) -> bool:
        """Return whether a file exists, from the listing of its folder."""
        folder, slash, name = path.rpartition("/")
        names = self._listed.get(folder)
        if names is None:
            names = self._listed[folder] = files_in(folder or slash or ".")
        return name in names

    def places(self, texts: Sequence[str]) -> tuple[list[Place], int]:
        """Return the places that have the most files among some texts, and their number of files."""
        windows = [text for text in texts if "\\" in text]
        literal = any(self.has(path) for root in self.roots for path in Place(root).paths(windows))
        dropped = range(len(common_folders(texts)) + 1)
        places = [Place(root, n, bool(windows) and not literal) for n in dropped for root in self.roots]
        counts = [sum(map(self.has, place.paths(texts))) for place in places]
        best = [place for place, count in zip(places, counts, strict=True) if count == max(counts)]
        return [place for place in best if place.dropped == best[0].dropped], max(counts)

    def count(self, texts: Sequence[str]) -> int:
        """Return how many of the texts match files."""
        places, found = self.places(texts)
        if found == len(texts):
            return found
        return sum(bool(files) for files, _ in self.find(texts, places[0], len(common_folders(texts))))

    @cached_property
    def _files(self) -> list[str]:
        """All files below the roots, without broken links."""
        outer = [root for root in self.roots if not any(other in root.parents for other in self.roots)]
        entries = [entry for root in outer if root.is_dir() for entry in walk(root)]
        return [entry.path for entry in entries if is_file(entry)]

    def _rows(self, how: str) -> dict[str, list[int]]:
        """Return the rows of the files in `_files` by their keys of one kind; see `below`."""
        if how not in self._rows_by_key:
            rows = defaultdict[str, list[int]](list)
            for row, file in enumerate(self._files):
                for key in _keys(file, how):
                    rows[key].append(row)
            self._rows_by_key[how] = rows
        return self._rows_by_key[how]

    def find(self, texts: Sequence[str], place: Place, dropped: int) -> list[Found]:
        """Return the files that match each text: in a place, or anywhere without up to `dropped` leading folders."""
        paths = zip(place.paths(texts), texts, strict=True)
        return [([path], "") if self.has(path) else self._search(text, place, dropped) for path, text in paths]

    def _search(self, text: str, place: Place, dropped: int) -> Found:
        text = URL.sub(r"\1", text.replace("\\", "/") if place.backslashes else text)
        *folders, name = os.path.normpath(text).split("/")
        match = re.fullmatch(r"(\d+)(\.0)?", name)
        number = match[1].lstrip("0") or "0" if match else ""
        for how, key in (("", name), (SUFFIX, name), (CASE, name.casefold()), (NUMBER, number)):
            wanted = _inside_out(folders, how == CASE)
            found = self._two(wanted, how, key)
            tails = [wanted[:end] for end in range(max(0, len(wanted) - dropped), len(wanted))]
            fewer = [(inner, file) for tail in tails for inner, file in self._two(tail, how, key) if inner == tail]
            same = [(inner, file) for inner, file in found if inner == wanted]
            inside = f"in subfolders of {self.roots[0].name or '.'}/"
            for files, where in (same, ""), (found, inside), (fewer, "without the folders in front"):
                if files:
                    return [file for _, file in files], how if how in (CASE, NUMBER) else where or how
        return [], ""

    def _two(self, folders: Folders, how: str, key: str) -> list[tuple[Folders, str]]:
        """Return the first two files of `below`; many files may have the same name."""
        return list(itertools.islice(self.below(folders, how, key), 2))

    def below(self, folders: Folders, how: str, key: str) -> Iterator[tuple[Folders, str]]:
        """Yield the files with a key whose folders end with the given ones, as their folders and their path.

        `how` is the kind of the key: "" is the name of a file, SUFFIX the name without a suffix, CASE either of them in
        lower case, and NUMBER a number. Folders are ordered from the inside out, and the files are sorted by them.
        """
        known = self._with_key(how, key)
        for index in range(bisect_left(known, (folders,)), len(known)):
            inner, _ = known[index]
            if inner[: len(folders)] != folders:
                return
            yield known[index]

    def _with_key(self, how: str, key: str) -> list[tuple[Folders, str]]:
        rows = self._rows(how)
        if key not in rows:
            return []
        if (how, key) not in self._sorted:
            files = {self._files[row] for row in rows[key]}
            found = [(_inside_out(self._folders(file), how == CASE), os.path.normpath(file)) for file in files]
            self._sorted[how, key] = sorted(found)
        return self._sorted[how, key]

    def _folders(self, file: str) -> list[str]:
        """Return the folders between the first root and a file, which may start with `..`."""
        start = f"{self.roots[0]}/"
        if file.startswith(start):  # `relpath` takes longer, and there may be a million files
            return file[len(start) :].split("/")[:-1]
        return os.path.relpath(file, self.roots[0]).split("/")[:-1]


SUFFIX, CASE, NUMBER = "by adding the suffix", "by ignoring case", "by number, such as 7 for 007.jpg"


def _keys(file: str, how: str) -> tuple[str, ...]:
    name = file.rpartition("/")[2]
    if how == "":
        return (name,)
    stem = name.rpartition(".")[0] if is_image(name) else name
    if how == SUFFIX:
        return (stem,)
    if how == CASE:
        return name.casefold(), stem.casefold()
    return (stem.lstrip("0") or "0",) if stem.isdigit() else ()


def _inside_out(folders: Sequence[str], fold: bool) -> Folders:
    return tuple(folder.casefold() if fold else folder for folder in reversed(folders))


def files_in(folder: str) -> frozenset[str]:
    """Return the names of the files in a folder, or an empty set if it does not exist or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if is_file(entry))
    except OSError:
        return frozenset()


def common_folders(texts: Sequence[str]) -> list[str]:
    """Return the leading folders that all texts have in common."""
    if not texts:
        return []
    first, last = ([*text.replace("\\", "/").split("/")[:-1], None] for text in (min(texts), max(texts)))
    same = [one == other for one, other in zip(first, last, strict=False)]
    return [str(name) for name in first[: same.index(False) if False in same else len(same)] if name is not None]


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


def split_folders(folder: Path) -> dict[Path, Split]:
    """Return the subfolders that have the name of a split, in the order of `SPLIT_FOLDERS`."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:  # faster than a path for each of a million images
        names = [entry.name for entry in entries if entry.name.lower() in SPLIT_FOLDERS and is_folder(entry)]
    positions = {name: position for position, name in enumerate(SPLIT_FOLDERS)}
    names.sort(key=lambda name: (positions[name.lower()], name))
    return {folder / name: SPLIT_FOLDERS[name.lower()] for name in names}
