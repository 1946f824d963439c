"""The report in a browser: Debian's Chromium, driven by Playwright.

The environment variable PROBMCL_REPORT names a report to open instead of the generated one with hostile names, for
example that of a run on photographs.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.reports import HOSTILE
from probmcl.console import Console
from probmcl.report.page import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking"
ARGUMENTS += " --disable-component-update --disable-sync"

REPORT = os.environ.get("PROBMCL_REPORT")

playwright_api = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed (Debian: apt-get install chromium)"),
]
widths = pytest.mark.parametrize("width", [1440, 390])


@pytest.fixture(scope="module")
def page_file(hostile_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if REPORT is not None:
        return Path(REPORT).resolve()
    out = tmp_path_factory.mktemp("browser") / "report.html"
    return write_report([hostile_run], out, device="cpu", console=Console.quiet())[0]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright_api.sync_playwright() as playwright:
        instance = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS.split())
        yield instance
        instance.close()


class Opened:
    """A page in the browser, with everything that it logs and requests."""

    def __init__(self, browser: Any, file: Path, width: int, **options: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.problems.append(message.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def _dismiss(self, dialog: Any) -> None:
        self.problems.append(dialog.message)
        dialog.dismiss()

    def names(self) -> list[str]:
        return [text.strip() for text in self.page.locator("#class-table tbody tr:visible th").all_inner_texts()]


@pytest.fixture
def opened(browser: Any, page_file: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    page = Opened(browser, page_file, request.param)
    yield page
    page.context.close()


both_widths = pytest.mark.parametrize("opened", [1440, 390], indirect=True)


@both_widths
def test_the_page_opens_without_error_or_request(opened: Opened) -> None:
    opened.page.locator("#reproduce").scroll_into_view_if_needed()
    assert not opened.problems
    assert not [url for url in opened.requests if not url.startswith(("file:", "data:"))]
    width, shown = opened.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width <= shown


@both_widths
def test_the_table_sorts_and_filters_by_keyboard(opened: Opened) -> None:
    header = opened.page.get_by_role("button", name="Class", exact=True)
    header.focus()
    opened.page.keyboard.press("Enter")
    ascending = opened.names()
    opened.page.keyboard.press("Enter")
    assert opened.names() == ascending[::-1]
    assert len(ascending) > 1
    header = opened.page.get_by_role("button", name="AP (%)")
    header.focus()
    opened.page.keyboard.press("Space")
    values = [
        float(x)
        for x in opened.page.locator("#class-table tbody td:nth-child(5)").evaluate_all(
            "cells => cells.map(cell => cell.dataset.value)"
        )
    ]
    assert values == sorted(values, reverse=opened.page.locator("[aria-sort=descending]").count() == 1)
    opened.page.get_by_label("Search a class").first.focus()
    wanted = ascending[-1]
    opened.page.keyboard.type(wanted.upper())
    assert opened.names() == [name for name in ascending[::-1] if wanted.lower() in name.lower()]
    assert opened.page.locator("#class-table-count").inner_text() == f"1 of {len(ascending)} classes"


@both_widths
def test_the_slider_changes_the_numbers(opened: Opened) -> None:
    row = opened.page.locator("#explorer tbody tr").first
    before, total = row.inner_text(), opened.page.locator("#explorer-total").inner_text()
    row.locator("input").focus()
    opened.page.keyboard.press("Home")
    lowest = row.locator("td").all_inner_texts()
    assert row.inner_text() != before
    assert lowest[1] == "0.00"
    assert lowest[-1] == "100.0"
    opened.page.keyboard.press("End")
    assert row.locator("td").all_inner_texts()[2] == "0"
    assert opened.page.locator("#explorer-total").inner_text() != total
    opened.page.get_by_role("button", name="Reset all").press("Enter")
    assert row.inner_text() == before
    assert opened.page.locator("#explorer-total").inner_text() == total


@both_widths
@pytest.mark.skipif(REPORT is not None, reason="PROBMCL_REPORT names another report")
def test_hostile_names_stay_text(opened: Opened) -> None:
    assert opened.page.locator("img[src=x], main b:not(.tiles b), main script").count() == 0
    assert sorted(opened.names()) == sorted(HOSTILE)
    opened.page.get_by_label("Search a class").first.focus()
    opened.page.keyboard.type("<SCRIPT>")
    assert opened.names() == ["<script>alert(1)</script>"]
    assert not opened.problems


@both_widths
def test_the_map_changes_its_colors(opened: Opened) -> None:
    opened.page.locator("#color-by").select_option("0")
    marked = opened.page.locator(".map circle.on").count()
    assert marked > 0
    opened.page.locator("#color-by").select_option("uncertainty")
    assert opened.page.locator(".map circle.on").count() == 0
    assert opened.page.locator(".legend[data-for=uncertainty]").is_visible()


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(390, "light"), (1440, "dark")]
    + [pytest.param(*case, marks=pytest.mark.exhaustive) for case in ((390, "dark"), (1440, "light"))],
)
def test_axe_finds_no_violation(browser: Any, page_file: Path, width: int, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    opened = Opened(browser, page_file, width, color_scheme=scheme, bypass_csp=True)
    opened.page.evaluate("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    results = axe.Axe().run(opened.page)
    opened.context.close()
    assert results.violations_count == 0, results.generate_report()
