from pathlib import Path

import pytest

from helpers.tables import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a table, empty image files and, if given, classes.txt."""

    def write(text: str, *, classes: str = "", name: str = "labels.csv", images: str = "1 2 3 4") -> Path:
        for stem in images.split():
            (tmp_path / f"{stem}.jpg").touch()
        if classes:
            (tmp_path / "classes.txt").write_text(classes.replace(" ", "\n") + "\n", encoding="utf-8")
        (tmp_path / name).write_bytes(text.encode())
        return tmp_path / name

    return write
