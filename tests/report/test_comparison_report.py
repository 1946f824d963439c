import json
from pathlib import Path

from helpers.rows import demo_comparison
from probmcl.report.page import write_comparison_report


def test_the_page_of_a_comparison_has_its_verdict_plot_and_tables(tmp_path: Path) -> None:
    comparison = demo_comparison()
    page = write_comparison_report(comparison, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page == tmp_path / "report.html"
    assert "Verdict of the comparison" in text
    assert 'src="data:image/svg+xml;base64,' in text
    assert text.count("<table>") >= 2
    assert 'content="default-src &#39;none&#39;' in text
    content = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert [row["name"] for row in content["comparison"]["rows"]] == [row.name for row in comparison.ordered]
    assert content["comparison"]["verdict"].splitlines()[0][:20] in text.replace("&#39;", "'")


def test_equal_comparisons_give_equal_bytes(tmp_path: Path) -> None:
    pages = [write_comparison_report(demo_comparison(), tmp_path / name).read_bytes() for name in "ab"]
    assert pages[0] == pages[1]
