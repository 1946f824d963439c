"""Cache of fingerprints and correlations by content, so that the next command does not compute them again."""

import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import PIL

from probmcl.data.intensity import IntensityRange
from probmcl.runtime.digests import block_checksum, content_digest
from probmcl.runtime.files import user_cache_folder

Result = TypeVar("Result")

VERSION = 3
"""Increase it if the same file would get another fingerprint, or the same pair another correlation."""

MAX_BYTES = 2**30
"""Size of the file at which old results are deleted. An image takes 4.4 kB and a pair of images 110 bytes."""

DELETED_AT_ONCE = 10_000
MIN_AGE = 24 * 3600
"""Results of the last day, in seconds, are not deleted; if only these are left, new results are not stored. Otherwise a
dataset that exceeds the cache would delete its own results before they are used."""

SECONDS_TO_WAIT = 5.0  # for another process that writes
TABLE = "CREATE TABLE IF NOT EXISTS results (key BLOB PRIMARY KEY, stored REAL, checksum INT, value BLOB)"
OLDEST = "SELECT rowid FROM results WHERE stored < ? ORDER BY rowid LIMIT ?"


@dataclass(frozen=True)
class ResultCache:
    """Results in an SQLite file, which several processes can use at the same time; without a file, nothing is stored.

    It never raises an error: results that cannot be read are missing, and results that cannot be written are lost.
    """

    file: Path | None = None
    context: bytes = b""  # everything apart from the contents that a result depends on

    def key(self, *contents: bytes) -> bytes:
        """Return the key of the result for these contents."""
        return content_digest([self.context, *contents])

    def get(self, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the stored results of these keys; missing and damaged ones are left out."""

        def select(connection: sqlite3.Connection) -> dict[bytes, bytes]:
            query = "SELECT checksum, value FROM results WHERE key = ? AND typeof(value) = 'blob'"
            rows = ((key, connection.execute(query, (key,)).fetchone()) for key in keys)
            return {key: row[1] for key, row in rows if row is not None and row[0] == block_checksum(key + row[1])}

        return self._use(select, {})

    def put(self, results: Mapping[bytes, bytes]) -> bool:
        """Store results unless the cache is full, and return whether the file is writable."""
        now = time.time()
        rows = [(key, now, block_checksum(key + value), value) for key, value in results.items()]

        def insert(connection: sqlite3.Connection) -> bool:
            connection.execute("BEGIN IMMEDIATE")
            if _is_full(connection):
                connection.execute(f"DELETE FROM results WHERE rowid IN ({OLDEST})", (now - MIN_AGE, DELETED_AT_ONCE))
            if not _is_full(connection):
                connection.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?)", rows)
            return True

        return self._use(insert, False)

    def _use(self, work: Callable[[sqlite3.Connection], Result], otherwise: Result) -> Result:
        """Return the result of one transaction, or `otherwise` if it fails; a damaged file is deleted."""
        if self.file is None:
            return otherwise
        try:
            with closing(sqlite3.connect(self.file, timeout=SECONDS_TO_WAIT)) as connection, connection:
                connection.execute("PRAGMA synchronous = OFF")
                connection.execute(TABLE)
                return work(connection)
        except sqlite3.OperationalError:  # not writable, locked for too long, or the disk is full
            return otherwise
        except sqlite3.DatabaseError:
            with suppress(OSError):
                self.file.with_name(f"{self.file.name}-journal").unlink(missing_ok=True)
                self.file.unlink()
                self.file.touch(mode=0o600)
            return otherwise


NO_CACHE = ResultCache()


@contextmanager
def open_results(intensity: IntensityRange | None) -> Iterator[ResultCache]:
    """Open the cache in the user's cache folder, or a temporary one if that folder is not writable."""
    levels = None if intensity is None else (intensity.low, intensity.high)
    context = repr((VERSION, PIL.__version__, levels)).encode()
    with tempfile.TemporaryDirectory() as temporary:
        cache = ResultCache(Path(temporary) / "duplicates.sqlite", context)
        with suppress(OSError, RuntimeError):  # RuntimeError: the user has no home folder
            file = user_cache_folder() / "duplicates.sqlite"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch(mode=0o600)  # it has thumbnails, so only the user may read it
            users = ResultCache(file, context)
            cache = users if users.put({}) or users.put({}) else cache  # the first attempt deletes a damaged file
        yield cache


def _is_full(connection: sqlite3.Connection) -> bool:
    size, pages, free = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "page_count", "freelist_count")
    )
    return bool(size * (pages - free) >= MAX_BYTES)
