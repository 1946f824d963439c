import math
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from helpers.images import colored_records
from probmcl.audit.duplicates.hashing import SearchSettings, fingerprints
from probmcl.audit.findings import BadImage, Finding, bad_images, findings, unusable, without_bad
from probmcl.audit.statistics import AuditStatistics, Imbalance, LabelCounts, SplitCounts
from probmcl.data.images import read_image
from probmcl.data.records import Origin, Records, Split
from probmcl.errors import DataError, ImageError, OptionError
from probmcl.readers import read
from probmcl.readers.options import refuse_share


@pytest.fixture(params=["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def start_method(request: pytest.FixtureRequest) -> Iterator[str]:
    before = multiprocessing.get_start_method()
    multiprocessing.set_start_method(request.param, force=True)
    yield request.param
    multiprocessing.set_start_method(before, force=True)


def corrupt_three(records: Records) -> list[int]:
    """Truncate a train image, empty a val image and delete a test image; return their rows."""
    train, val, test = (int(records.rows(split)[1]) for split in ("train", "val", "test"))
    records.paths[train].write_bytes(records.paths[train].read_bytes()[:-40])
    records.paths[val].write_bytes(b"")
    records.paths[test].unlink()
    return [train, val, test]


def decoded(records: Records) -> list[BadImage]:
    """Decode all images and return the bad ones."""
    return bad_images(records, fingerprints(records.paths))


def sixty_seven_images(tmp_path: Path) -> Records:
    return colored_records(tmp_path, train=57, val=5, test=5)


def test_bad_images_of_every_split_are_found(tmp_path: Path) -> None:
    records = sixty_seven_images(tmp_path)
    assert decoded(records) == []
    rows = corrupt_three(records)
    bad = decoded(records)
    assert [image.row for image in bad] == rows
    assert [image.path for image in bad] == [records.paths[row] for row in rows]
    assert "truncated" in bad[0].reason
    assert [image.reason for image in bad[1:]] == ["the file is empty", "does not exist"]


def test_workers_find_the_same_bad_images(tmp_path: Path, start_method: str) -> None:
    records = sixty_seven_images(tmp_path)
    corrupt_three(records)
    assert bad_images(records, fingerprints(records.paths, SearchSettings(workers=2))) == decoded(records)


@pytest.mark.parametrize("progressive", [False, True])
def test_truncated_jpegs_are_found_at_every_length(tmp_path: Path, progressive: bool) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).resize((600, 400)).save(tmp_path / "whole.jpg", progressive=progressive)
    data = (tmp_path / "whole.jpg").read_bytes()
    paths = [tmp_path / f"{number}.jpg" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_bytes(data[: len(data) * (number + 1) // 40])
    labels = np.ones((40, 1))
    bad = decoded(Records.from_labels(["noise"], paths, ["train"] * 40, labels))
    assert [image.row for image in bad] == [number for number, path in enumerate(paths) if not decodes(path)]
    assert len(bad) == 39


def decodes(path: Path) -> bool:
    try:
        read_image(path)
    except ImageError:
        return False
    return True


@pytest.mark.slow
def test_interrupt_stops_the_workers_without_extra_tracebacks(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import time\n"
        "from pathlib import Path\n"
        "from probmcl.audit.duplicates import hashing\n"
        "def slow(path, size, intensity): time.sleep(0.05); raise hashing.ImageError(path, 'slow')\n"
        "hashing.read_image = slow\n"
        "settings = hashing.SearchSettings(workers=2)\n"
        "hashing.fingerprints([Path('a')] * 20_000, settings, advance=lambda n: print(n, flush=True))\n"
    )
    script = [sys.executable, str(tmp_path / "script.py")]
    with subprocess.Popen(
        script, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        first = int(run.stdout.readline())
        os.killpg(run.pid, signal.SIGINT)  # like Ctrl-C in a terminal, which signals the process and its workers
        rest, errors = run.communicate()
    assert first + sum(map(int, rest.split())) < 20_000
    assert run.returncode == -signal.SIGINT
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert errors.count("Traceback") == 1, errors


@pytest.mark.parametrize(
    ("bad", "images", "share"), [(1, 2, "0.5"), (123, 10_000, "0.02"), (1, 8000, "0.0002"), (95, 100, "0.99")]
)
def test_suggested_share_is_rounded_up(bad: int, images: int, share: str) -> None:
    records = Records.from_labels(["a"], [Path("a")] * images, ["train"] * images, np.ones((images, 1)))
    with pytest.raises(DataError, match=f"`skip_bad={share}`"):
        without_bad(records, [BadImage(row, Path("a"), "empty") for row in range(bad)])


def test_error_lists_the_rows_of_bad_images(tmp_path: Path) -> None:
    records = sixty_seven_images(tmp_path / "photos")
    rows = "".join(f"{path.name},red\n" for path in records.paths)
    (tmp_path / "labels.csv").write_text(f"filename,labels\n{rows}")
    corrupt_three(records)
    table = read(tmp_path / "labels.csv", images=tmp_path / "photos", seed=None, missing="keep")
    with pytest.raises(DataError) as caught:
        without_bad(table, decoded(table))
    lines = str(caught.value).splitlines()
    assert "3 of 67 images" in lines[0]
    assert lines[1].startswith(f"  {tmp_path}/labels.csv")
    assert f"row 3: {tmp_path}/photos/1.png: " in lines[1]
    assert "truncated" in lines[1]
    assert lines[3].endswith(f"row 65: {tmp_path}/photos/63.png: does not exist")
    assert "`skip_bad=0.05`" in lines[4]


def labeled(count: int = 40) -> Records:
    rng = np.random.default_rng(0)
    labels = (rng.random((count, 3)) < 0.5).astype(np.float32)
    known = rng.random((count, 3)) < 0.8
    counts: dict[Split, int] = {"train": count - 8, "val": 4, "test": 4}
    origin = Origin(Path("labels.csv"), "path column 'file'", tuple(range(2, count + 2)))
    records = Records.from_labels(
        ["a", "b", "c"],
        [Path(f"{row}.jpg") for row in range(count)],
        [split for split, number in counts.items() for _ in range(number)],
        labels,
        known,
        group=tuple(str(row // 2) for row in range(count)),
        hierarchy={"b": "a"},
        origin=origin,
    )
    assert records.label_space.counts.all()
    return records


def bad_rows(*rows: int) -> list[BadImage]:
    return [BadImage(row, Path(f"{row}.jpg"), "does not exist") for row in rows]


def test_long_list_of_bad_images_is_truncated() -> None:
    with pytest.raises(DataError) as caught:
        without_bad(labeled(), bad_rows(*range(13)), share=0.3)
    lines = str(caught.value).splitlines()
    assert "13 of 40 images" in lines[0]
    assert "`skip_bad=0.3`" in lines[0]
    assert all(lines[row + 1].endswith(f"row {row + 2}: {row}.jpg: does not exist") for row in range(5))
    assert lines[6] == "  and 8 more"
    assert "`skip_bad=0.4`" in lines[7]


def test_counts_of_one() -> None:
    records, reason = labeled(), "the file is empty"
    missing, unreadable = unusable(records, [*bad_rows(0), BadImage(1, Path("1.jpg"), reason)], None)
    assert missing.text.startswith("39 of 40 images found, 1 missing:")
    assert missing.text.splitlines()[-1].startswith("add the file, or skip the 1 missing and 1 unreadable images with")
    assert unreadable.text.startswith("1 of 40 images cannot be read:")
    assert unreadable.text.splitlines()[-1].startswith("repair or remove it, or skip")
    with pytest.raises(DataError, match=r"(?s)^1 of 1 image cannot be used:.*repair or remove it$"):
        without_bad(records.take(np.array([0])), bad_rows(0))


def test_missing_and_unreadable_images_are_separate_findings() -> None:
    bad = [*bad_rows(*range(12)), BadImage(12, Path("12.jpg"), "the file is empty")]
    missing, unreadable = unusable(labeled(), bad, None)
    assert (missing.kind, missing.level, unreadable.kind, unreadable.level) == (
        ("missing", "blocked", "unreadable", "blocked")
    )
    assert missing.text.startswith("28 of 40 images found")
    assert unreadable.text.startswith("1 of 40 images")
    assert "and 7 more" in missing.text
    assert [len(finding.items) for finding in (missing, unreadable)] == [12, 1]
    assert missing.readings == unreadable.readings
    assert missing.readings[0].options == {"skip_bad": "0.4"}
    assert missing.readings[0].meaning == "skip the 12 missing and 1 unreadable images"
    assert all("`skip_bad=0.4`" in finding.text for finding in (missing, unreadable))
    assert [finding.level for finding in unusable(labeled(), bad, 0.4)] == ["warning", "warning"]
    assert [finding.kind for finding in unusable(labeled(), bad[:2], 0.4)] == ["missing"]
    assert unusable(labeled(), [], None) == []


@pytest.mark.parametrize(("count", "meaning"), [(1, "skip the missing image"), (2, "skip the 2 missing images")])
def test_number_of_skipped_images_agrees_with_the_noun(count: int, meaning: str) -> None:
    assert unusable(labeled(), bad_rows(*range(count)), None)[0].readings[0].meaning == meaning


@pytest.mark.parametrize("share", [None, 0.5])
def test_option_that_would_empty_a_split_is_not_offered(share: float | None) -> None:
    (finding,) = unusable(labeled(), bad_rows(32, 33, 34, 35), share)
    assert (finding.level, finding.readings) == ("blocked", ())
    assert "the val split" in finding.text
    assert "`skip_bad" not in finding.text


def class_findings(*names: str, train: tuple[int, int], test: tuple[int, int]) -> list[Finding]:
    """Return the findings about classes with these numbers of positives and negatives in train and test."""
    positives, negatives = ((train[k], test[k]) for k in (0, 1))
    present, absent = (SplitCounts(train=in_train, test=in_test) for in_train, in_test in (positives, negatives))
    per_class = dict.fromkeys(names, LabelCounts(present=present, absent=absent))
    found = findings(labeled(), AuditStatistics(per_class=per_class))
    return [finding for finding in found if finding.text.startswith("classes ")]


@pytest.mark.parametrize(
    ("train", "test", "kinds"),
    [
        ((10, 10), (1, 1), []),
        ((9, 10), (1, 1), ["few_train_positives"]),
        ((10, 9), (1, 1), ["few_train_negatives"]),
        ((10, 0), (1, 1), ["no_train_negative"]),
        ((10, 0), (1, 0), ["no_negative"]),
        ((10, 10), (1, 0), ["no_test_negative"]),
        ((10, 10), (0, 1), ["no_test_positive"]),
        ((0, 10), (0, 1), ["no_positive"]),
        ((0, 10), (1, 1), ["no_train_positive"]),
    ],
)
def test_classes_with_few_positives_or_negatives_are_found(
    train: tuple[int, int], test: tuple[int, int], kinds: list[str]
) -> None:
    assert [finding.kind for finding in class_findings("cat", train=train, test=test)] == kinds


@pytest.mark.parametrize(("most", "expected"), [(300, []), (301, ["imbalance: 301 positives of 'a', 3 of 'b'"])])
def test_an_imbalance_above_100_is_a_finding(most: int, expected: list[str]) -> None:
    found = findings(labeled(), AuditStatistics(imbalance=Imbalance("a", most, "b", 3)))
    assert [finding.text for finding in found if finding.kind == "imbalance"] == expected


def test_finding_about_many_classes_shows_five_and_lists_all() -> None:
    (finding,) = class_findings(*"abcdefg", train=(0, 50), test=(0, 5))
    assert finding.items == tuple("abcdefg")
    assert "7 (a, b, c, d, e, …)" in finding.text


def test_bad_image_without_a_table_is_listed_by_path() -> None:
    with pytest.raises(DataError, match=r"\n  3\.jpg: does not exist\n"):
        without_bad(replace(labeled(), origin=None), bad_rows(3))


def test_remaining_records_keep_their_fields_and_update_the_counts() -> None:
    records = labeled()
    remaining = without_bad(records, bad_rows(0, 5, 33), share=0.1)
    kept = [row for row in range(40) if row not in (0, 5, 33)]
    assert [path.stem for path in remaining.paths] == [str(row) for row in kept]
    assert np.array_equal(remaining.labels, records.labels[kept])
    assert np.array_equal(remaining.known, records.known[kept])
    assert remaining.group == tuple(str(row // 2) for row in kept)
    assert remaining.split == tuple(records.split[row] for row in kept)
    assert remaining.label_space.hierarchy == {"b": "a"}
    assert "row 3: 1.jpg" in remaining.where(0)
    trained = [row for row in kept if row < 32]
    counts = [sum(bool(records.labels[row, k] and records.known[row, k]) for row in trained) for k in range(3)]
    assert remaining.label_space.counts.tolist() == counts
    assert counts != records.label_space.counts.tolist()


def test_share_limit_is_inclusive() -> None:
    assert len(without_bad(labeled(100), bad_rows(*range(29)), share=0.29)) == 71
    with pytest.raises(DataError, match="30 of 100"):
        without_bad(labeled(100), bad_rows(*range(30)), share=0.29)
    records = labeled()
    assert without_bad(records, []) is records


def test_skipping_must_not_empty_a_split() -> None:
    with pytest.raises(DataError, match="the val split"):
        without_bad(labeled(), bad_rows(32, 33, 34, 35), share=0.5)


@given(st.integers(2, 3000).flatmap(lambda n: st.tuples(st.integers(1, n - 1), st.just(n))))
def test_suggested_share_is_sufficient(numbers: tuple[int, int]) -> None:
    bad, count = numbers
    names = [Path(f"{row}.jpg") for row in range(count)]
    records = Records.from_labels(["a"], names, ["train"] * count, np.ones((count, 1)))
    with pytest.raises(DataError) as caught:
        without_bad(records, bad_rows(*range(bad)))
    share = float(str(caught.value).rpartition("`skip_bad=")[2].split("`")[0])
    assert len(without_bad(records, bad_rows(*range(bad)), share=share)) == count - bad


def test_error_suggests_no_share_if_every_image_is_bad() -> None:
    with pytest.raises(DataError, match=r"repair or remove them$"):
        without_bad(labeled(), bad_rows(*range(40)))
    with pytest.raises(DataError, match=r"`skip_bad=0.99`"):
        without_bad(labeled(), bad_rows(*range(40)), share=0.99)


@pytest.mark.parametrize("share", [5.0, 1.0, -0.1, math.nan, math.inf])
def test_invalid_share_is_an_error(share: float) -> None:
    with pytest.raises(OptionError, match=f"`skip_bad={share:g}`"):
        refuse_share(share)
    with pytest.raises(OptionError, match=f"`skip_bad={share:g}`"):
        without_bad(labeled(), [], share=share)


def test_valid_shares_are_accepted() -> None:
    for share in (None, 0.0, 0.999):
        refuse_share(share)
    with pytest.raises(DataError, match=r"1 of 40 images .*`skip_bad=0`"):
        without_bad(labeled(), bad_rows(0), share=0.0)
