"""Write the tables of the files of a run and of a comparison into docs, from the rows in `probmcl.store.files`.

    python tools/make_file_tables.py

A table follows the comment `<!-- files of a run -->` or `<!-- files of a comparison -->`.
"""

import re
from pathlib import Path

from probmcl.store.files import FILES, File, Folder, Owner

DOCS = Path(__file__).parent.parent / "docs"
PAGES: dict[Owner, Path] = {"run": DOCS / "architecture.md", "comparison": DOCS / "comparing.md"}
"""The page with the files of each kind of folder."""


def table(owner: Owner) -> str:
    """Return the table of the files of a run or a comparison, as Markdown."""
    rows = [row for row in FILES if row.owner in (owner, "both")]
    if owner == "comparison":
        rows.sort(key=lambda row: row.owner == "both")
    header = ["| file | content | written |", "|---|---|---|"]
    lines = [f"| `{_shown(row)}` | {row.content} | {row.written} |" for row in rows]
    return "\n".join([*header, *lines])


def _shown(row: File) -> str:
    return f"{row}/" if isinstance(row, Folder) else str(row)


def page(owner: Owner) -> str:
    """Return the text of a page with its present table."""
    text = PAGES[owner].read_text(encoding="utf-8")
    marker = f"<!-- files of a {owner} -->\n\n"
    before, found, after = text.partition(marker)
    if not found:
        raise ValueError(f"{PAGES[owner]} has no comment {marker.strip()}")
    rest = re.sub(r"\A(\|.*\n)*", "", after)
    return f"{before}{marker}{table(owner)}\n{rest}"


def main() -> None:
    """Write the table of each page."""
    for owner, path in PAGES.items():
        path.write_text(page(owner), encoding="utf-8")


if __name__ == "__main__":
    main()
