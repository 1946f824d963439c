"""Finds the image files named in a table, and the column that names them.

A text matches a file if it is its path, possibly without the suffix, with fewer or more parent folders, or in a different
case; a number also matches a file name with leading zeros. Each folder is listed only once: checking a million files one by
one is much slower, especially on a network drive.
"""

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from probmcl.data.formats.table.sheet import Table, listing, named, quoted
from probmcl.data.image_files import is_image, walk
from probmcl.data.records import Missing
from probmcl.errors import DataError, OptionError

PATH = (
    *("filename", "file_name", "filepath", "file_path", "file", "path", "image", "image_path", "imagepath"),
    *("image_name", "image_file", "image_filename", "img", "img_path", "img_name", "img_file"),
)
ID_AS_PATH = ("image_index", "imageindex", "image_id", "imageid")
"""Columns that identify an image if there is no path column; otherwise they are ignored."""

SAMPLED = 200  # texts of a column that are looked up to choose the column and the root folder
MIN_SHARE = 0.5  # of the sampled texts that must match files, if the name of the column does not indicate paths
EXCEL_CELL = re.compile(
    r"\d+([.,]\d+)?E[+-]?\d+|\d{1,4}[-./]\d{1,2}[-./]\d{1,4}( \d.*)?|\d{1,2}-[A-Z][a-z]{2}(-\d+)?|[A-Z][a-z]{2}-\d{2}"
)
"""Numbers and dates as Excel writes them, such as 1.2E+15, 2024-03-01, 1-Mar and Mar-01."""

HERE = Path()

Folders = tuple[str, ...]


class Place(NamedTuple):
    """A root folder, and the number of leading folders of each text that are not part of the path below it."""

    root: Path
    dropped: int = 0
    backslashes: bool = False

    def path(self, text: str) -> str:
        """Return the path that a text has here."""
        if self.backslashes:
            text = text.replace("\\", "/")
        if self.dropped:
            text = text.split("/", self.dropped)[-1]
        if "//" in text or "/." in text or text[:1] == ".":
            text = os.path.normpath(text)
        return text if text[:1] == "/" or self.root == HERE else f"{self.root}/{text}"


class FileIndex:
    """The files below the folders where images may be."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = roots
        self._listed: dict[str, frozenset[str]] = {}

    def has(self, path: str) -> bool:
        """Return whether a file exists, from the listing of its folder."""
        folder, slash, name = path.rpartition("/")
        names = self._listed.get(folder)
        if names is None:
            names = self._listed[folder] = _files_in(folder or slash or ".")
        return name in names

    @cached_property
    def tree(self) -> "FileTree":
        """All image files below the roots."""
        return FileTree(self.roots)

    def places(self, texts: Sequence[str]) -> list[tuple[Place, int]]:
        """Return the places with the most files among some texts, and how many they have."""
        backslashes = [False, True] if any("\\" in text for text in texts) else [False]
        prefix = len(_common_folders(texts))
        places = [Place(root, n, slash) for slash in backslashes for n in range(prefix + 1) for root in self.roots]
        counts = [sum(self.has(place.path(text)) for text in texts) for place in places]
        best = [place for place, count in zip(places, counts, strict=True) if count == max(counts)]
        same = [place for place in best if place.dropped == best[0].dropped]  # the fewest folders
        return [(place, max(counts)) for place in same if place.backslashes == best[0].backslashes]

    def count(self, texts: Sequence[str]) -> int:
        """Return how many of the texts match files."""
        place, found = self.places(texts)[0]
        if found == len(texts):
            return found
        dropped = _common_folders(texts)
        return sum(self.has(place.path(text)) or bool(self.tree.find(text, dropped).paths) for text in texts)


class Found(NamedTuple):
    """Files that match a text equally well, and how they were found."""

    paths: list[str]
    how: str


class FileTree:
    """All image files below some folders, by name, by name without suffix, in any case, and by number."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.root = roots[0]
        outer = [root for root in roots if not any(other != root and other in root.parents for other in roots)]
        entries = [entry for root in outer if root.is_dir() for entry in walk(root) if entry.is_file()]
        self.files = [os.path.relpath(entry.path, self.root) for entry in entries]  # `is_file`: false for broken links
        self.paths = [entry.path for entry in entries]

    @cached_property
    def by_name(self) -> dict[str, list[int]]:
        return _grouped((os.path.basename(file), row) for row, file in enumerate(self.files))  # noqa: PTH119

    @cached_property
    def by_stem(self) -> dict[str, list[int]]:
        images = ((os.path.basename(file), row) for row, file in enumerate(self.files))  # noqa: PTH119
        return _grouped((name.rpartition(".")[0], row) for name, row in images if is_image(name))

    @cached_property
    def by_folded_name(self) -> dict[str, list[int]]:
        names = ((os.path.basename(file), row) for row, file in enumerate(self.files))  # noqa: PTH119
        stems = ((stem, row) for stem, rows in self.by_stem.items() for row in rows)
        return _grouped((name.casefold(), row) for pairs in (names, stems) for name, row in pairs)

    @cached_property
    def by_number(self) -> dict[str, list[int]]:
        return _grouped(
            (stem.lstrip("0") or "0", row) for stem, rows in self.by_stem.items() if stem.isdigit() for row in rows
        )

    def find(self, text: str, dropped: Folders) -> Found:
        """Return the files that match a text, without folders of `dropped` if that is necessary."""
        text = os.path.normpath(text.replace("\\", "/"))
        *folders, name = text.split("/")
        number = re.fullmatch(r"0*(\d+?)(\.0)?", name)
        keys = [("", self.by_name, name), ("by adding the suffix", self.by_stem, name)]
        keys += [("by ignoring case", self.by_folded_name, name.casefold())]
        keys += [("by number, such as 7 for 007.jpg", self.by_number, number[1])] if number else []
        for how, index, key in keys:
            rows = index.get(key, [])
            if how and is_image(name) and index is self.by_stem:
                continue
            fold = index is self.by_folded_name
            matches = [(row, way) for row in rows if (way := self._way(row, folders, len(dropped), fold)) is not None]
            if matches:
                nearest = min(way for _, way in matches)
                best = [os.path.normpath(self.paths[row]) for row, way in matches if way == nearest]
                place = (
                    "",
                    f"in subfolders of {self.root.name or self.root}/",
                    f"without {'/'.join(dropped)}/ in front",
                )[nearest]
                return Found(best, how if how and (nearest == 0 or index is not self.by_stem) else place or how)
        return Found([], "")

    def _way(self, row: int, folders: Sequence[str], dropped: int, fold: bool) -> int | None:
        """Return 0 if the folders of a file are those of the text, 1 if it has more, 2 if it has fewer, else None."""
        actual = self.files[row].split("/")[:-1]
        wanted = list(folders)
        if fold:
            actual, wanted = [name.casefold() for name in actual], [name.casefold() for name in wanted]
        if actual == wanted:
            return 0
        if len(actual) >= len(wanted):
            return 1 if actual[len(actual) - len(wanted) :] == wanted else None
        extra = len(wanted) - len(actual)
        return 2 if extra <= dropped and wanted[extra:] == actual else None


def _grouped(pairs: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    groups: dict[str, list[int]] = defaultdict(list)
    for key, row in pairs:
        if row not in groups[key][-1:]:
            groups[key].append(row)
    return dict(groups)


def _files_in(folder: str) -> frozenset[str]:
    """Return the names of the files in a folder, or an empty set if it does not exist or cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries if entry.is_file())
    except OSError:
        return frozenset()


def _common_folders(texts: Sequence[str]) -> Folders:
    """Return the leading folders that all texts have in common.

    >>> _common_folders(["data/photos/a/1.jpg", "data/photos/b/2.jpg"])
    ('data', 'photos')
    """
    common = os.path.commonprefix([text.replace("\\", "/").split("/")[:-1] for text in texts])
    return tuple(common)


def find_index(folder: Path, images: Path | None, extra: Sequence[Path] = ()) -> FileIndex:
    """Return the index of `images` or, by default, of the table's folder, its `images/` and other folders in it."""
    if images and not images.is_dir():
        raise OptionError("images", images, "is not a folder")
    inner = [folder / "images"] if (folder / "images").is_dir() else []
    return FileIndex([images] if images else [folder, *inner, *extra])


def find_path_column(table: Table, index: FileIndex, taken: set[str]) -> str:
    """Return the column that names the images: by name if its texts match files, otherwise by content."""
    free = [column for column in table.columns if column not in taken]
    by_name = named(free, PATH) or named(free, ID_AS_PATH)
    hits = {column: index.count(_sample(table, column)) for column in by_name}
    if len(by_name) == 1 and (hits[by_name[0]] or len(free) == 1):
        return by_name[0]
    if not any(hits.values()):
        samples = {column: _sample(table, column) for column in free if column not in by_name}
        hits |= {column: index.count(texts) for column, texts in samples.items()}
        hits = {column: n for column, n in hits.items() if column in by_name or n >= MIN_SHARE * len(samples[column])}
    best = [column for column, count in hits.items() if count and count == max(hits.values())]
    if len(best) > 1:
        best = _same_files(table, index, best)
    if len(best) == 1 or (not best and len(by_name) == 1):
        return (best or by_name)[0]
    if best or by_name:
        columns = quoted(best or by_name)
        raise DataError(
            f"{table.path}: columns {columns} could all be the {PATH[0]} column; choose one with `path_column=COLUMN`"
        )
    raise DataError(
        f"{table.path}: none of the columns {listing(table.columns)} names files in {quoted(map(str, index.roots[:1]))}; "
        f"choose the folder with `images=FOLDER`, or the column with `path_column=COLUMN`"
    )


def _sample(table: Table, column: str) -> list[str]:
    """Return some distinct texts of a column, from the whole table."""
    texts = table.texts(column)
    step = max(1, len(texts) // (4 * SAMPLED))
    distinct = [text for text in dict.fromkeys(texts[::step]) if text and "\0" not in text]
    return distinct[:: max(1, len(distinct) // SAMPLED)][:SAMPLED]


def _same_files(table: Table, index: FileIndex, columns: list[str]) -> list[str]:
    """Return only the first of some columns if, in a sample of rows, they name the same files."""
    rows = range(0, len(table), max(1, len(table) // SAMPLED))
    files = [[_locate(index, table.texts(column)[row]) for row in rows] for column in columns]
    if all(other == files[0] for other in files):
        return columns[:1]
    varied = [len(set(column)) for column in files]
    return [column for column, number in zip(columns, varied, strict=True) if number == max(varied)]


def _locate(index: FileIndex, text: str) -> str:
    path = index.places([text])[0][0].path(text)
    return path if index.has(path) else "".join(index.tree.find(text, _common_folders([text])).paths)


def find_images(table: Table, column: str, index: FileIndex, missing: Missing) -> tuple[list[str], list[str]]:
    """Return the image file of each row, and notes on how the files were found. A missing file is an error.

    With `missing="keep"`, it is an error only if all files are missing.
    """
    texts = table.texts(column)
    _refuse_invalid_paths(table, column, texts)
    sample = _sample(table, column)
    places = index.places(sample)
    place, count = places[0]
    if count and (count == len(sample) or missing == "keep"):
        _refuse_two_places(table, index, [place for place, _ in places], sample)
    path_of, has = place.path, index.has
    files = [path_of(text) for text in texts]
    absent = [row for row, file in enumerate(files) if not has(file)]
    notes = ["'\\' in paths read as '/'"] if place.backslashes and count else []
    if place.dropped and count:
        notes.append(f"paths without {'/'.join(_common_folders(sample)[: place.dropped])}/ in front")
    if absent:
        absent, searched = _search(table, texts, index, files, absent)
        notes += searched
    if absent and (missing == "error" or len(absent) == len(files)):
        roots = index.roots if len(absent) == len(texts) else [place.root]
        raise DataError(_missing_message(table, texts, absent, roots))
    return files, notes


def _search(
    table: Table, texts: Sequence[str], index: FileIndex, files: list[str], absent: Sequence[int]
) -> tuple[list[int], list[str]]:
    """Search all folders for missing files, and replace their paths. Return the rows still missing, and notes."""
    dropped = _common_folders(texts)
    found: dict[str, Found] = {}
    hows: Counter[str] = Counter()
    remaining = []
    for row in absent:
        text = texts[row]
        if text not in found:
            found[text] = index.tree.find(text, dropped)
            hows[found[text].how] += 1
        paths, how = found[text]
        if len(paths) > 1 and how != "by ignoring case":
            both = f"{text!r} matches {' and '.join(os.path.relpath(path, index.roots[0]) for path in paths[:2])}"
            raise DataError(
                f"{table.where(row)}: {both}; add the folder or the suffix, or choose a folder with `images=FOLDER`"
            )
        if len(paths) == 1:
            files[row] = paths[0]
        else:
            remaining.append(row)
    notes = [f"{count:,} {'image' if count == 1 else 'images'} found {how}" for how, count in hows.items() if how]
    return remaining, notes


def _refuse_invalid_paths(table: Table, column: str, texts: Sequence[str]) -> None:
    if is_image(column):
        raise DataError(f"{table.path}, row 1: {column!r} is an image; add a first row with the names of the columns")
    for row, text in enumerate(texts):
        if not text:
            raise DataError(f"{table.where(row)}: column {column!r} is blank; enter the path of the image")
        if "\0" in text:
            raise DataError(f"{table.where(row)}: {text!r} in column {column!r} is not a valid path; correct it")
        if ".." in text and os.path.normpath(text.replace("\\", "/")).split("/")[0] == "..":
            raise DataError(
                f"{table.where(row)}: {text!r} is outside the image folder; make all paths relative to one folder "
                f"and pass it as `images=FOLDER`"
            )


def _refuse_two_places(table: Table, index: FileIndex, places: Sequence[Place], texts: Sequence[str]) -> None:
    """Refuse different files in two places that match equally well; absolute paths match the same files."""
    first = [os.path.normpath(places[0].path(text)) for text in texts]
    for place in places[1:]:
        pairs = zip(first, (os.path.normpath(place.path(text)) for text in texts), strict=True)
        if any(one != other and index.has(one) and index.has(other) for one, other in pairs):
            where = listing(str(place.root) for place in places)
            raise DataError(
                f"{table.path}: the images exist in several folders: {where}; choose one with `images=FOLDER`"
            )


def _missing_message(table: Table, texts: Sequence[str], absent: Sequence[int], roots: Sequence[Path]) -> str:
    text = texts[absent[0]]
    others = f" ({len(absent) - 1:,} more are missing)" if len(absent) > 1 else ""
    where = " or ".join(f"{root}/" for root in roots)
    return f"{table.where(absent[0])}: {text!r} does not exist in {where}{others}; {_remedy(text, roots)}"


def _remedy(text: str, roots: Sequence[Path]) -> str:
    if re.match(r"[A-Za-z]:[\\/]", text):
        return f"{text[:2]!r} is a Windows drive; make all paths relative to one folder and pass it as `images=FOLDER`"
    if EXCEL_CELL.fullmatch(text):
        return "it looks like a number or date that Excel changed; format the column as text and enter the names again"
    similar = next((name for root in roots if (name := _similar_file(root, text))), None)
    if similar is not None:
        return f"{similar!r} differs only in Unicode normalization (é as one or two characters); rename one of them"
    return "use `images=FOLDER` if the images are in another folder"


def _similar_file(root: Path, text: str) -> str | None:
    """Return the file whose path differs only in Unicode normalization."""
    folder, _, name = text.rpartition("/")
    normal = unicodedata.normalize("NFC", name)
    names = _files_in(str(root / folder))
    similar = next((other for other in names if unicodedata.normalize("NFC", other) == normal), None)
    return similar and os.path.join(folder, similar)  # noqa: PTH118
