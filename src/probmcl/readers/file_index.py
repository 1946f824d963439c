"""Index of the files below folders, by which the files that a text names are found.

A text matches a file if it is its path, possibly without the suffix, with fewer or more folders in front, or in another
case; a number also matches a file name with leading zeros. Each folder is listed only once, because checking a million
files one by one is much slower, especially on a network drive.
"""

import itertools
import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from probmcl.data.image_files import is_file, is_image, walk

URL = re.compile(r"\b\w+://[^?#]*/([^/?#]+).*")  # the last part is the name; without \b, long cells take minutes


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
