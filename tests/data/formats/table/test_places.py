import os
from pathlib import Path

import pytest

from helpers.tables import write_table
from probmcl.data.formats.table.places import find_places
from probmcl.data.formats.table.sheet import Table
from probmcl.data.formats.table.table import read_table
from probmcl.data.records import Missing, Records
from probmcl.errors import DataError


def read(folder: Path, names: str, images: str, root: Path | None = None, missing: Missing = "error") -> Records:
    rows = "".join(f"{name},{'cat' if i % 2 else 'dog'}\n" for i, name in enumerate(names.split(" ")))
    table = write_table(folder, f"file,label\n{rows}", images=images)
    return read_table(table, images=root, missing=missing)


def refused(folder: Path, names: str, images: str, what: str) -> None:
    with pytest.raises(DataError, match=what):
        read(folder, names, images)


def test_a_missing_ending_is_found_and_said(tmp_path: Path) -> None:
    records = read(tmp_path, "2031 a/v1.2", "2031.jpg a/v1.2.PNG a/v1.2.txt")
    assert records.paths == (tmp_path / "2031.jpg", tmp_path / "a" / "v1.2.PNG")
    assert str(records.origin).endswith("; 2 images found by adding an ending")


def test_a_file_without_ending_goes_before_one_with(tmp_path: Path) -> None:
    assert read(tmp_path, "2031 7.jpg", "2031 2031.jpg 7.jpg").paths[0] == tmp_path / "2031"


def test_two_files_that_fit_a_missing_ending_are_both_named(tmp_path: Path) -> None:
    refused(tmp_path, "7 8", "7.jpg 7.png 8.jpg", r"row 2: '7' may be 7\.jpg and 7\.png in .*; write the ending")


def test_bare_names_are_found_in_sub_folders_and_that_is_said(tmp_path: Path) -> None:
    records = read(tmp_path, "1.png 2.png 3", "images_001/images/1.png images_002/images/2.png images_002/images/3.png")
    assert records.paths[:2] == (tmp_path / "images_001/images/1.png", tmp_path / "images_002/images/2.png")
    assert records.paths[2] == tmp_path / "images_002/images/3.png"
    assert str(records.origin).endswith(f"; 3 images found in sub-folders of {tmp_path.name}/")


def test_equal_names_in_two_folders_are_both_named_with_the_remedy(tmp_path: Path) -> None:
    files = "a/1.png b/1.png a/2.png"
    refused(tmp_path, "1.png 2.png", files, "may be .*a/1.png or .*b/1.png; put the folder .*`images=FOLDER`")
    assert read(tmp_path, "1.png 2.png", files, tmp_path / "a").paths == (tmp_path / "a/1.png", tmp_path / "a/2.png")
    assert read(tmp_path, "a/1.png b/1.png", files).paths == (tmp_path / "a/1.png", tmp_path / "b/1.png")


def test_a_file_where_it_should_be_goes_before_one_of_its_name_elsewhere(tmp_path: Path) -> None:
    assert read(tmp_path, "1.png 2.png", "1.png a/1.png a/2.png").paths == (tmp_path / "1.png", tmp_path / "a/2.png")


@pytest.mark.parametrize("name", ["../1.jpg", "a/../../1.jpg", ".."])
def test_a_path_that_leaves_its_folder_is_refused_with_row_and_value(tmp_path: Path, name: str) -> None:
    refused(tmp_path, f"2.jpg {name}", "2.jpg", rf"row 3: '{name}' leads out of the folder .* `images=")


def test_a_path_that_turns_round_within_its_folder_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a/../1.jpg ..b/2.jpg", "1.jpg ..b/2.jpg a/x").paths[0] == tmp_path / "1.jpg"


def test_a_link_out_of_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "x.jpg").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "1.jpg").symlink_to(tmp_path / "away" / "x.jpg")
    (tmp_path / "here" / "sub").symlink_to(tmp_path / "away")
    assert read(tmp_path / "here", "1.jpg sub/x.jpg", "").paths[1] == tmp_path / "here" / "sub" / "x.jpg"
    refused(tmp_path / "here", "1.jpg gone.jpg", "", "row 3: 'gone.jpg' does not exist")


def test_a_name_with_a_line_end_is_read_and_shown_escaped(tmp_path: Path) -> None:
    (tmp_path / "two\nlines.jpg").touch()
    table = write_table(tmp_path, 'file,label\n"two\nlines.jpg",cat\n1.jpg,dog\n', images="1.jpg")
    assert read_table(table).paths[0] == tmp_path / "two\nlines.jpg"
    (tmp_path / "two\nlines.jpg").unlink()
    with pytest.raises(DataError) as caught:
        read_table(table)
    assert r"row 2: 'two\nlines.jpg' does not exist" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_nul_byte_and_a_name_that_is_too_long_are_named_by_their_row(tmp_path: Path) -> None:
    refused(tmp_path, "1.jpg 2\0.jpg", "1.jpg", r"row 3: column 'file' holds '2\\x00\.jpg'")
    refused(tmp_path, f"1.jpg {'x' * 5000}/2.jpg", "1.jpg", "row 3: 'xxx")


def test_backslashes_are_read_as_slashes_where_some_fit_so_and_none_as_they_are(tmp_path: Path) -> None:
    records = read(tmp_path, "a\\1.jpg a\\2.jpg 3.jpg", "a/1.jpg a/2.jpg 3.jpg")
    assert records.paths[:2] == (tmp_path / "a/1.jpg", tmp_path / "a/2.jpg")
    assert str(records.origin).endswith("; '\\' in paths read as '/'")
    refused(
        tmp_path, "a\\1.jpg a\\9.jpg 3.jpg", "", r"row 3: 'a\\\\9\.jpg' does not exist under [^,]*; `images=FOLDER`"
    )
    kept = read(tmp_path, "a\\1.jpg a\\9.jpg 3.jpg", "", missing="keep")
    assert kept.paths == (tmp_path / "a/1.jpg", tmp_path / "a/9.jpg", tmp_path / "3.jpg")
    (tmp_path / "a\\1.jpg").touch()
    refused(tmp_path, "a\\1.jpg a\\2.jpg", "", r"row 3: 'a\\\\2\.jpg' does not exist")


def test_images_beside_the_table_and_under_images_are_found_together(tmp_path: Path) -> None:
    assert read(tmp_path, "1.jpg 2.jpg", "1.jpg images/2.jpg").paths == (tmp_path / "1.jpg", tmp_path / "images/2.jpg")


def test_relative_roots_give_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(Path(), "1.jpg a/2.jpg", "1.jpg a/2.jpg").paths == (Path("1.jpg"), Path("a/2.jpg"))


def test_folders_are_listed_once_and_files_are_not_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{k}/{i}.jpg" for k in "ab" for i in range(50)]
    table = write_table(tmp_path, "file,label\n" + "".join(f"{name},cat\n" for name in names), images=" ".join(names))
    calls: list[str] = []
    scan = os.scandir

    def counted(folder: str) -> object:
        calls.append(folder)
        return scan(folder)

    def asked(path: Path) -> bool:
        calls.append(str(path))
        return True

    monkeypatch.setattr(os, "scandir", counted)
    monkeypatch.setattr(Path, "is_file", asked)
    loaded = Table(table, ("file",), tuple((name,) for name in names), tuple(range(2, 102)))
    assert len(find_places(loaded, "file", None, "error")[0]) == 100
    assert calls == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_a_path_that_leaves_its_folder_by_backslashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.jpg").touch()
    (tmp_path / "here").mkdir()
    refused(tmp_path / "here", "1.jpg ..\\out.jpg", "1.jpg", r"row 3: .* leads out of the folder")


def test_a_drive_of_another_system_is_named(tmp_path: Path) -> None:
    refused(
        tmp_path,
        "C:\\data\\1.jpg 2.jpg",
        "1.jpg 2.jpg",
        r"row 2: .*; 'C:' is a drive of another system.*`images=FOLDER`",
    )


def test_paths_that_begin_with_the_name_of_the_tables_folder_are_found_and_that_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "CheX"
    folder.mkdir()
    records = read(folder, "CheX/train/1.jpg CheX/train/2.jpg", "train/1.jpg train/2.jpg")
    assert records.paths == (folder / "train/1.jpg", folder / "train/2.jpg")
    assert str(records.origin).endswith("; paths begin at the folder above CheX/")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jpg").touch()
    refused(folder, "CheX/train/1.jpg other/1.jpg", "", "does not exist under")


def test_the_same_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "CheX").mkdir()
    monkeypatch.chdir(tmp_path / "CheX")
    assert read(Path(), "CheX/1.jpg CheX/2.jpg", "1.jpg 2.jpg").paths[0] == tmp_path / "CheX/1.jpg"


@pytest.mark.parametrize(
    ("written", "there", "what"),
    [
        ("a/7.jpg", "A/7.JPG", r"there is 'A/7\.JPG', which differs only by case"),
        ("caf\u00e9.jpg", "cafe\u0301.jpg", r"there is 'cafe\u0301\.jpg', which differs only by Unicode normal form"),
        ("a/7.jpg", "a/7.png", r"`images=FOLDER` says where"),
    ],
)
def test_a_file_that_differs_by_case_or_normal_form_is_named_but_not_taken(
    tmp_path: Path, written: str, there: str, what: str
) -> None:
    refused(tmp_path, f"1.jpg {written}", f"1.jpg {there}", rf"row 3: '{written}' does not exist .*; {what}")


def test_two_files_that_differ_by_case_are_not_chosen_between(tmp_path: Path) -> None:
    refused(tmp_path, "1.jpg a.jpg", "1.jpg A.jpg a.JPG", "row 3: 'a.jpg' does not exist .*; `images=")


def test_a_link_that_leads_nowhere_is_not_found_in_a_sub_folder(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    refused(tmp_path, "1.jpg 2.jpg", "1.jpg", r"row 3: '2\.jpg' does not exist")
    assert read(tmp_path, "1.jpg 2.jpg", "b/2.jpg").paths[1] == tmp_path / "b" / "2.jpg"
