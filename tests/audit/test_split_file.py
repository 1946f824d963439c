from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probmcl.audit.split_file import read_folds, read_splits
from probmcl.data.records import SPLITS, Records
from probmcl.data.splitting import folds, make_splits
from probmcl.errors import DataError
from probmcl.run.run_files import write_split
from probmcl.store.files import FOLDS
from probmcl.store.run_folder import RunFolder
from probmcl.store.run_metadata import FoldRow


def test_read_splits_restores_the_splits_of_a_run(tmp_path: Path) -> None:
    paths = [Path(f"{number}.jpg") for number in range(20)]
    train, test = (Records.from_labels(["cat"], paths, [split] * 20, np.ones((20, 1))) for split in ("train", "test"))
    result = make_splits(train, seed=5, val=0.1, test=0.2)
    write_split(RunFolder(tmp_path / "run"), result)
    again = read_splits(test, tmp_path / "run" / "split.csv")
    assert again.split == result.split
    assert again.label_space.counts.tolist() == [14]


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(st.text("ab ,\"'äé;", min_size=1), min_size=2, max_size=8, unique_by=str.strip), st.integers(0, 9))
def test_folds_can_be_written_and_read(tmp_path: Path, names: list[str], seed: int) -> None:
    paths = [Path(f"photos/{name}.jpg") for name in names]
    records = Records.from_labels(["cat"], paths, ["train"] * len(paths), np.ones((len(paths), 1), dtype=np.float32))
    fold_of = folds(records, 2, seed=seed)
    RunFolder(tmp_path).write_rows(FOLDS, map(FoldRow, records.paths.texts, fold_of.tolist()))
    assert read_folds(records, tmp_path / "folds.csv").tolist() == fold_of.tolist()


def photographs(folder: Path) -> Records:
    for name in "abc":
        (folder / f"{name}.jpg").touch()
    paths = [folder / f"{name}.jpg" for name in "abc"]
    return Records.from_labels(["cat"], paths, ["train"] * 3, np.ones((3, 1), dtype=np.float32))


def written(path: Path, *rows: str) -> Path:
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def test_paths_are_relative_to_the_file_or_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = photographs(tmp_path)
    next_to_images = written(tmp_path / "s.csv", "path,split", "a.jpg,test", "b.jpg,val", "./c.jpg,train")
    assert read_splits(records, next_to_images).split == ("test", "val", "train")
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    elsewhere = written(tmp_path / "runs" / "s.csv", "split,path", "val,c.jpg", "test,../b.jpg", "train,a.jpg")
    assert read_splits(records, elsewhere).split == ("train", "test", "val")


def test_symlinks_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    records = photographs(tmp_path / "real")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    rows = [f"{tmp_path}/link/{name}.jpg,{split}" for name, split in zip("abc", SPLITS, strict=True)]
    assert read_splits(records, written(tmp_path / "s.csv", "path,split", *rows)).split == SPLITS


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["a.jpg,test", "b.jpg,train", "c.jpg,dev"], r"s.csv, row 4: split 'dev'"),
        (["a.jpg,test", "d.jpg,train"], r"s.csv, row 3: 'd.jpg' is not in the data \(3 images\);"),
        (["b.jpg,test"], r"s.csv: 2 of 3 images are missing: .*a.jpg, .*c.jpg;"),
        (["a.jpg,test", "b.jpg,test"], r"s.csv: 1 of 3 images is missing: .*c.jpg;"),
        (["a.jpg,test", "./a.jpg,val"], r"'./a.jpg' is 'test' in row 2, but 'val' in row 3"),
    ],
)
def test_read_splits_rejects_inconsistent_files(tmp_path: Path, rows: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_splits(photographs(tmp_path), written(tmp_path / "s.csv", "path,split", *rows))


def test_read_splits_rejects_a_missing_column_or_file(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: .*'split', only 'path' and 'part'"):
        read_splits(photographs(tmp_path), written(tmp_path / "s.csv", "path,part", "a.jpg,test"))
    with pytest.raises(DataError, match=r"none.csv"):
        read_splits(photographs(tmp_path), tmp_path / "none.csv")


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        (("1", "2", "0"), r"row 4: fold '0'"),
        (("1", "2.0", "1"), r"row 3: fold '2.0'"),
        (("1", "3", "1"), r"fold 2"),
        (("1", "1", "1"), r"fold 2"),
    ],
)
def test_read_folds_rejects_invalid_numbers(tmp_path: Path, numbers: Sequence[str], message: str) -> None:
    rows = [f"{name}.jpg,{number}" for name, number in zip("abc", numbers, strict=True)]
    with pytest.raises(DataError, match=message):
        read_folds(photographs(tmp_path), written(tmp_path / "f.csv", "path,fold", *rows))
