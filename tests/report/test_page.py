import base64
import hashlib
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from helpers.reports import HOSTILE, HOSTILE_FILE, finished_run
from probmcl.console import Console
from probmcl.errors import OptionError, RunError
from probmcl.evaluation.scores import read_scores, scores_file, write_scores
from probmcl.report.gallery import thumbnail
from probmcl.report.page import render_page, report_json, write_report
from probmcl.report.run_report import RunReport, run_report
from probmcl.store.run_folder import RunFolder, read_manifest

pytestmark = pytest.mark.slow  # it trains, or renders whole reports

DOCUMENT = Path(__file__).parents[2] / "docs" / "report.md"
LOADS = ("src", "href", "data", "poster", "srcset", "action", "xlink:href")


class Elements(HTMLParser):
    """All elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def report(hostile_run: Path) -> RunReport:
    return run_report([hostile_run], device="cpu", console=Console.quiet())


@pytest.fixture(scope="module")
def page(report: RunReport) -> str:
    return render_page(report)


def test_hostile_names_stay_text(page: str) -> None:
    parsed = Elements(page)
    scripts = [attributes for tag, attributes in parsed.elements if tag == "script"]
    assert len(scripts) == 2
    assert not [a for tag, a in parsed.elements if tag == "b" and "bold" in str(a)]
    for name in (*HOSTILE, HOSTILE_FILE):
        assert any(name in text for text in parsed.text), name
    assert "alert(2)>" not in page.replace("alert(2)&gt;", "")
    assert "49 & 'quoted'" not in page


def test_the_page_has_no_inline_handler_and_no_inline_style(page: str) -> None:
    names = {name for _, attributes in Elements(page).elements for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert "style" not in names


def test_the_page_loads_nothing(page: str) -> None:
    values = [
        value
        for _, attributes in Elements(page).elements
        for name, value in attributes.items()
        if name in LOADS and value is not None
    ]
    assert values
    assert not [value[:80] for value in values if not value.startswith(("data:", "#"))]
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_policy_allows_exactly_the_style_and_the_script_of_the_page(page: str) -> None:
    metas = [attributes for tag, attributes in Elements(page).elements if tag == "meta"]
    policy = next(str(a["content"]) for a in metas if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for pattern in (r"<style>(.*?)</style>", r"<script>(.*?)</script>"):
        (content,) = re.findall(pattern, page, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_equal_runs_give_equal_bytes(hostile_run: Path, tmp_path: Path) -> None:
    pages = [
        write_report([hostile_run], tmp_path / f"{n}.html", device="cpu", console=Console.quiet())[0] for n in "ab"
    ]
    assert pages[0].read_bytes() == pages[1].read_bytes()
    assert pages[0].with_suffix(".json").read_bytes() == pages[1].with_suffix(".json").read_bytes()


def test_the_page_states_how_many_photographs_it_contains(report: RunReport, page: str) -> None:
    images = [a for tag, a in Elements(page).elements if tag == "img" and a.get("alt")]
    assert report.pictures.count == len({a["src"] for a in images})
    assert f"This page contains {report.pictures.count} photographs" in page
    assert report.content.photographs == report.pictures.count


def test_without_images_the_page_contains_no_picture(hostile_run: Path) -> None:
    report = run_report([hostile_run], images=False, device="cpu", console=Console.quiet())
    page = render_page(report)
    assert "This page contains no photographs" in page
    assert not [tag for tag, _ in Elements(page).elements if tag == "img"]
    assert "data:image/jpeg" not in page
    assert report.content.photographs == 0


def test_missing_image_files_leave_out_pictures_and_the_map(tmp_path: Path) -> None:
    report = run_report([finished_run(tmp_path / "run", images=False)], device="cpu", console=Console.quiet())
    assert report.pictures.count == 0
    assert "features could not be computed" in render_page(report)


def test_a_run_without_training_features_has_no_nearest_images(tmp_path: Path) -> None:
    report = run_report([finished_run(tmp_path / "run", neighbors=False)], device="cpu", console=Console.quiet())
    assert not report.pictures.neighbors
    assert report.content.label_pairs.never_seen is None
    assert "does not keep the features" in render_page(report)


def test_exif_is_not_copied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a secret place"
    Image.new("RGB", (40, 30)).save(tmp_path / "a.jpg", exif=exif, comment=b"secret comment")
    picture = thumbnail(tmp_path / "a.jpg", 32, None)
    assert picture is not None
    content = base64.b64decode(picture[0].partition(",")[2])
    assert b"secret" in (tmp_path / "a.jpg").read_bytes()
    assert b"secret" not in content
    assert not Image.open(io.BytesIO(content)).getexif()


@pytest.mark.parametrize(("classes", "megabytes"), [(80, 15), pytest.param(1000, 30, marks=pytest.mark.exhaustive)])
def test_size_of_the_page(tmp_path: Path, classes: int, megabytes: int) -> None:
    run = finished_run(tmp_path / "run", names=[f"class number {n}" for n in range(classes)], pixels=256)
    page, _ = write_report([run], device="cpu", console=Console.quiet())
    assert page.stat().st_size < 1e6 * megabytes
    assert page.with_suffix(".json").stat().st_size < 1e6 * megabytes


def test_the_documentation_describes_every_key_of_the_json_file(report: RunReport) -> None:
    content = json.loads(report_json(report.content))
    assert content["schema"] == 1
    text = DOCUMENT.read_text(encoding="utf-8")
    parts = [content, content["verdict"], content["headline"], content["classes"][0], content["curves"]]
    parts += [
        content["label_pairs"],
        content["embedding"],
        content["data"],
        content["training"],
        content["reproduction"],
    ]
    parts += [content["gallery"]["groups"][0], content["gallery"]["groups"][0]["images"][0]]
    keys = {key for part in parts for key in part}
    assert not sorted(key for key in keys if f"`{key}`" not in text)


def test_several_runs_are_compared(hostile_run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(hostile_run, other)
    report = run_report([hostile_run, other], images=False, device="cpu", console=Console.quiet())
    assert report.content.runs is not None
    first, second = report.content.runs
    assert first.difference is None
    assert second.difference is not None
    assert second.difference.mAP == 0
    assert "Comparison with other runs" in render_page(report)


def test_an_unfinished_run_has_no_report(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    metadata = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(metadata | {"status": "running"}))
    with pytest.raises(RunError, match="not finished"):
        write_report([run], device="cpu", console=Console.quiet())


@pytest.mark.parametrize(
    "name", ["report.html", "other.html", pytest.param("report.htm", marks=pytest.mark.exhaustive)]
)
def test_a_page_in_the_run_folder_keeps_the_run_valid(hostile_run: Path, tmp_path: Path, name: str) -> None:
    run = Path(shutil.copytree(hostile_run, tmp_path / "run"))
    (run / "report.html").write_text("old")
    (run / "report.json").write_text("{}")
    RunFolder(run).seal()
    (tmp_path / "link").symlink_to(run)
    page, _ = write_report([run], tmp_path / "link" / name, images=False, device="cpu", console=Console.quiet())
    assert page.stat().st_size > 1000
    RunFolder.existing(run)
    assert not {"report.htm", "other.html", "other.json"} & read_manifest(run).files.keys()


def test_a_file_that_is_not_a_report_is_not_replaced(hostile_run: Path) -> None:
    before = (hostile_run / "labels.json").read_bytes()
    with pytest.raises(OptionError, match=r"would replace .*labels\.json"):
        write_report([hostile_run], hostile_run / "labels.html", console=Console.quiet())
    assert (hostile_run / "labels.json").read_bytes() == before


def test_undecodable_file_names_are_escaped(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "run")
    paths, rows = read_scores(scores_file(run, "test"))
    write_scores(scores_file(run, "test"), [Path(path).rename(f"{path}\udcff.png") for path in paths], rows)
    page, _ = write_report([run], device="cpu", console=Console.quiet())
    assert r"\udcff.png" in page.read_text(encoding="utf-8")
    content = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
    assert content["photographs"] > 0
    assert (tmp_path / "run-photos" / content["gallery"]["groups"][0]["images"][0]["path"]).is_file()


def test_the_page_must_be_an_html_file(hostile_run: Path) -> None:
    with pytest.raises(OptionError, match=r"\.html"):
        write_report([hostile_run], "report.json", console=Console.quiet())
