"""Data on its way into a run: photographs with everything that can be wrong with them."""

import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from rich.console import Console as RichConsole

from helpers import photographs
from probmcl.console import Console
from probmcl.data.audit import PreparedData, check, prepare_data, read_again
from probmcl.data.options import DataChecks, DataSource, ReadOptions
from probmcl.data.records import SPLITS
from probmcl.errors import DataError, OptionError
from probmcl.run.state import write_split

COUNT = 30
GIVEN = ["train"] * 20 + ["val"] * 4 + ["test"] * 6


def shown() -> Console:
    return Console(RichConsole(file=StringIO(), width=300))


def text_of(console: Console) -> str:
    return console.rich.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def prepared(table: Path, *, console: Console | None = None, seed: int = 0, **checks: Any) -> PreparedData:
    source = DataSource.of(table, None, ReadOptions())
    return prepare_data(source, DataChecks(**checks), seed=seed, console=console or shown())


def split_of(found: PreparedData, name: str) -> str:
    return next(
        split for path, split in zip(found.records.paths, found.records.split, strict=True) if path.name == name
    )


def copy(table: Path, source: int, number: int, *, as_it_is: bool = False) -> None:
    """Image `number` becomes that of `source`: byte by byte, or flipped and encoded anew."""
    here, there = table.parent / f"{source}.jpg", table.parent / f"{number}.jpg"
    if as_it_is:
        shutil.copy(here, there)
    else:
        with Image.open(here) as image:
            ImageOps.mirror(image).resize((100, 75)).save(there, quality=70)


def test_good_data_comes_through_and_says_what_it_is(tmp_path: Path) -> None:
    console = shown()
    found = prepared(photographs.folder(tmp_path / "p", COUNT, splits=GIVEN), console=console)
    assert list(found.records.split) == GIVEN
    assert (found.warnings, found.intensity, found.fold_of) == ([], None, None)
    assert "train 20 · val 4 · test 6" in text_of(console)
    assert "  reading every image once" in text_of(console)


@pytest.mark.parametrize("as_it_is", [True, False])
def test_the_same_picture_in_train_and_test_is_refused_with_both_rows_unless_allowed(
    tmp_path: Path, as_it_is: bool
) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=GIVEN)
    copy(table, 3, 28, as_it_is=as_it_is)
    with pytest.raises(DataError) as caught:
        prepared(table)
    for part in ("in train and test: 1", "row 5: ", "3.jpg", "row 30: ", "28.jpg", "allow_leaks"):
        assert part in str(caught.value)
    found = prepared(table, allow_leaks=True)
    assert any("28.jpg" in warning.message for warning in found.warnings)
    assert found.source.leaks_allowed == tuple(warning.message for warning in found.warnings)


def test_a_patient_in_two_splits_is_refused_and_one_in_a_single_split_is_not(tmp_path: Path) -> None:
    patients = [f"p{number // 2}" for number in range(COUNT)]
    table = photographs.folder(tmp_path / "p", COUNT, splits=GIVEN, patients=patients)
    assert prepared(table).warnings == []
    patients[25] = "p0"
    table = photographs.folder(tmp_path / "q", COUNT, splits=GIVEN, patients=patients)
    with pytest.raises(DataError, match="group 'p0'"):
        prepared(table)


@pytest.mark.parametrize("seed", range(4))
def test_a_split_made_here_keeps_copies_and_groups_together(tmp_path: Path, seed: int) -> None:
    patients = [f"p{number // 3}" for number in range(COUNT)]
    table = photographs.folder(tmp_path / "p", COUNT, patients=patients)
    copy(table, 1, 10, as_it_is=True)
    copy(table, 20, 29)
    found = prepared(table, seed=seed)
    assert found.warnings == []
    assert all(len(found.records.rows(split)) for split in SPLITS)
    assert split_of(found, "1.jpg") == split_of(found, "10.jpg")
    assert split_of(found, "20.jpg") == split_of(found, "29.jpg")
    for patient in set(patients):
        assert (
            len({s for s, g in zip(found.records.split, found.records.group or (), strict=True) if g == patient}) == 1
        )
    origin = str(found.records.origin)
    assert f"val and test taken from train with seed {seed}" in origin


def test_what_cannot_be_read_is_refused_or_left_out_and_nothing_is_changed(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    (table.parent / "7.jpg").write_bytes(b"")
    before = {path: path.read_bytes() for path in table.parent.iterdir()}
    with pytest.raises(DataError, match=r"row 9: .*7\.jpg: the file is empty"):
        prepared(table)
    found = prepared(table, skip_bad=0.1)
    assert len(found.records) == COUNT - 1
    assert [Path(image.path).name for image in found.source.skipped] == ["7.jpg"]
    assert {path: path.read_bytes() for path in table.parent.iterdir()} == before


def test_a_split_can_be_given_back_and_read_again(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    (table.parent / "7.jpg").write_bytes(b"")
    found = prepared(table, seed=3, skip_bad=0.1)
    write_split(tmp_path, found.records)
    again = read_again(found.source, tmp_path / "split.csv")
    assert again.paths == found.records.paths
    assert again.split == found.records.split
    assert np.array_equal(again.labels, found.records.labels)
    given = prepared(table, seed=9, split_file=tmp_path / "split.csv", skip_bad=0.1)
    assert given.records.split == found.records.split
    (table.parent / "8.jpg").write_bytes(b"")  # which the file names
    given = prepared(table, seed=9, split_file=tmp_path / "split.csv", skip_bad=0.1)
    assert len(given.records) == COUNT - 2


def test_folds_are_disjoint_whole_and_the_same_each_time(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    tested: list[str] = []
    for fold in (1, 2, 3):
        found = prepared(table, folds=3, fold=fold)
        assert found.fold_of is not None
        rows = found.records.rows("test")
        assert (found.fold_of[rows] == fold).all()
        assert len(found.records.rows("val")) > 0
        tested += [found.records.paths[row].name for row in rows]
    assert sorted(tested) == sorted(f"{number}.jpg" for number in range(COUNT))


def test_one_group_cannot_be_divided_and_that_is_said_by_both(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12, patients=["one"] * 12)
    with pytest.raises(
        DataError, match=r"no image belongs to the val or test split .*join the images into 1 that cannot"
    ):
        prepared(table)
    found = checked(table)
    assert found["verdict"] == "blocked"
    assert "join the images into 1 that cannot be divided" in texts(found, "blocked")


def test_a_column_that_leaves_a_split_empty_is_answered_with_the_flag(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12, splits=["test"] * 12)
    with pytest.raises(DataError, match=r"no image belongs to the train or val split .*`split_column=''`"):
        prepared(table)
    assert checked(table)["verdict"] == "blocked"


def test_a_negative_seed_is_refused(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    with pytest.raises(OptionError, match="`seed=-1` must be at least 0"):
        prepared(table, seed=-1)


def test_a_file_of_folds_wants_to_know_which(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 6)
    (tmp_path / "folds.csv").write_text("path,fold\n")
    with pytest.raises(OptionError, match="has folds; `fold=K`"):
        prepared(table, split_file=tmp_path / "folds.csv")


def test_a_child_without_its_parent_is_warned_of_and_the_parent_taken_as_present(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12)
    rows = [f"{number}.jpg,{int(number > 5)},{int(number > 3)}" for number in range(12)]
    table.write_text("\n".join(["filename,building,roof", *rows]) + "\n")
    (tmp_path / "tree.csv").write_text("child,parent\nroof,building\n")
    found = check(DataSource.of(table, None, ReadOptions(hierarchy=tmp_path / "tree.csv")), console=shown())
    said = "in 2 images (first: row 6), a class is present but its parent is absent"
    assert said in texts(found, "warning")
    assert said in found["summary"]
    assert sum(found["per_class"]["building"]["present"].values()) == 8


def test_a_mapped_minus_one_counts_as_what_it_is_mapped_to(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 12)
    rows = [f"{number}.jpg,{-1 if number % 2 else 1},{number % 3 % 2}" for number in range(12)]
    table.write_text("\n".join(["filename,roof,sky", *rows]) + "\n")
    found = check(DataSource.of(table, None, ReadOptions(minus_one=("negative",))), console=shown())
    per_class = found["per_class"]["roof"]
    assert sum(per_class["present"].values()) == sum(per_class["absent"].values()) == 6
    assert sum(per_class["uncertain"].values()) == 0


def test_sixteen_bit_images_get_their_levels_from_the_data(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    rows = table.read_text().replace(".jpg", ".png")
    table.write_text(rows)
    for number in range(COUNT):
        gray = np.array(photographs.photograph(number).convert("L")).astype(np.uint16) * 12 + 100
        Image.fromarray(gray).save(table.parent / f"{number}.png")
    console = shown()
    found = prepared(table, console=console)
    assert found.intensity is not None
    assert 100 <= found.intensity.low < found.intensity.high <= 100 + 12 * 255
    assert "become black to white" in text_of(console)
    full = prepared(table, range="full").intensity
    assert full is not None
    assert (full.low, full.high) == (0, 65535)


# The check.


def checked(table: Path, **checks: Any) -> dict[str, Any]:
    return check(DataSource.of(table, None, ReadOptions()), DataChecks(**checks), console=shown())


def texts(found: dict[str, Any], level: str) -> str:
    return "\n".join(finding["text"] for finding in found["findings"] if finding["level"] == level)


def test_a_check_counts_what_is_there(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=GIVEN)
    found = checked(table)
    assert found["images"] == COUNT
    assert found["splits"] == {"train": 20, "val": 4, "test": 6}
    labels = [row.split(",")[1].split("|") for row in table.read_text().splitlines()[1:]]
    for name in photographs.CLASSES:
        expected = {s: sum(name in of for of, t in zip(labels, GIVEN, strict=True) if t == s) for s in SPLITS}
        assert found["per_class"][name]["present"] == expected
    together = {frozenset(pair["classes"]): pair["images"] for pair in found["together"]}
    assert together[frozenset({"roof", "sky"})] == sum("roof" in of and "sky" in of for of in labels)
    assert found["sizes"]["width"] == {"least": 120, "median": 120, "most": 120}
    assert found["sizes"]["modes"] == {"RGB": COUNT}
    assert found["verdict"] in ("fine", "warnings")


def test_a_check_finds_what_is_planted(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=GIVEN)
    copy(table, 0, 1, as_it_is=True)  # within train, with other labels
    copy(table, 4, 5)  # within train, flipped
    Image.new("RGB", (80, 60), (9, 9, 9)).save(table.parent / "6.jpg")
    (table.parent / "8.jpg").write_bytes((table.parent / "8.jpg").read_bytes()[:900])
    copy(table, 9, 26, as_it_is=True)  # train and test
    found = checked(table)
    assert found["verdict"] == "blocked"
    assert [Path(name).name for name in found["nearly_constant"]] == ["6.jpg"]
    assert len(found["unreadable"]) == 1
    assert "truncated" in found["unreadable"][0]["reason"]
    assert sorted(sorted(Path(p).name for p in same) for same in found["exact_duplicates"]) == [
        ["0.jpg", "1.jpg"],
        ["26.jpg", "9.jpg"],
    ]
    assert found["conflicting_labels"]
    near = [{Path(p).name for p in pair["images"]} for pair in found["near_duplicates"] if pair["confirmed"]]
    assert {"4.jpg", "5.jpg"} in near
    assert "1 of 30 images cannot be used" in texts(found, "blocked")
    assert "26.jpg" in texts(found, "blocked")
    assert "nearly of one color: 1" in texts(found, "warning")


def test_skip_bad_and_allow_leaks_make_warnings_of_what_blocks(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=GIVEN)
    (table.parent / "8.jpg").write_bytes(b"")
    copy(table, 9, 26, as_it_is=True)
    kinds = {finding["kind"] for finding in checked(table)["findings"] if finding["level"] == "blocked"}
    assert kinds == {"unreadable", "leak"}
    found = checked(table, skip_bad=0.1, allow_leaks=True)
    assert found["verdict"] == "warnings"
    assert {"unreadable", "leak"} <= {finding["kind"] for finding in found["findings"]}
    with pytest.raises(DataError, match=r"(?s)1 of 30 images cannot be used.*equal files in train and test: 1"):
        prepared(table)
    assert len(prepared(table, skip_bad=0.1, allow_leaks=True).records) == COUNT - 1


def test_data_without_a_readable_image_are_blocked(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    for number in range(3):
        (table.parent / f"{number}.jpg").write_bytes(b"")
    assert "3 of 3 images cannot be used" in texts(checked(table), "blocked")
    with pytest.raises(DataError, match="3 of 3 images cannot be used"):
        prepared(table, skip_bad=0.9)


def test_a_check_of_data_without_a_split_makes_one_that_does_not_leak(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT)
    copy(table, 9, 26, as_it_is=True)
    found = checked(table)
    assert found["split"].startswith("val and test taken from train")
    assert found["verdict"] != "blocked"


def test_a_table_that_cannot_be_read_is_one_finding(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    table.write_text("filename,labels\n0.jpg,roof\n1.jpg\n")
    found = checked(table)
    assert found["verdict"] == "blocked"
    assert "row 3" in texts(found, "blocked")


def test_rows_that_name_an_image_again_are_all_counted(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", 3)
    table.write_text("filename,roof,sky\n0.jpg,1,0\n1.jpg,0,1\n0.jpg,1,0\n1.jpg,1,1\n2.jpg,0,0\n./0.jpg,1,0\n")
    found = checked(table)
    assert found["verdict"] == "blocked"
    assert found["duplicated_rows"] == [(2, 4), (2, 7)]
    assert found["conflicting_rows"] == [(3, 5)]
    assert "rows 2 and 4: both have the path '0.jpg' (3 rows repeat a path" in texts(found, "blocked")


def test_rare_and_missing_classes_are_warned_of(tmp_path: Path) -> None:
    table = photographs.folder(tmp_path / "p", COUNT, splits=GIVEN)
    lines = table.read_text().splitlines()
    lines[1] = lines[1].replace("roof", "roof|dragon") if "roof" in lines[1] else lines[1].replace(",", ",dragon|", 1)
    lines[-1] = lines[-1].replace(",", ",ghost|", 1)
    table.write_text("\n".join(lines) + "\n")
    warned = texts(checked(table), "warning")
    assert "without a positive in train: 1 (ghost)" in warned
    assert "dragon" in warned
    assert "without a known negative" not in warned
    rows = [f"{number}.jpg,1,{number % 2},{GIVEN[number]}" for number in range(COUNT)]
    table.write_text("\n".join(["filename,roof,sky,split", *rows]) + "\n")
    assert "without a known negative, which cannot be learned: 1 (roof)" in texts(checked(table), "warning")
