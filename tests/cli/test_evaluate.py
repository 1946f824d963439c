import json
from pathlib import Path

import pytest

from helpers.images import NAMES, colored_records
from helpers.run_folders import made_run
from probmcl.cli import app
from probmcl.cli.evaluate import parse_aggregate
from probmcl.errors import DataError
from probmcl.inference import load
from probmcl.readers.options import DataSource, ReadOptions


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with its images and table."""
    records = colored_records(tmp_path / "photos")
    rows = [
        f"{path},{split},{'|'.join(name for name, present in zip(NAMES, labels, strict=True) if present)}"
        for path, split, labels in zip(records.paths, records.split, records.labels, strict=True)
    ]
    (tmp_path / "labels.csv").write_text("\n".join(["path,part,labels", *rows]))
    made_run(
        tmp_path / "run",
        split=list(zip(records.paths, records.split, strict=True)),
        data=DataSource(tmp_path / "labels.csv", options=ReadOptions(split_column="part")),
    )
    return tmp_path / "run"


def evaluate(*words: str | Path) -> None:
    app()(["evaluate", *map(str, words), "--device", "cpu", "--workers", "0"])


def test_the_test_split_of_the_run_is_printed_and_written(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(run, "--json", run.parent / "scores.json")
    result = json.loads((run.parent / "scores.json").read_text())
    assert result == load(run).evaluate().to_dict()
    assert result["images"] == 9
    shown = capsys.readouterr().out
    assert f"9 test images: mAP {100 * result['mAP']:.1f} [" in shown
    assert f"(chance {100 * result['chance']:.1f}), AUROC {100 * result['macro_auroc']:.1f} [" in shown
    assert "C: mean over classes; O: all decisions together; P: precision; R: recall" in " ".join(shown.split())
    assert f"{100 * result['at']['0.8']['OF1']:.1f}" in shown
    assert "only in the" not in shown


@pytest.mark.filterwarnings("always")
def test_classes_of_other_data_are_matched_by_name(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = colored_records(run.parent / "other", train=4, val=0, test=0)
    rows = [f"{path.name},{number % 2},{number // 2},0" for number, path in enumerate(other.paths)]
    (run.parent / "other.csv").write_text("\n".join(["where,indoors,red,pink", *rows]))
    evaluate(
        run, run.parent / "other.csv", "--images", run.parent / "other", "--path-column", "where", "--split", "val"
    )
    captured = capsys.readouterr()
    assert "4 val images: mAP" in captured.out
    assert "2 classes only in the model (green, blue)" in captured.out
    assert "2 classes only in the data (indoors, pink)" in captured.out
    assert "note: 4 of 4 new images" in captured.err


def test_an_existing_file_is_refused_before_the_model_is_loaded(run: Path) -> None:
    (run.parent / "scores.json").write_text("precious")
    with pytest.raises(FileExistsError, match=r"scores\.json"):
        evaluate(run.parent / "nowhere", "--json", run.parent / "scores.json")
    assert (run.parent / "scores.json").read_text() == "precious"


def hospital(run: Path) -> Path:
    """Write data with other class names: three images per patient, two patients per site."""
    other = colored_records(run.parent / "hospital", train=12, val=0, test=0)
    rows = [
        f"{path.name},p{number // 3},{('north', 'south')[number // 6]},{','.join(str(int(x)) for x in labels)}"
        for number, (path, labels) in enumerate(zip(other.paths, other.labels, strict=True))
    ]
    (run.parent / "hospital" / "labels.csv").write_text("\n".join(["path,who,site,Red,Green,Azure", *rows]))
    (run.parent / "words.csv").write_text("data,model\nRed,red\nGreen,green\nAzure,blue\n")
    return run.parent / "hospital" / "labels.csv"


@pytest.mark.filterwarnings("ignore:.*have the same file name")
def test_renamed_classes_are_evaluated_by_site(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    words = run.parent / "words.csv"
    flags = ("--group", "who", "--rename", words, "--by", "site", "--draws", "50", "--json", run.parent / "all.json")
    evaluate(run, hospital(run), *flags)
    result, shown = json.loads((run.parent / "all.json").read_text()), capsys.readouterr().out
    assert result["renamed"] == {"Red": "red", "Green": "green", "Azure": "blue"}
    assert "renamed: Red → red, Green → green, Azure → blue" in shown
    assert "50 resamples of groups" in shown
    for value in ("north", "south"):
        part = result["by"]["values"][value]
        assert (part["images"], part["groups"]) == (6, 2)
        low, high = part["mAP_interval"]
        numbers = [f"{100 * part['chance']:.1f}", f"{100 * part['mAP']:.1f}", f"{100 * low:.1f}–{100 * high:.1f}"]
        assert " ".join(numbers) in " ".join(shown.split())


@pytest.mark.filterwarnings("ignore:.*have the same file name")
def test_patients_are_evaluated_as_groups(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = run.parent / "words.csv"
    evaluate(run, hospital(run), "--group", "who", "--rename", words, "--aggregate", "group=max", "--draws", "0")
    shown = " ".join(capsys.readouterr().out.split())
    assert "4 groups by the max of 12 test images: mAP" in shown
    assert "resamples" not in shown


def test_aggregate_is_mean_or_max() -> None:
    assert parse_aggregate(None, None) is None
    assert parse_aggregate("patient=mean", "patient") == "mean"
    with pytest.raises(ValueError, match="--aggregate group=median"):
        parse_aggregate("group=median", None)
    with pytest.raises(ValueError, match="--group patient --aggregate group=max"):
        parse_aggregate("patient=max", "slide")


def test_unreadable_images_are_an_error_or_skipped(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = [run.parent / "photos" / name for name in ("40.png", "41.png")]
    bad[0].unlink()
    bad[1].write_bytes(b"")
    with pytest.raises(DataError, match=r"2 of 9 images .*\n.*row 42: .*\n.*row 43: .*\n.*`skip_bad=0\.3`"):
        evaluate(run)
    evaluate(run, "--skip-bad", "0.3", "--draws", "0", "--json", run.parent / "scores.json")
    shown = capsys.readouterr().out.replace("\n", " ")
    assert f"{bad[0]} (does not exist)" in shown
    assert f"{bad[1]} (the file is empt" in shown
    result = json.loads((run.parent / "scores.json").read_text())
    assert (result["images"], [image["path"] for image in result["skipped"]]) == (7, list(map(str, bad)))


def test_the_help_explains_when_a_class_is_absent_from_a_group(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["probmcl", "evaluate", "--help"])
    app()(["evaluate", "--help"])
    words = " ".join(word for word in capsys.readouterr().out.split() if word not in "│╭╮╰╯")
    assert "absent if it is absent in some image" in words
