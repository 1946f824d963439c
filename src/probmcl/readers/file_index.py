"""Index of the files below folders, by which the files that a text names are found.

A text matches a file if it is its path, possibly without the suffix, with fewer or more folders in front, or in another
case; a number also matches a file name with leading zeros. Each folder is listed only once, because checking a million
files one by one is much slower, especially on a network drive.
"""

import os
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
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
    def _tree(self) -> tuple[list[str], dict[str, dict[str, list[int]]]]:
        """All files below the roots, and their rows by name, by stem, by name or stem in lower case, and by number."""
        outer = [root for root in self.roots if not any(other in root.parents for other in self.roots)]
        entries = [entry for root in outer if root.is_dir() for entry in walk(root)]
        files = [entry.path for entry in entries if is_file(entry)]  # false for broken links
        rows: dict[str, dict[str, list[int]]] = {how: defaultdict(list) for how in ("", SUFFIX, CASE, NUMBER)}
        for row, file in enumerate(files):
            name = file.rpartition("/")[2]
            stem = name.rpartition(".")[0] if is_image(name) else name
            for how, key in (("", name), (SUFFIX, stem), (CASE, name.casefold()), (CASE, stem.casefold())):
                rows[how][key].append(row)
            if stem.isdigit():
                rows[NUMBER][stem.lstrip("0") or "0"].append(row)
        return files, rows

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
            found = self._below(wanted, how, key)
            tails = [wanted[:end] for end in range(max(0, len(wanted) - dropped), len(wanted))]
            fewer = [(inner, file) for tail in tails for inner, file in self._below(tail, how, key) if inner == tail]
            same = [(inner, file) for inner, file in found if inner == wanted]
            inside = f"in subfolders of {self.roots[0].name or '.'}/"
            for files, where in (same, ""), (found, inside), (fewer, "without the folders in front"):
                if files:
                    return [file for _, file in files], how if how in (CASE, NUMBER) else where or how
        return [], ""

    def _below(self, folders: Folders, how: str, key: str) -> list[tuple[Folders, str]]:
        """Return the first two files with a key whose folders end with the given ones; many may have the same name."""
        files, rows = self._tree
        if key in rows[how] and (how, key) not in self._sorted:
            paths = {files[row]: os.path.relpath(files[row], self.roots[0]).split("/")[:-1] for row in rows[how][key]}
            inside = ((_inside_out(inner, how == CASE), os.path.normpath(file)) for file, inner in paths.items())
            self._sorted[how, key] = sorted(inside)
        known = self._sorted.get((how, key), [])
        start = bisect_left(known, (folders,))
        return [file for file in known[start : start + 2] if file[0][: len(folders)] == folders]


SUFFIX, CASE, NUMBER = "by adding the suffix", "by ignoring case", "by number, such as 7 for 007.jpg"


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
