import os
from pathlib import Path

import pytest

from probmcl.data.image_files import IMAGE_SUFFIXES, equal_files, expand, is_image, walk
from probmcl.data.intensity import NEVER_DEEP
from probmcl.errors import DataError


@pytest.mark.parametrize("suffix", IMAGE_SUFFIXES)
def test_every_suffix_is_found_in_a_folder_in_upper_and_lower_case(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"a{suffix}").touch()
    (tmp_path / f"b{suffix.upper()}").touch()
    (tmp_path / f"c{suffix}x").touch()
    assert [path.name for path in expand(tmp_path)] == [f"a{suffix}", f"b{suffix.upper()}"]


def test_formats_of_8_bits_are_images() -> None:
    assert all(is_image(f"a{suffix}") for suffix in NEVER_DEEP)


def test_a_folder_that_two_links_lead_to_is_visited_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").touch()
    (tmp_path / "b").symlink_to(tmp_path / "a")
    assert [entry.path for entry in walk(tmp_path)] == [str(tmp_path / "a" / "1.jpg")]


def test_a_tree_with_a_circle_ends_and_a_folder_without_rights_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "round").symlink_to(tmp_path)
    (tmp_path / "a" / "1.jpg").touch()
    (tmp_path / ".hidden.jpg").touch()
    assert [entry.name for entry in walk(tmp_path)] == ["1.jpg"]

    def refuse(folder: str) -> None:
        raise PermissionError(13, "Permission denied", folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"cannot be listed \(Permission denied\)"):
        list(walk(tmp_path))


def test_equal_files_are_found_within_one_group_or_between_two(tmp_path: Path) -> None:
    contents = {"a": "same", "b": "same", "c": "else", "d": "", "e": ""}
    for name, content in contents.items():
        (tmp_path / name).write_text(content)
    a, b, c, d, e = (str(tmp_path / name) for name in contents)
    assert [*equal_files([a, b, c, d, e])[0]] == [a, b]
    assert [[*group] for group in equal_files([a, b], [c])] == [[], []]
    ours, theirs = equal_files([c, a], [b, str(tmp_path / "nowhere")])
    assert ([*ours], [*theirs]) == ([a], [b])
    assert ours[a] == theirs[b]
