"""The first command on data sets in their published form; the expected labels come from the public documentation."""

import csv
import re
import shlex
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jaxtyping import Bool
from numpy import ndarray

from helpers import published, published_medical
from helpers.commands import main
from helpers.published import Labels, Release
from probmcl.data import Records
from probmcl.errors import Question, Reading
from probmcl.readers import ReadOptions, read

WRITERS: dict[str, Callable[[Path], Release]] = {
    "planet": published.write_planet,
    "imet": published.write_imet,
    "plant_pathology_2020": published.write_plant_pathology_2020,
    "plant_pathology_2021": published.write_plant_pathology_2021,
    "nih_chest_xray14": published_medical.write_nih_chest_xray14,
    "movie_posters": published.write_movie_posters,
    "rfmid": published_medical.write_rfmid,
    "chexpert": published_medical.write_chexpert,
    "open_images": published.write_open_images,
    "open_images_v4": partial(published.write_open_images, version=4),
}
ASKS = ["chexpert", "open_images", "open_images_v4"]
CLEAR = [name for name in WRITERS if name not in ASKS]
SHORT = shlex.split(
    "--encoder test_resnet --weights none --image-size 32 --method bce --epochs 1 --device cpu --workers 0 --no-report"
)


def some_by_default(names: list[str], *default: str) -> pytest.MarkDecorator:
    """Parametrize a test that trains by data set; all but a few sets are exhaustive."""
    cases = [pytest.param(name, marks=() if name in default else pytest.mark.exhaustive) for name in names]
    return pytest.mark.parametrize("name", cases)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Release]:
    return cache(lambda name: WRITERS[name](tmp_path_factory.mktemp(name)))


def relative(release: Release, path: Path | str) -> str:
    """Return an image path relative to the data set; commands run in the folder that contains it."""
    return (release.folder.parent / path).resolve().relative_to(release.folder.resolve()).as_posix()


def present(release: Release, records: Records) -> Labels:
    return label_sets(release, records, records.labels > 0)


def unknown(release: Release, records: Records) -> Labels:
    return label_sets(release, records, ~records.known)


def label_sets(release: Release, records: Records, marked: Bool[ndarray, "N C"]) -> Labels:
    """Return the marked labels of each image as the tables spell them, even if they were read as names of the ids."""
    labels = np.array(class_ids(release, records))
    return {relative(release, path): set(labels[row].tolist()) for path, row in zip(records.paths, marked, strict=True)}


def class_ids(release: Release, records: Records) -> list[str]:
    ids = {name: label for label, name in release.names.items()}
    return [ids.get(name, name) for name in records.label_space.names]


def splits(release: Release, records: Records) -> dict[str, str]:
    return dict(zip([relative(release, path) for path in records.paths], records.split, strict=True))


@pytest.mark.parametrize("name", CLEAR)
def test_labels_are_read_without_options(written: Callable[[str], Release], name: str) -> None:
    release = written(name)
    records = read(release.folder, seed=None)
    assert present(release, records) == release.labels
    assert records.known.all()
    classes = set(class_ids(release, records))
    assert classes == set().union(*release.labels.values()) or classes == set(release.names)


@pytest.mark.parametrize("name", [name for name in CLEAR if name != "nih_chest_xray14"])
def test_splits_are_those_of_the_release(written: Callable[[str], Release], name: str) -> None:
    release = written(name)
    assert splits(release, read(release.folder, seed=None)) == (release.split or dict.fromkeys(release.labels, "train"))


def test_the_absence_of_findings_is_not_a_class_and_patients_are_groups(written: Callable[[str], Release]) -> None:
    release = written("nih_chest_xray14")
    records = read(release.folder, seed=None)
    assert set(records.label_space.names) == set(published_medical.NIH_FINDINGS)
    assert records.group is not None
    assert [int(group) for group in records.group] == [int(path.name[:8]) for path in records.paths]


def test_the_test_images_of_nih_are_those_in_its_test_list(written: Callable[[str], Release]) -> None:
    release = written("nih_chest_xray14")
    assert splits(release, read(release.folder, seed=None)) == release.split


@pytest.mark.slow
@some_by_default(CLEAR, "planet")
def test_the_first_command_trains_and_scores_only_labeled_images(
    written: Callable[[str], Release], name: str, tmp_path: Path
) -> None:
    release = written(name)
    answer = main("train", release.folder.name, *SHORT, "--out", tmp_path / "run", cwd=release.folder.parent)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    with (tmp_path / "run" / "split.csv").open() as file:
        used = {relative(release, row["path"]) for row in csv.DictReader(file)}
    assert used == set(release.labels)
    scored = np.load(tmp_path / "run" / "predictions" / "test.npz")["paths"].tolist()
    assert scored
    assert {relative(release, path) for path in scored} <= set(release.labels)
    if release.predict is not None:
        run = re.escape(str(tmp_path / "run"))
        assert re.search(rf"predict {run} .*\b{release.predict}\b", answer.stdout), answer.stdout


@pytest.mark.parametrize("name", ASKS)
def test_every_answer_to_the_question_is_enough_to_read_the_labels(
    written: Callable[[str], Release], name: str
) -> None:
    release = written(name)
    with pytest.raises(Question) as raised:
        read(release.folder)
    readings = raised.value.readings
    assert len(readings) >= 2
    assert all(len(reading.rows) == 2 for reading in readings)
    results = [read(release.folder, options=read_options(reading), seed=None) for reading in readings]
    assert all(present(release, records).keys() == release.labels.keys() for records in results)
    first, *others = [(present(release, records), unknown(release, records)) for records in results]
    assert first not in others


def read_options(reading: Reading) -> ReadOptions:
    """Return the options that choose a reading; in the library, some options are tuples."""
    tuples = {name for name, value in vars(ReadOptions()).items() if value == ()}
    options: dict[str, Any] = {name: (text,) if name in tuples else text for name, text in reading.options.items()}
    return ReadOptions(**options)


@pytest.mark.parametrize("blank", ["negative", "unknown"])
@pytest.mark.parametrize("name", ASKS)
def test_labels_are_read_with_an_answer(written: Callable[[str], Release], name: str, blank: str) -> None:
    release = written(name)
    records = read(release.folder, options=ReadOptions(blank=(blank,)), seed=None)
    assert present(release, records) == release.labels
    expected = {path: set(release.uncertain.get(path, ())) for path in release.labels}
    if blank == "unknown":
        expected = {path: labels | release.blank[path] for path, labels in expected.items()}
    assert unknown(release, records) == expected
    assert splits(release, records) == release.split


@pytest.mark.parametrize("name", ASKS)
def test_the_first_command_asks_and_prints_commands(written: Callable[[str], Release], name: str) -> None:
    release = written(name)
    commands = printed_commands(release)
    assert len(set(commands)) == len(commands) >= 2
    assert {release.folder.parent / shlex.split(command)[2] for command in commands} == {release.folder}


@pytest.mark.slow
@some_by_default(ASKS, "chexpert")
def test_a_printed_command_trains(written: Callable[[str], Release], name: str, tmp_path: Path) -> None:
    release = written(name)
    for number, command in enumerate(printed_commands(release)):
        words = shlex.split(command)[1:]
        answer = main(*words, *SHORT, "--out", tmp_path / f"{number}", cwd=release.folder.parent)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        with (tmp_path / f"{number}" / "split.csv").open() as file:
            assert {relative(release, row["path"]) for row in csv.DictReader(file)} == set(release.labels)


def printed_commands(release: Release) -> list[str]:
    """Run the command that a new user types, which has to fail, and return the commands that it prints."""
    answer = main("train", release.folder.name, cwd=release.folder.parent)
    assert answer.returncode == 1, answer.stdout
    lines = [line.strip() for line in answer.stderr.splitlines() if line.startswith(" ")]
    commands = [line for line in lines if line.startswith("probmcl train ")]
    assert commands, answer.stderr
    return commands
