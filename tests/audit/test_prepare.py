"""Audit of synthetic photographs with planted problems: copies, unreadable files, empty splits, rare classes."""

import re
import shutil
from dataclasses import asdict
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from rich.console import Console as RichConsole

from helpers import photographs
from probmcl.audit import prepare as audit
from probmcl.audit.duplicates import search
from probmcl.audit.prepare import PreparedData, audit_data, prepare_data, read_again
from probmcl.console import Console
from probmcl.data.records import SPLITS
from probmcl.errors import DataError, OptionError, Question, Reading
from probmcl.readers.options import DataChecks, DataSource, ReadOptions
from probmcl.run.run_files import write_split
from probmcl.store.run_folder import RunFolder

COUNT = 30
SPLIT_COLUMN = ["train"] * 20 + ["val"] * 4 + ["test"] * 6


def recording_console() -> Console:
    return Console(RichConsole(file=StringIO(), width=300))


def text_of(console: Console) -> str:
    return console.rich.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def prepared(table: Path, *, console: Console | None = None, seed: int = 0, **checks: Any) -> PreparedData:
    source = DataSource.of(table, None, ReadOptions())
    return prepare_data(source, DataChecks(**checks), seed=seed, console=console or recording_console())


def source_of(data: PreparedData) -> DataSource:
    assert data.source is not None
    return data.source


def split_of(data: PreparedData, name: str) -> str:
    return next(split for path, split in zip(data.records.paths, data.records.split, strict=True) if path.name == name)


def copy(table: Path, source: int, number: int, *, identical: bool = False) -> None:
    """Overwrite image `number` with `source`: the identical file, or flipped, resized and re-encoded."""
    original, target = table.parent / f"{source}.jpg", table.parent / f"{number}.jpg"
    if identical:
        shutil.copy(original, target)
    else:
        with Image.open(original) as image:
            ImageOps.mirror(image).resize((100, 75)).save(target, quality=70)


def test_clean_data_are_accepted_and_described(tmp_path: Path) -> None:
    console = recording_console()
    data = prepared(photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN), console=console)
    assert list(data.records.split) == SPLIT_COLUMN
    assert (data.warnings, data.intensity, data.fold_of) == ((), None, None)
    assert "train 20 · val 4 · test 6" in text_of(console)
    assert "  reading every image once" in text_of(console)


@pytest.mark.parametrize("identical", [True, False])
def test_copy_in_train_and_test_is_an_error_unless_allowed(tmp_path: Path, identical: bool) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    copy(table, 3, 28, identical=identical)
    with pytest.raises(DataError) as caught:
        prepared(table)
    for part in ("in train and test: 1", "row 5: ", "3.jpg", "row 30: ", "28.jpg", "allow_leaks"):
        assert part in str(caught.value)
    data = prepared(table, allow_leaks=True)
    assert any("28.jpg" in warning.message for warning in data.warnings)
    assert source_of(data).leaks_allowed == tuple(warning.message for warning in data.warnings)


def test_group_in_two_splits_is_an_error(tmp_path: Path) -> None:
    patients = [f"p{number // 2}" for number in range(COUNT)]
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN, patients=patients)
    assert prepared(table).warnings == ()
    patients[25] = "p0"
    table = photographs.folder(tmp_path / "q", COUNT, splits=SPLIT_COLUMN, patients=patients)
    with pytest.raises(DataError, match="group 'p0'"):
        prepared(table)


@pytest.mark.parametrize("seed", range(4))
def test_generated_splits_keep_copies_and_groups_together(tmp_path: Path, seed: int) -> None:
    patients = [f"p{number // 3}" for number in range(COUNT)]
    table = photographs.folder(tmp_path / "p", COUNT, patients=patients)
    copy(table, 1, 10, identical=True)
    copy(table, 20, 29)
    data = prepared(table, seed=seed)
    assert data.warnings == ()
    assert all(len(data.records.rows(split)) for split in SPLITS)
    assert split_of(data, "1.jpg") == split_of(data, "10.jpg")
    assert split_of(data, "20.jpg") == split_of(data, "29.jpg")
    for patient in set(patients):
        assert len({s for s, g in zip(data.records.split, data.records.group or (), strict=True) if g == patient}) == 1
    origin = str(data.records.origin)
    assert f"val and test taken from train with seed {seed}" in origin


def test_unreadable_images_are_an_error_or_skipped(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    (table.parent / "7.jpg").write_bytes(b"")
    before = {path: path.read_bytes() for path in table.parent.iterdir()}
    with pytest.raises(DataError, match=r"row 9: .*7\.jpg: the file is empty"):
        prepared(table)
    data = prepared(table, skip_bad=0.1)
    assert len(data.records) == COUNT - 1
    assert [Path(image.path).name for image in source_of(data).skipped] == ["7.jpg"]
    assert {path: path.read_bytes() for path in table.parent.iterdir()} == before


def test_split_file_of_a_run_can_be_reused(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    (table.parent / "7.jpg").write_bytes(b"")
    data = prepared(table, seed=3, skip_bad=0.1)
    write_split(RunFolder(tmp_path), data.records)
    again = read_again(source_of(data), tmp_path / "split.csv", Console.quiet())
    assert again.paths == data.records.paths
    assert again.split == data.records.split
    assert np.array_equal(again.labels, data.records.labels)
    given = prepared(table, seed=9, split_file=tmp_path / "split.csv", skip_bad=0.1)
    assert given.records.split == data.records.split
    (table.parent / "8.jpg").write_bytes(b"")  # listed in the split file
    given = prepared(table, seed=9, split_file=tmp_path / "split.csv", skip_bad=0.1)
    assert len(given.records) == COUNT - 2


def test_folds_cover_every_image_exactly_once(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    tested: list[str] = []
    for fold in (1, 2, 3):
        data = prepared(table, folds=3, fold=fold)
        assert data.fold_of is not None
        rows = data.records.rows("test")
        assert (data.fold_of[rows] == fold).all()
        assert len(data.records.rows("val")) > 0
        tested += [data.records.paths[row].name for row in rows]
    assert sorted(tested) == sorted(f"{number}.jpg" for number in range(COUNT))


def test_a_single_group_blocks_check_and_train(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 24, patients=["one"] * 24)
    with pytest.raises(DataError, match="val or test split"):
        prepared(table)
    report = checked(table)
    assert report["verdict"] == "blocked"
    assert "leaves only 1" in texts(report, "blocked")


def test_too_few_images_to_split_block_check_and_train(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 22)
    assert checked(table)["splits"] == {"train": 12, "val": 5, "test": 5}
    unlink(table, 0, 1, 2)
    report = checked(table, skip_bad=0.2)
    assert (report["verdict"], report["images"]) == ("blocked", 19)
    assert (
        "train has 19 images, but taking val and test from it needs 20 or more"
        in finding(report, "too_few_images")["text"]
    )
    assert {found["kind"] for found in report["findings"] if found["level"] == "blocked"} == {"too_few_images"}
    with pytest.raises(DataError, match="train has 19 images, but taking val and test from it needs 20 or more"):
        prepared(table, skip_bad=0.2)


def test_few_images_with_all_splits_are_accepted(tmp_path: Path) -> None:
    splits = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    assert list(prepared(photographs.folder(tmp_path / "p", 8, splits=splits)).records.split) == splits


def test_empty_splits_of_few_images_are_not_a_reason_to_make_splits(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12, splits=["test"] * 12)
    with pytest.raises(DataError, match=r"assign images to train and val$"):
        prepared(table)


def test_split_column_with_empty_splits_is_blocked(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 24, splits=["test"] * 24)
    with pytest.raises(DataError, match=r'train or val split .*`split_column=""`'):
        prepared(table)
    assert checked(table)["verdict"] == "blocked"


def test_negative_seed_is_an_error(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    with pytest.raises(OptionError, match="`seed=-1` must be at least 0"):
        prepared(table, seed=-1)


def test_fold_file_requires_a_test_fold(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 6)
    (tmp_path / "folds.csv").write_text("path,fold\n")
    with pytest.raises(OptionError, match="`fold=K`"):
        prepared(table, split_file=tmp_path / "folds.csv")


def test_present_class_with_absent_parent_is_a_warning(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12)
    rows = [f"{number}.jpg,{int(number > 5)},{int(number > 3)}" for number in range(12)]
    table.write_text("\n".join(["filename,building,roof", *rows]) + "\n")
    (tmp_path / "tree.csv").write_text("child,parent\nroof,building\n")
    source = DataSource.of(table, None, ReadOptions(hierarchy=tmp_path / "tree.csv"))
    report = audit_data(source, console=recording_console()).to_dict()
    for text in (texts(report, "warning"), report["summary"]):
        assert "in 2 images (first: row 6)" in text
    assert sum(report["per_class"]["building"]["present"].values()) == 8


def test_minus_one_is_counted_as_its_mapped_state(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12)
    rows = [f"{number}.jpg,{-1 if number % 2 else 1},{number % 3 % 2}" for number in range(12)]
    table.write_text("\n".join(["filename,roof,sky", *rows]) + "\n")
    source = DataSource.of(table, None, ReadOptions(minus_one=("negative",)))
    report = audit_data(source, console=recording_console()).to_dict()
    per_class = report["per_class"]["roof"]
    assert sum(per_class["present"].values()) == sum(per_class["absent"].values()) == 6
    assert sum(per_class["uncertain"].values()) == 0


def test_intensity_range_of_16_bit_images_is_measured(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    rows = table.read_text().replace(".jpg", ".png")
    table.write_text(rows)
    for number in range(COUNT):
        gray = np.array(photographs.photograph(number).convert("L")).astype(np.uint16) * 12 + 100
        Image.fromarray(gray).save(table.parent / f"{number}.png")
    console = recording_console()
    data = prepared(table, console=console)
    assert data.intensity is not None
    assert 100 <= data.intensity.low < data.intensity.high <= 100 + 12 * 255
    assert str(data.intensity) in text_of(console)
    full = prepared(table, range="full").intensity
    assert full is not None
    assert (full.low, full.high) == (0, 65535)


def checked(table: Path, **checks: Any) -> dict[str, Any]:
    source = DataSource.of(table, None, ReadOptions())
    return audit_data(source, DataChecks(**checks), console=recording_console()).to_dict()


def texts(report: dict[str, Any], level: str) -> str:
    return "\n".join(finding["text"] for finding in report["findings"] if finding["level"] == level)


def test_check_reports_correct_statistics(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    report = checked(table)
    assert report["images"] == COUNT
    assert report["splits"] == {"train": 20, "val": 4, "test": 6}
    labels = [row.split(",")[1].split("|") for row in table.read_text().splitlines()[1:]]
    for name in photographs.CLASSES:
        expected = {s: sum(name in of for of, t in zip(labels, SPLIT_COLUMN, strict=True) if t == s) for s in SPLITS}
        assert report["per_class"][name]["present"] == expected
    together = {frozenset(pair["classes"]): pair["images"] for pair in report["together"]}
    assert together[frozenset({"roof", "sky"})] == sum("roof" in of and "sky" in of for of in labels)
    assert report["sizes"]["width"] == {"least": 120, "median": 120, "most": 120}
    assert report["sizes"]["modes"] == {"RGB": COUNT}
    assert report["verdict"] in ("fine", "warnings")


def test_check_finds_planted_problems(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    copy(table, 0, 1, identical=True)  # within train, with other labels
    copy(table, 4, 5)  # within train, flipped
    Image.new("RGB", (80, 60), (9, 9, 9)).save(table.parent / "6.jpg")
    (table.parent / "8.jpg").write_bytes((table.parent / "8.jpg").read_bytes()[:900])
    copy(table, 9, 26, identical=True)  # train and test
    report = checked(table)
    assert report["verdict"] == "blocked"
    assert [Path(name).name for name in report["nearly_constant"]] == ["6.jpg"]
    assert len(report["unreadable"]) == 1
    assert report["missing"] == []
    assert report["images"] == COUNT - 1
    assert "truncated" in report["unreadable"][0]["reason"]
    assert sorted(sorted(Path(p).name for p in same) for same in report["exact_duplicates"]) == [
        ["0.jpg", "1.jpg"],
        ["26.jpg", "9.jpg"],
    ]
    assert report["conflicting_labels"]
    near = [{Path(p).name for p in pair["images"]} for pair in report["near_duplicates"] if pair["confirmed"]]
    assert {"4.jpg", "5.jpg"} in near
    assert "1 of 30 images" in texts(report, "blocked")
    assert "26.jpg" in texts(report, "blocked")
    assert "nearly_constant" in {finding["kind"] for finding in report["findings"] if finding["level"] == "warning"}


def test_skip_bad_and_allow_leaks_turn_blocking_findings_into_warnings(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    (table.parent / "8.jpg").write_bytes(b"")
    copy(table, 9, 26, identical=True)
    kinds = {finding["kind"] for finding in checked(table)["findings"] if finding["level"] == "blocked"}
    assert kinds == {"unreadable", "leak"}
    report = checked(table, skip_bad=0.1, allow_leaks=True)
    assert report["verdict"] == "warnings"
    assert {"unreadable", "leak"} <= {finding["kind"] for finding in report["findings"]}
    with pytest.raises(DataError, match=r"(?s)1 of 30 images.*files in train and test: 1"):
        prepared(table)
    assert len(prepared(table, skip_bad=0.1, allow_leaks=True).records) == COUNT - 1


def test_data_without_a_readable_image_are_blocked(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    for number in range(3):
        (table.parent / f"{number}.jpg").write_bytes(b"")
    assert "3 of 3 images" in texts(checked(table), "blocked")
    with pytest.raises(DataError, match="3 of 3 images"):
        prepared(table, skip_bad=0.9)


def test_check_of_data_without_splits_makes_splits_without_leaks(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    copy(table, 9, 26, identical=True)
    report = checked(table)
    assert report["split"].startswith("val and test taken from train")
    assert report["verdict"] != "blocked"


def test_unreadable_table_is_a_single_finding(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    table.write_text("filename,labels\n0.jpg,roof\n1.jpg\n")
    report = checked(table)
    assert report["verdict"] == "blocked"
    assert "row 3" in texts(report, "blocked")


def test_repeated_rows_of_an_image_are_counted(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    table.write_text("filename,roof,sky\n0.jpg,1,0\n1.jpg,0,1\n0.jpg,1,0\n1.jpg,1,1\n2.jpg,0,0\n./0.jpg,1,0\n")
    report = checked(table)
    assert report["verdict"] == "blocked"
    assert report["duplicated_rows"] == [(2, 4), (2, 7)]
    assert report["conflicting_rows"] == [(3, 5)]
    assert "rows 3 and 5: " in texts(report, "blocked")


def test_rare_and_missing_classes_are_warnings(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    lines = table.read_text().splitlines()
    lines[1] = lines[1].replace("roof", "roof|dragon") if "roof" in lines[1] else lines[1].replace(",", ",dragon|", 1)
    lines[-1] = lines[-1].replace(",", ",ghost|", 1)
    table.write_text("\n".join(lines) + "\n")
    report = checked(table)
    warned = texts(report, "warning")
    assert "without positives in train: 1 (ghost)" in warned
    assert "dragon" in warned
    assert "no_negative" not in {finding["kind"] for finding in report["findings"]}
    rows = [f"{number}.jpg,1,{number % 2},{SPLIT_COLUMN[number]}" for number in range(COUNT)]
    table.write_text("\n".join(["filename,roof,sky,split", *rows]) + "\n")
    assert re.search(r"known negatives .*: 1 \(roof\)", texts(checked(table), "warning"))


def unlink(table: Path, *numbers: int) -> None:
    for number in numbers:
        (table.parent / f"{number}.jpg").unlink()


def finding(report: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(finding for finding in report["findings"] if finding["kind"] == kind)


def test_missing_images_are_left_out_of_every_statistic(tmp_path: Path) -> None:
    patients = [f"p{number // 2}" for number in range(COUNT)]
    patients[25] = patients[0]  # a leak, unless image 25 is missing
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN, patients=patients)
    unlink(table, 0, 1, 2, 3, 4, 5, 25)
    copy(table, 6, 1, identical=True)
    copy(table, 6, 26, identical=True)
    unlink(table, 1, 26)
    report = checked(table)
    assert report["images"] == sum(report["splits"].values()) == COUNT - 8
    assert report["splits"] == {"train": 14, "val": 4, "test": 4}
    assert sum(report["sizes"]["modes"].values()) == COUNT - 8
    labels = [row.split(",")[1].split("|") for row in table.read_text().splitlines()[1:]]
    for name in photographs.CLASSES:
        assert report["per_class"][name]["present"]["train"] == sum(name in of for of in labels[6:20])
    assert (report["exact_duplicates"], report["unreadable"]) == ([], [])
    assert len(report["missing"]) == len(finding(report, "missing")["items"]) == 8
    assert {found["kind"] for found in report["findings"] if found["level"] == "blocked"} == {"missing"}
    assert "22 of 30 images found" in finding(report, "missing")["text"]
    assert "and 3 more" in finding(report, "missing")["text"]


def test_missing_images_do_not_affect_the_intensity_range(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    gray = np.array(photographs.photograph(0).convert("L")).astype(np.uint16) * 12 + 100
    Image.fromarray(gray).save(table.parent / "29.png")
    rows = [f"{number}.png,{'roof' if number % 2 else 'sky'}" for number in range(2000)]  # more than are sampled
    table.write_text("\n".join(["filename,labels", *rows]) + "\n")
    assert checked(table)["levels"] is not None


def test_check_and_train_block_with_the_same_text(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    unlink(table, 1, 2)
    (table.parent / "8.jpg").write_bytes(b"")
    copy(table, 9, 26, identical=True)
    report = checked(table)
    with pytest.raises(DataError) as caught:
        prepared(table)
    assert str(caught.value) == texts(report, "blocked")
    options: dict[str, str] = {}
    for blocking in ("missing", "unreadable", "leak"):
        for reading in finding(report, blocking)["readings"]:
            options |= reading["options"]
    checks: dict[str, Any] = {"skip_bad": float(options["skip_bad"]), "allow_leaks": options["allow_leaks"] == "True"}
    assert checked(table, **checks)["verdict"] == "warnings"
    assert len(prepared(table, **checks).records) == COUNT - 3


def test_accepted_problems_are_printed_briefly_and_stored_completely(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    unlink(table, *range(9))
    console = recording_console()
    data = prepared(table, console=console, skip_bad=0.5)
    assert len(source_of(data).skipped) == 9
    assert text_of(console).count("does not exist") == 5
    assert "and 4 more" in text_of(console)


def test_copies_within_a_split_are_noted_only_if_the_split_is_given(tmp_path: Path) -> None:
    for name, splits in (("given", SPLIT_COLUMN), ("made", None)):
        table = photographs.folder(tmp_path / name, COUNT, splits=splits)
        copy(table, 0, 1, identical=True)
        copy(table, 4, 5)
        report = checked(table)
        kinds = {found["kind"] for found in report["findings"] if found["level"] == "note"}
        assert kinds == ({"exact_duplicates", "near_duplicates"} if name == "given" else set())
        assert len(report["exact_duplicates"]) == len(report["near_duplicates"]) == 1


def test_possible_duplicates_are_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "thresholds", lambda sample: (2.0, 0.5))  # nothing can be confirmed
    table = photographs.folder(tmp_path / "p", COUNT, splits=SPLIT_COLUMN)
    copy(table, 3, 27)
    copy(table, 9, 26, identical=True)
    report = checked(table)
    assert "27.jpg" in texts(report, "note")
    assert "27.jpg" not in texts(report, "blocked")
    console = recording_console()
    prepared(table, console=console, allow_leaks=True)
    assert "possible near-duplicates in train and test: " in text_of(console)
    assert "27.jpg" not in text_of(console)  # listed by check only


def test_a_question_is_a_finding_with_its_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = Reading("a blank means absent", {"blank": "negative"}, ("row 2: cat", "row 3: dog"))
    unknown = Reading("a blank means unknown", {"blank": "unknown"}, ("row 2: cat, dog unknown", "row 3: dog"))

    def ask(source: DataSource) -> None:
        raise Question(f"{source.data.name}: what does a blank mean?", [absent, unknown])

    monkeypatch.setattr(audit, "read_source", ask)
    report = checked(Path("labels.csv"))
    (question,) = report["findings"]
    assert (question["kind"], question["level"], report["verdict"]) == ("question", "blocked", "blocked")
    assert "labels.csv" in question["text"]
    assert list(question["readings"]) == [asdict(absent), asdict(unknown)]
    with pytest.raises(Question):
        prepared(Path("labels.csv"))
