from pathlib import Path

from probmcl.store import files
from probmcl.store.files import FILES, File, JsonFile


def test_every_file_has_one_row() -> None:
    names = [row.name for row in FILES]
    assert len(set(names)) == len(names)
    assert {"run.json", "model.safetensors", "results.jsonl"} <= set(names)


def test_row_stands_for_its_name(tmp_path: Path) -> None:
    assert tmp_path / files.MODEL == tmp_path / "model.safetensors"
    assert f"{files.SCORES.named('val').inside(files.FROZEN)}" == "frozen/predictions/val.npz"
    assert files.OUT_OF_FOLD.key == "out_of_fold"


def test_row_is_bound_to_the_class_of_its_content() -> None:
    row = File("times.json", "result", "durations", "at the end")
    assert row.holding(dict) == JsonFile("times.json", "result", "durations", "at the end", kind=dict)
