import sys
from collections.abc import Sequence
from importlib import import_module
from inspect import signature
from pathlib import Path
from string import ascii_lowercase
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from probmcl.data import Records, describe
from probmcl.data.records import Split
from probmcl.demo.digits import write_digits
from probmcl.errors import DataError, OptionError
from probmcl.readers import read
from probmcl.readers.options import ReadOptions
from probmcl.readers.read import FORMATS, VARIANTS

SHARED = Path(__file__).parents[3] / "shared" / "data"


def some_records(split: Sequence[Split] = ("train", "train", "val", "test")) -> Records:
    labels = np.array([[1, 1, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]], dtype=np.float32)
    known = np.ones((4, 3), dtype=bool)
    known[1, 2] = known[2, 0] = known[3, 1] = False
    repeats = (len(split) // 4, 1)
    paths = list(map(Path, ascii_lowercase[: len(split)]))
    return Records.from_labels(["cat", "dog", "bird"], paths, split, np.tile(labels, repeats), np.tile(known, repeats))


class Fake(ModuleType):
    """A format that is recognized by a marker file."""

    def __init__(self, name: str, split: Sequence[Split]) -> None:
        super().__init__(f"fake_{name}")
        setattr(self, f"read_{name}", lambda folder, missing: some_records(split))
        self.mark = f"{name}.mark"

    def recognizes(self, folder: Path) -> bool:
        return (folder / self.mark).exists()


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    complete: Sequence[Split] = ("train", "train", "val", "test")
    for name, split in (("coco", complete), ("voc", ("train",) * 20)):
        monkeypatch.setitem(sys.modules, f"fake_{name}", Fake(name, split))
    formats = {"table": "probmcl.readers.table.table", "coco": "fake_coco", "voc": "fake_voc"}
    formats["folders"] = "probmcl.readers.folders"
    monkeypatch.setattr(sys.modules["probmcl.readers.read"], "FORMATS", formats)


def a_table(folder: Path, name: str = "labels.csv", rows: int = 20) -> Path:
    for i in range(rows):
        (folder / f"{i}.jpg").touch()
    lines = [f"{i}.jpg,{'cat' if i % 2 else 'dog'},{i // 4}" for i in range(rows)]
    (folder / name).write_text("\n".join(["filename,labels,area", *lines]))
    return folder / name


def test_table_is_read_by_file_and_by_folder(tmp_path: Path, fakes: None) -> None:
    table = a_table(tmp_path)
    by_file, by_folder = read(table), read(str(tmp_path))
    assert by_file.paths == by_folder.paths
    assert by_file.split == by_folder.split
    assert [by_file.split.count(split) for split in ("train", "val", "test")] == [10, 5, 5]


def test_seed_and_group_affect_the_split(tmp_path: Path, fakes: None) -> None:
    table = a_table(tmp_path)
    assert read(table, seed=1).split != read(table, seed=2).split
    grouped = read(table, options=ReadOptions(group="area"))
    assert all(len(set(grouped.split[start : start + 4])) == 1 for start in range(0, 20, 4))


def test_recognized_format_is_read_and_split(tmp_path: Path, fakes: None) -> None:
    (tmp_path / "coco.mark").touch()
    assert read(tmp_path).split == ("train", "train", "val", "test")
    (tmp_path / "coco.mark").rename(tmp_path / "voc.mark")
    assert set(read(tmp_path).split) == {"train", "val", "test"}


def test_two_matching_formats_need_the_option(tmp_path: Path, fakes: None) -> None:
    (tmp_path / "coco.mark").touch()
    a_table(tmp_path)
    with pytest.raises(DataError, match='`format="table"` or `format="coco"`'):
        read(tmp_path)
    assert len(read(tmp_path, options=ReadOptions(format="coco"))) == 4
    assert len(read(tmp_path, options=ReadOptions(format="table"))) == 20


def test_unrecognized_folder_is_refused(tmp_path: Path, fakes: None) -> None:
    with pytest.raises(DataError, match=r"expected a table .*MS-COCO.* VOC .* ADP"):
        read(tmp_path)
    with pytest.raises(DataError, match="has no table"):
        read(tmp_path, options=ReadOptions(format="table"))


def test_unknown_format_is_refused_with_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"""`format="tabel"` is not a format; did you mean 'table'\?"""):
        read(tmp_path, options=ReadOptions(format="tabel"))


def test_missing_and_unsuitable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere\.csv does not exist"):
        read(tmp_path / "nowhere.csv")
    (tmp_path / "notes.doc").touch()
    with pytest.raises(DataError, match=r"notes\.doc: .*\.csv or \.tsv"):
        read(tmp_path / "notes.doc")
    with pytest.raises(OptionError, match='`format="voc"` needs a folder'):
        read(tmp_path / "notes.doc", options=ReadOptions(format="voc"))
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"notes\.txt: no rows"):
        read(tmp_path / "notes.txt")


def test_two_tables_are_refused(tmp_path: Path, fakes: None) -> None:
    a_table(tmp_path, "a.csv")
    a_table(tmp_path, "b.csv")
    with pytest.raises(DataError, match=r"2 tables.*a\.csv, .*b\.csv"):
        read(tmp_path)
    (tmp_path / "b.csv").write_text("metric,value\nloss,1\n")
    assert len(read(tmp_path)) == 20


def test_path_column_with_another_name_is_found_by_its_files(tmp_path: Path, fakes: None) -> None:
    table = a_table(tmp_path)
    table.write_text(table.read_text().replace("filename", "photo"))
    assert len(read(tmp_path)) == 20
    for image in tmp_path.glob("*.jpg"):
        image.unlink()
    with pytest.raises(DataError, match="path_column"):
        read(tmp_path)


def test_options_for_tables_are_refused_by_other_formats(tmp_path: Path, fakes: None) -> None:
    (tmp_path / "coco.mark").touch()
    with pytest.raises(OptionError, match=r"read as coco.*`images`, `split_column`"):
        read(tmp_path, options=ReadOptions(split_column="split"), images=tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {"format": "tabel"},
        {"format": "voc"},
        {"path_column": "photo"},
        {"group": "patient"},
        {"split_column": "labels", "group": "labels"},
        {"ignore": ("patient",)},
        {"blank": ("absent",)},
        {"blank": ("negative", "unknown")},
        {"blank": ("bird=unknown",)},
        {"minus_one": ("soft:2",)},
        {"minus_one": ("bird=unknown",)},
        {"none_label": "bird"},
        {"hierarchy": Path("nowhere.csv")},
    ],
    ids=str,
)
def test_invalid_options_raise_option_errors(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        read(a_table(tmp_path), options=ReadOptions(**options))


@pytest.mark.parametrize("argument", [{"keep": ["patient"]}, {"images": "nowhere"}], ids=str)
def test_invalid_arguments_raise_option_errors(tmp_path: Path, argument: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        read(a_table(tmp_path), **argument)


def test_invalid_data_do_not_raise_option_errors(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    (tmp_path / "7.jpg").unlink()
    with pytest.raises(DataError) as caught:
        read(table, options=ReadOptions(group="area"))
    assert not isinstance(caught.value, OptionError)


def test_options_are_checked_before_files(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match='`blank="absent"`'):
        read(tmp_path, options=ReadOptions(format="table", blank=("absent",)))


def test_column_options_are_passed_to_the_table_reader(tmp_path: Path, fakes: None) -> None:
    (tmp_path / "photos").mkdir()
    rows = ["a,b,c,d", "1.jpg,cat,test,x", "2.jpg,dog,val,x", "3.jpg,dog,train,y"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    for i in (1, 2, 3):
        (tmp_path / "photos" / f"{i}.jpg").touch()
    records = read(
        tmp_path,
        options=ReadOptions(path_column="a", labels_column="b", split_column="c", group="d"),
        images=tmp_path / "photos",
    )
    assert records.paths[0] == tmp_path / "photos" / "1.jpg"
    assert records.label_space.names == ("cat", "dog")
    assert records.split == ("test", "val", "train")
    assert records.group == ("x", "x", "y")


def test_other_options_are_passed_to_the_table_reader(tmp_path: Path) -> None:
    rows = ["a,b,c,d,e", "1,up,2,x,", "1,down,2,x,", "2,flat,1,y,k"]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    (tmp_path / "parents.csv").write_text("child,parent\nup,down\n")
    for i in (1, 2):
        (tmp_path / f"{i}.jpg").touch()
    records = read(
        tmp_path / "t.csv",
        options=ReadOptions(
            path_column="a",
            labels_column="b",
            weight_column="c",
            rows="labels",
            blank=("unknown",),
            minus_one=("down=soft:0.5",),
            none_label="flat",
            ignore=("d",),
            hierarchy=tmp_path / "parents.csv",
        ),
        keep=["e"],
        seed=None,
    )
    assert records.label_space.names == ("down", "up")
    assert records.states.dense().tolist() == [[1, 1], [0, 0]]
    assert records.weight is not None
    assert records.weight.tolist() == [2.0, 1.0]
    assert records.states.chance[0] == 0.5
    assert records.columns == {"e": ("", "k")}
    assert records.label_space.hierarchy == {"up": "down"}
    assert "ignored" not in str(records.origin)


def test_description_counts_uncertain_labels(tmp_path: Path) -> None:
    for i in (1, 2):
        (tmp_path / f"{i}.jpg").touch()
    (tmp_path / "t.csv").write_text("file,cat,dog,patient,weight\n1.jpg,-1,0,a,0.5\n2.jpg,1,-1,a,2\n")
    assert "\nlabels: 2 uncertain; 1 group; weights from 0.5 to 2\n" in describe(read(tmp_path, seed=None))
    options = ReadOptions(minus_one=("positive", "dog=soft:0.5"))
    text = describe(read(tmp_path, options=options, seed=None))
    assert "\nlabels: 1 uncertain; 1 group; weights from 0.5 to 2\n" in text


def test_digit_scenes_round_trip(tmp_path: Path) -> None:
    written = write_digits(tmp_path, train=12, val=3, test=3)
    records = read(tmp_path)
    assert records.paths == written.paths
    assert records.split == written.split
    assert np.array_equal(records.labels, written.labels)
    assert records.label_space.names == written.label_space.names


def test_description_has_all_counts() -> None:
    assert describe(some_records()) == (
        "4 images: train 2 · val 1 · test 1; 3 classes, 1.0 labels per image, 25.0 % unknown\n"
        "labels: 3 unknown\n"
        "images without labels: 1; classes without training positives: 1 of 3 (bird)"
    )


def test_description_starts_with_the_file_and_columns(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    *origin, images, groups, others = describe(read(table, options=ReadOptions(group="area"), seed=3)).splitlines()
    assert origin == [
        f"{table}: path column 'filename'",
        "  labels: column 'labels', names, one per cell, 2 labels",
        "  group column 'area'",
        "  val and test taken from train with seed 3",
    ]
    assert (images[:9], groups, others[:6]) == ("20 images", "5 groups", "images")


def test_description_has_the_splits_taken_from_train(tmp_path: Path) -> None:
    table = a_table(tmp_path, rows=24)
    text = table.read_text().replace("area", "split").replace(",0", ",test")
    for area in range(1, 6):
        text = text.replace(f",{area}", ",train")
    table.write_text(text)
    assert str(read(table).origin).endswith("\n  split column 'split'\n  val taken from train with seed 0")
    assert str(read(table, seed=None).origin).endswith("\n  split column 'split'")


def test_without_a_seed_the_splits_are_those_of_the_data(tmp_path: Path, fakes: None) -> None:
    assert set(read(a_table(tmp_path), seed=None).split) == {"train"}
    rows = [f"{i}.jpg,cat,{split}" for i, split in enumerate(("test", "val", "test"))]
    (tmp_path / "labels.csv").write_text("\n".join(["filename,labels,split", *rows]))
    assert read(tmp_path, seed=None).split == ("test", "val", "test")
    (tmp_path / "labels.csv").rename(tmp_path / "voc.mark")
    assert read(tmp_path, seed=None).split == ("train",) * 20


def test_missing_files_are_kept_on_request(tmp_path: Path) -> None:
    table = a_table(tmp_path)
    (tmp_path / "7.jpg").unlink()
    with pytest.raises(DataError, match=r"row 9: '7\.jpg' does not exist"):
        read(table)
    records = read(table, missing="keep")
    assert len(records) == 20
    assert records.where(7) == f"{table}, row 9: {tmp_path / '7.jpg'}"


def test_description_if_every_class_has_positives() -> None:
    assert describe(some_records(("train",) * 4)).endswith("classes without training positives: none")


def test_modules_have_the_names_of_formats() -> None:
    assert all(
        module.startswith("probmcl.readers.") and module.endswith(f".{name}") for name, module in FORMATS.items()
    )


@pytest.mark.parametrize("name", [*FORMATS, *VARIANTS])
def test_format_modules_have_the_required_functions(name: str) -> None:
    format_name, arguments = VARIANTS.get(name, (name, {}))
    format_module = import_module(FORMATS[format_name])
    assert not format_module.recognizes(Path("nowhere"))
    assert {"missing", *arguments} <= signature(getattr(format_module, f"read_{format_name}")).parameters.keys()


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("coco", "14,000 images: train 9,000 · val 1,000 · test 4,000; 80 classes, 2.9 labels per image"),
        ("voc", "6,703 images: train 1,690 · val 1,676 · test 3,337; 20 classes, 1.4 labels per image, 0.6 %"),
    ],
)
def test_real_folders_are_recognized_as_tables(name: str, start: str) -> None:
    if not (SHARED / name).is_dir():
        pytest.skip("needs the real images of ../shared/data")
    records = read(SHARED / name)
    text = describe(records)
    assert "path column 'filename'\n  labels: column 'labels', indices into classes.txt separated by spaces, " in text
    assert f"\n{start}" in text
    assert records.label_space.counts.all()


def test_few_images_are_read_without_splitting_them(tmp_path: Path) -> None:
    records = read(a_table(tmp_path, rows=19))
    assert records.split == ("train",) * 19
    assert str(records.origin).endswith("\n  not split: too few images")
    assert set(read(a_table(tmp_path, rows=20)).split) == {"train", "val", "test"}
