from pathlib import Path

import pytest

import check_language


@pytest.mark.parametrize(
    ("line", "phrase"),
    [
        ("# The mask is beside the labels.", "beside"),
        ('raise ValueError(f"{path} is no ' + 'run folder")', "is no run"),
        ("# What the table says.", "What the table says."),
        ("one row a label", "one row a label"),
        ("The normalisation of features", "normalisation"),
    ],
)
def test_phrases_are_found(tmp_path: Path, line: str, phrase: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"A plain sentence.\n{line}\n", encoding="utf-8")
    hits = list(check_language.find_phrases(page))
    assert phrase in "|".join(hit.phrase for hit in hits)
    assert {hit.line for hit in hits} == {2}


@pytest.mark.parametrize("line", ["There is no file.", "The class has no image.", "What now?", "Besides, a label."])
def test_plain_sentences_pass(tmp_path: Path, line: str) -> None:
    page = tmp_path / "page.md"
    page.write_text(line, encoding="utf-8")
    assert list(check_language.find_phrases(page)) == []


def test_allowed_phrases_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("beside", encoding="utf-8")
    assert check_language.main([str(page)]) == 1
    monkeypatch.setitem(check_language.ALLOWED, "page.md", {"beside": "a quotation"})
    assert check_language.main([str(page)]) == 0


def test_every_allowed_phrase_is_still_there() -> None:
    for name, phrases in check_language.ALLOWED.items():
        text = (check_language.ROOT / name).read_text(encoding="utf-8").lower()
        assert all(phrase in text and reason for phrase, reason in phrases.items())
