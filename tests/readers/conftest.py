from pathlib import Path

import pytest

from helpers.tables import Write


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes a table, empty image files and, if given, classes.txt.

    `images` are names without suffix, and `classes` are names of classes; both are separated by spaces.
    """

    def write(text: str, *, classes: str = "", name: str = "labels.csv", images: str = "1 2 3 4") -> Path:
        for stem in images.split():
            (tmp_path / f"{stem}.jpg").touch()
        if classes:
            one_name_per_line = classes.replace(" ", "\n") + "\n"
            (tmp_path / "classes.txt").write_text(one_name_per_line, encoding="utf-8")
        table = tmp_path / name
        table.write_bytes(text.encode())
        return table

    return write
