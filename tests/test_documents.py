"""The documentation is true: links lead somewhere, commands exist, and the output shown is the present output."""

import contextlib
import re
import shlex
import sys
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

import pytest

import console_blocks
import make_api
import make_file_tables
from helpers.commands import main
from probmcl.cli import app
from probmcl.methods import METHODS
from probmcl.store.files import Owner

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [
    README,
    ROOT / "benchmarks" / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
EXAMPLES = ROOT / "docs" / "your_data.md"  # its blocks show output only; test_your_data.py checks them
WIDTH = 100

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", read(page), re.MULTILINE)
    texts = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower() for heading in headings)
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts}


def prose(page: Path) -> list[str]:
    """Return the lines of a page without code blocks, tables and links."""
    text = re.sub(r"^(```+).*?^\1$", "", read(page), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|https?://\S+|<!--.*?-->", "]", text)
    return [line for line in text.splitlines() if not line.startswith(("|", "    "))]


@each_page
def test_relative_links_and_their_anchors_exist(page: Path) -> None:
    links = re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)]*))?\)", read(page))
    targets = [(page.parent / file if file else page, anchor) for file, anchor in links]
    assert [file for file, _ in targets if not file.exists()] == []
    assert [(file.name, name) for file, name in targets if name and name not in anchors(file)] == []


@each_page
def test_prose_is_wrapped(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > WIDTH] == []


def test_the_readme_is_short_and_starts_with_the_essentials() -> None:
    lines = read(README).splitlines()
    start = "\n".join(lines[:40])
    assert len(lines) <= 150
    assert "multi-label image classification" in start.partition("\n\n## ")[0].lower()
    for part in ("](docs/figures/", "pip install", "make demo", "make test", "](docs/README.md)"):
        assert part in start
    for command in ("check", "train", "predict"):
        assert f"$ probmcl {command} " in start


def test_every_page_is_listed_in_the_table_of_contents() -> None:
    contents = read(ROOT / "docs" / "README.md")
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").glob("*.md")} - {Path("README.md")}
    pages |= {Path("methods") / f"{method}.md" for method in METHODS}
    assert [page for page in pages if f"]({page.as_posix()}" not in contents] == []


@each_page
def test_console_blocks_are_run_or_have_a_reason(page: Path) -> None:
    unmarked = [block.text for block in console_blocks.blocks(read(page)) if block.mark is None]
    assert page == EXAMPLES or "api" in page.parts or unmarked == []


@each_page
def test_commands_exist_and_take_these_options(page: Path) -> None:
    consoles = [block for block in console_blocks.blocks(read(page)) if block.language == "console"]
    for command in (command for block in consoles for command in console_blocks.commands(block)):
        words = shlex.split(command.partition("|")[0] if "| " in command else command, comments=True)
        if "probmcl" in words and words[0] in ("probmcl", "torchrun"):
            app().parse_args(words[words.index("probmcl") + 1 :], print_error=False, exit_on_error=False)


def run_in_process(command: Sequence[str], folder: Path) -> str:
    """Run probmcl and Python code in this process, which has already imported torch, and other commands in a shell."""
    if command[0] == sys.executable:
        with contextlib.chdir(folder), contextlib.redirect_stdout(StringIO()):
            exec(command[-1], {"__name__": "__main__"})
        return ""
    words = shlex.split(command[-1].replace("\\\n", " "))
    if words[0] != "probmcl":
        return console_blocks.run_command(command, folder)
    done = main(*words[1:], cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- run -->" in read(page)], ids=lambda page: page.name)
@pytest.mark.usefixtures("without_type_checks")
def test_blocks_show_the_present_output(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for block, text in console_blocks.run_page(read(page), run_in_process):
        shown, printed = console_blocks.comparable(block.text), console_blocks.comparable(text)
        assert shown == printed, f"python tools/console_blocks.py {page.relative_to(ROOT)} rewrites the page"


def test_machine_dependent_output_is_not_compared() -> None:
    shown = "kept: a (mAP 0.41)\n│ two │ 200 │ 22.6 │\n│ one │ 200 │  9.8 │\n  training: 1.4 s, 1,764 images/s\n"
    printed = "kept: b (mAP 0.40)\n│ one │ 200 │ 23.0 │\n│ two │ 200 │ 22.6 │\n  training: 12 min, 8 images/s\n"
    assert console_blocks.comparable(shown) == console_blocks.comparable(printed)
    assert console_blocks.comparable(shown) != console_blocks.comparable(printed.replace("200", "201"))


def test_the_tests_on_the_reliability_page_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", read(ROOT / "docs" / "reliability.md")))
    sources = "".join(read(path) for path in (ROOT / "tests" / "faults").glob("test_*.py"))
    assert named
    assert named <= set(re.findall(r"^def (test_\w+)\(", sources, re.MULTILINE))


def test_the_api_pages_are_up_to_date() -> None:
    committed = {page.name: read(page) for page in make_api.FOLDER.glob("*.md")}
    assert committed == make_api.pages(), "python tools/make_api.py rewrites them"


@pytest.mark.parametrize("owner", make_file_tables.PAGES)
def test_the_tables_of_files_have_the_rows_of_the_store(owner: Owner) -> None:
    page = make_file_tables.PAGES[owner]
    assert read(page) == make_file_tables.page(owner), "python tools/make_file_tables.py rewrites the page"


def test_the_api_pages_cover_the_public_names() -> None:
    import probmcl

    index = read(make_api.FOLDER / "README.md")
    assert [name for name in probmcl.__all__ if name != "__version__" and f"[`{name}`](probmcl.md" not in index] == []
