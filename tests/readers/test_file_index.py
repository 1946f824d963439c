import os
from pathlib import Path

import pytest

from helpers.tables import Write, labels_of, refused, write_table
from probmcl.data.records import Missing, Records
from probmcl.errors import DataError
from probmcl.readers.file_index import find_images, find_index
from probmcl.readers.options import ReadOptions
from probmcl.readers.spreadsheet import Spreadsheet
from probmcl.readers.table.table import read_table


def read(folder: Path, names: str, images: str, root: Path | None = None, missing: Missing = "error") -> Records:
    rows = "".join(f"{name},{'cat' if i % 2 else 'dog'}\n" for i, name in enumerate(names.split(" ")))
    table = write_table(folder, f"file,label\n{rows}", images=images)
    return read_table(table, images=root, missing=missing)


def fails(folder: Path, names: str, images: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        read(folder, names, images)


def test_missing_suffix_is_added(tmp_path: Path) -> None:
    records = read(tmp_path, "2031 a/v1.2", "2031.jpg a/v1.2.PNG a/v1.2.txt")
    assert records.paths == (tmp_path / "2031.jpg", tmp_path / "a" / "v1.2.PNG")
    assert "path column 'file'; 2 images found by adding the suffix\n" in str(records.origin)


def test_file_without_suffix_takes_precedence(tmp_path: Path) -> None:
    assert read(tmp_path, "2031 7.jpg", "2031 2031.jpg 7.jpg").paths[0] == tmp_path / "2031"


def test_two_files_that_differ_in_the_suffix_are_refused(tmp_path: Path) -> None:
    fails(tmp_path, "7 8", "7.jpg 7.png 8.jpg", r"row 2: '7' matches 7\.jpg and 7\.png")


def test_bare_names_are_found_in_subfolders(tmp_path: Path) -> None:
    records = read(tmp_path, "1.png 2.png 3", "images_001/images/1.png images_002/images/2.png images_002/images/3.png")
    assert records.paths[:2] == (tmp_path / "images_001/images/1.png", tmp_path / "images_002/images/2.png")
    assert records.paths[2] == tmp_path / "images_002/images/3.png"
    assert f"; 3 images found in subfolders of {tmp_path.name}/\n" in str(records.origin)


def test_equal_names_in_two_subfolders_are_refused(tmp_path: Path) -> None:
    files = "a/1.png b/1.png a/2.png"
    fails(tmp_path, "1.png 2.png", files, "a/1.png and .*b/1.png.*`images=FOLDER`")
    assert read(tmp_path, "1.png 2.png", files, tmp_path / "a").paths == (tmp_path / "a/1.png", tmp_path / "a/2.png")
    assert read(tmp_path, "a/1.png b/1.png", files).paths == (tmp_path / "a/1.png", tmp_path / "b/1.png")


def test_exact_path_takes_precedence_over_subfolders(tmp_path: Path) -> None:
    assert read(tmp_path, "1.png 2.png", "1.png a/1.png a/2.png").paths == (tmp_path / "1.png", tmp_path / "a/2.png")


@pytest.mark.parametrize("name", ["../1.jpg", "a/../../1.jpg", ".."])
def test_path_outside_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    fails(tmp_path, f"2.jpg {name}", "2.jpg", rf"row 3: '{name}' is outside .*`images=")


def test_path_with_dots_inside_of_the_folder_is_read(tmp_path: Path) -> None:
    assert read(tmp_path, "a/../1.jpg ..b/2.jpg", "1.jpg ..b/2.jpg a/x").paths[0] == tmp_path / "1.jpg"


def test_link_out_of_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    (tmp_path / "away" / "x.jpg").touch()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "1.jpg").symlink_to(tmp_path / "away" / "x.jpg")
    (tmp_path / "here" / "sub").symlink_to(tmp_path / "away")
    assert read(tmp_path / "here", "1.jpg sub/x.jpg", "").paths[1] == tmp_path / "here" / "sub" / "x.jpg"
    fails(tmp_path / "here", "1.jpg gone.jpg", "", "row 3: 'gone.jpg' does not exist")


def test_line_break_in_a_name_is_escaped_in_messages(tmp_path: Path) -> None:
    (tmp_path / "two\nlines.jpg").touch()
    table = write_table(tmp_path, 'file,label\n"two\nlines.jpg",cat\n1.jpg,dog\n', images="1.jpg")
    assert read_table(table).paths[0] == tmp_path / "two\nlines.jpg"
    (tmp_path / "two\nlines.jpg").unlink()
    with pytest.raises(DataError) as caught:
        read_table(table)
    assert r"row 2: 'two\nlines.jpg' does not exist" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nul_byte_and_long_name_are_refused(tmp_path: Path) -> None:
    fails(tmp_path, "1.jpg 2\0.jpg", "1.jpg", r"row 3: '2\\x00\.jpg' in column 'file'")
    fails(tmp_path, f"1.jpg {'x' * 5000}/2.jpg", "1.jpg", "row 3: 'xxx")


def test_backslashes_are_read_as_slashes_only_if_needed(tmp_path: Path) -> None:
    records = read(tmp_path, "a\\1.jpg a\\2.jpg 3.jpg", "a/1.jpg a/2.jpg 3.jpg")
    assert records.paths[:2] == (tmp_path / "a/1.jpg", tmp_path / "a/2.jpg")
    assert "; '\\' in paths read as '/'\n" in str(records.origin)
    fails(tmp_path, "a\\1.jpg a\\9.jpg 3.jpg", "", r"row 3: 'a\\\\9\.jpg' does not exist in [^,]*`images=FOLDER`")
    kept = read(tmp_path, "a\\1.jpg a\\9.jpg 3.jpg", "", missing="keep")
    assert kept.paths == (tmp_path / "a/1.jpg", tmp_path / "a/9.jpg", tmp_path / "3.jpg")
    (tmp_path / "a\\1.jpg").touch()
    fails(tmp_path, "a\\1.jpg a\\2.jpg", "", r"row 3: 'a\\\\2\.jpg' does not exist")


def test_images_next_to_the_table_and_in_images_are_found_together(tmp_path: Path) -> None:
    assert read(tmp_path, "1.jpg 2.jpg", "1.jpg images/2.jpg").paths == (tmp_path / "1.jpg", tmp_path / "images/2.jpg")


def test_relative_roots_give_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read(Path(), "1.jpg a/2.jpg", "1.jpg a/2.jpg").paths == (Path("1.jpg"), Path("a/2.jpg"))


def test_folders_are_listed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{k}/{i}.jpg" for k in "ab" for i in range(50)]
    table = write_table(tmp_path, "file,label\n" + "".join(f"{name},cat\n" for name in names), images=" ".join(names))
    calls: list[str] = []
    scan = os.scandir

    def count_scan(folder: str) -> object:
        calls.append(folder)
        return scan(folder)

    def count_check(path: Path) -> bool:
        calls.append(str(path))
        return True

    monkeypatch.setattr(os, "scandir", count_scan)
    monkeypatch.setattr(Path, "is_file", count_check)
    loaded = Spreadsheet(table, ("file",), (names,), range(2, 102))
    assert len(find_images(loaded, "file", find_index(tmp_path, None), "error")[0]) == 100
    assert calls == [str(tmp_path / "a"), str(tmp_path / "b")]


def test_backslash_path_outside_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "out.jpg").touch()
    (tmp_path / "here").mkdir()
    fails(tmp_path / "here", "1.jpg ..\\out.jpg", "1.jpg", r"row 3: .* is outside")


def test_windows_drive_is_refused(tmp_path: Path) -> None:
    fails(
        tmp_path,
        "C:\\data\\1.jpg 2.jpg",
        "1.jpg 2.jpg",
        r"row 2: .*'C:' is a Windows drive.*`images=FOLDER`",
    )


def test_paths_that_start_with_the_name_of_the_table_folder_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "CheX"
    folder.mkdir()
    records = read(folder, "CheX/train/1.jpg CheX/train/2.jpg", "train/1.jpg train/2.jpg")
    assert records.paths == (folder / "train/1.jpg", folder / "train/2.jpg")
    assert "; paths without CheX/ in front\n" in str(records.origin)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "1.jpg").touch()
    fails(folder, "CheX/train/1.jpg other/1.jpg", "", "does not exist in")


def test_paths_that_start_with_the_name_of_the_working_directory_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "CheX").mkdir()
    monkeypatch.chdir(tmp_path / "CheX")
    assert read(Path(), "CheX/1.jpg CheX/2.jpg", "1.jpg 2.jpg").paths == (Path("1.jpg"), Path("2.jpg"))


@pytest.mark.parametrize(
    ("path", "existing", "message"),
    [
        ("caf\u00e9.jpg", "cafe\u0301.jpg", r"'cafe\u0301\.jpg' differs only in Unicode"),
        ("a/7.jpg", "a/7.png", r"use `images=FOLDER`"),
    ],
)
def test_similar_file_is_suggested(tmp_path: Path, path: str, existing: str, message: str) -> None:
    fails(tmp_path, f"1.jpg {path}", f"1.jpg {existing}", rf"row 3: '{path}' does not exist .*; {message}")


def test_no_suggestion_if_two_files_differ_only_in_case(tmp_path: Path) -> None:
    fails(tmp_path, "1.jpg a.jpg", "1.jpg A.jpg a.JPG", "row 3: 'a.jpg' does not exist .*; use `images=")


def test_broken_link_in_a_subfolder_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    fails(tmp_path, "1.jpg 2.jpg", "1.jpg", r"row 3: '2\.jpg' does not exist")
    assert read(tmp_path, "1.jpg 2.jpg", "b/2.jpg").paths[1] == tmp_path / "b" / "2.jpg"


def test_missing_images_are_refused(write: Write) -> None:
    table = write("filename,labels\n1.jpg,cat\n8.jpg,cat\n9.jpg,dog\n10.jpg,dog\n")
    refused(table, "labels.csv, row 3: '8.jpg' does not exist", "2 more", "images")


def test_missing_images_are_kept_on_request_unless_all_are_missing(write: Write) -> None:
    table = write("filename,labels\n1.jpg,cat\n8.jpg,dog\n")
    records = read_table(table, missing="keep")
    assert records.paths == (table.parent / "1.jpg", table.parent / "8.jpg")
    assert labels_of(records) == [{"cat"}, {"dog"}]
    (table.parent / "1.jpg").unlink()
    with pytest.raises(DataError, match=r"row 2: '1\.jpg' does not exist in .*1 more.*`images=FOLDER`"):
        read_table(table, missing="keep")


def test_folder_with_more_of_the_images_is_used(write: Write, tmp_path: Path) -> None:
    table = write("filename,labels\n1.jpg,cat\n2.jpg,dog\n9.jpg,dog\n", images="1")
    (tmp_path / "images").mkdir()
    for name in ("1.jpg", "2.jpg"):
        (tmp_path / "images" / name).touch()
    assert read_table(table, missing="keep").paths[2] == tmp_path / "images" / "9.jpg"
    (tmp_path / "2.jpg").touch()
    with pytest.raises(DataError, match=r"the images exist in several folders: .*`images=FOLDER`"):
        read_table(table, missing="keep")
    table.write_text(f"filename,labels\n{tmp_path}/1.jpg,cat\n{tmp_path}/9.jpg,dog\n")
    assert read_table(table, missing="keep").paths == (tmp_path / "1.jpg", tmp_path / "9.jpg")


def test_images_are_found_next_to_the_table_or_in_images_or_by_option(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("filename,labels\n1.jpg,cat\n")
    for folder in (tmp_path / "images", tmp_path / "elsewhere"):
        folder.mkdir()
        (folder / "1.jpg").touch()
    assert read_table(tmp_path / "labels.csv").paths == (tmp_path / "images" / "1.jpg",)
    records = read_table(tmp_path / "labels.csv", images=tmp_path / "elsewhere")
    assert records.paths == (tmp_path / "elsewhere" / "1.jpg",)
    (tmp_path / "1.jpg").touch()
    refused(tmp_path / "labels.csv", str(tmp_path / "images"), "images")
    (tmp_path / "images" / "1.jpg").unlink()
    assert read_table(tmp_path / "labels.csv").paths == (tmp_path / "1.jpg",)


def path_column(table: Path) -> str:
    """Return the first line of the description, which names the path column."""
    return str(read_table(table).origin).splitlines()[0].partition(": ")[2]


@pytest.mark.parametrize(
    ("text", "column"),
    [
        ("scan,copy,tags\n1.jpg,data/1.jpg,cat\n2.jpg,data/2.jpg,dog\n", "scan"),  # both name the same files
        ("year,id,tags\n4,1,cat\n5,2,dog\n6,3,cat\n1,4,dog\n", "id"),  # two of the years match files as well
        ("image,original,tags\nhttps://a.org/x.jpg,1.jpg,cat\nhttps://a.org/y.jpg,2.jpg,dog\n", "original"),
        ("tags,Foto\ncat,1\ndog,2\n", "Foto"),
    ],
)
def test_files_on_disk_choose_the_path_column(write: Write, text: str, column: str) -> None:
    assert path_column(write(text)).startswith(f"path column {column!r}")


@pytest.mark.parametrize("header", ["left,right,tags", "image,path,tags"])
def test_two_columns_that_name_different_files_are_refused(write: Write, header: str) -> None:
    one, other = header.split(",")[:2]
    table = write(f"{header}\n1.jpg,2.jpg,cat\n2.jpg,3.jpg,dog\n")
    refused(table, f"'{one}' and '{other}'", "`path_column=COLUMN`")
    records = read_table(table, ReadOptions(path_column=other))
    assert records.paths == (table.parent / "2.jpg", table.parent / "3.jpg")


def test_table_whose_columns_match_no_file_is_refused(write: Write) -> None:
    refused(write("who,tags\nanna,cat\nben,dog\n"), "who, tags", "`images=FOLDER`", "`path_column=COLUMN`")


def test_table_without_a_header_is_refused(write: Write) -> None:
    refused(write("1.jpg,0,1\n2.jpg,1,0\n3.jpg,0,0\n"), "row 1: '1.jpg'")


def test_number_matches_a_name_with_leading_zeros_if_it_is_unique(tmp_path: Path) -> None:
    records = read(tmp_path, "7 8.0", "007.jpg a/0008.png")
    assert records.paths == (tmp_path / "007.jpg", tmp_path / "a/0008.png")
    assert "; 2 images found by number, such as 7 for 007.jpg" in str(records.origin)
    fails(tmp_path, "7 8.0", "07.jpg", r"row 2: '7' matches 007\.jpg and 07\.jpg|07\.jpg and 007\.jpg")


def test_case_is_ignored_if_the_match_is_unique(tmp_path: Path) -> None:
    records = read(tmp_path, "A/X.JPG y.jpg", "a/x.jpg Y.jpg")
    assert records.paths == (tmp_path / "a/x.jpg", tmp_path / "Y.jpg")
    assert "; 2 images found by ignoring case" in str(records.origin)
    fails(tmp_path, "A/X.JPG y.jpg", "a/x.Jpg", r"row 2: 'A/X\.JPG' does not exist")
    assert read(tmp_path, "a/x.jpg y.jpg", "").paths[0] == tmp_path / "a/x.jpg"


def test_leading_folders_are_dropped_if_all_rows_have_them(tmp_path: Path) -> None:
    records = read(tmp_path, "/home/me/1.jpg /home/me/b/2.jpg", "1.jpg b/2.jpg")
    assert records.paths == (tmp_path / "1.jpg", tmp_path / "b/2.jpg")
    assert "; paths without /home/me/ in front" in str(records.origin)
    fails(tmp_path, "x/1.jpg y/b/2.jpg", "", r"row 2: 'x/1\.jpg' does not exist .*1 more")
    fails(tmp_path, "x/1.jpg b/2.jpg", "", r"row 2: 'x/1\.jpg' does not exist")


@pytest.mark.parametrize("cell", ["1.2E+15", "1-Mar", "01.03.2024", "Mar-02"])
def test_path_that_excel_changed_is_named(write: Write, cell: str) -> None:
    refused(write(f"file,tags\n1.jpg,cat\n{cell},dog\n"), f"row 3: '{cell}' does not exist", "Excel")


@pytest.mark.parametrize("paths", [("1.jpg", "2.jpg"), ("1", "2")])
def test_link_to_itself_does_not_hide_the_other_files(tmp_path: Path, paths: tuple[str, str]) -> None:
    table = write_table(tmp_path, "file,tags\n{},cat\n{},dog\n".format(*paths))
    (tmp_path / "3.jpg").unlink()
    (tmp_path / "3.jpg").symlink_to(tmp_path / "3.jpg")
    assert labels_of(read_table(table)) == [{"cat"}, {"dog"}]


def test_urls_are_matched_by_their_last_part(tmp_path: Path) -> None:
    urls = "https://example.org/65/a/1.jpg?size=large https://example.org/70/b/2.jpg"
    records = read(tmp_path, urls, "downloads/1.jpg downloads/2.jpg")
    assert records.paths == (tmp_path / "downloads/1.jpg", tmp_path / "downloads/2.jpg")


def test_path_column_is_found_by_content_if_the_labels_are_set_by_an_option(tmp_path: Path) -> None:
    table = write_table(tmp_path, "Bild,Befund\n1,cat\n2,dog\n")
    assert labels_of(read_table(table, ReadOptions(labels_column="Befund"))) == [{"cat"}, {"dog"}]


def test_error_without_a_path_column_shows_a_row(tmp_path: Path) -> None:
    refused(write_table(tmp_path, "name,labels\nx7,cat\nx8,dog\n"), "none of the columns", "row 2: 'x7', 'cat'")


def test_same_names_in_many_folders_are_told_apart(tmp_path: Path) -> None:
    folders = [f"Site/P{patient}/study{study}" for patient in (1, 2, 11) for study in (1, 2)]
    texts = [folder.lower() for folder in folders] + ["p3/study1", "1/study1", "study9"]
    rows = "".join(f"{text}/view.jpg,c{row}\n" for row, text in enumerate(texts))
    table = write_table(tmp_path, f"file,tags\n{rows}", images=" ".join(f"{folder}/view.jpg" for folder in folders))
    records = read_table(table, missing="keep")
    found = [str(path.parent.relative_to(tmp_path)) for path in records.paths]
    assert found == [*folders, *texts[len(folders) :]]
    assert [path.exists() for path in records.paths] == [True] * 6 + [False] * 3
