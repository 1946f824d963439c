"""Write the inputs of the cases in behavior_matrix.py: images, tables, losses and recipes.

It is started by behavior_runner.py with `PYTHONPATH` set to `src` and `tests` of the reference, and run once: both
trees then read the same files. The modules of the tests are imported by name, because only the reference's are used.
"""

from __future__ import annotations

import csv
import importlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SPLITS = ["train"] * 24 + ["val"] * 12 + ["test"] * 12

LOSSES = '''
"""Losses of a user."""
import sys
import torch
from torch.nn.functional import binary_cross_entropy_with_logits


def good(logits, labels, known):
    loss = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (loss * known).sum() / known.sum().clamp(min=1)


def contrast(similarity, overlap):
    positive = overlap >= 0.5
    log = (similarity / 0.1).log_softmax(1)
    return (-(overlap * log * positive).sum(1) / positive.sum(1).clamp(min=1)).mean()


def has_a_bug(logits, labels, known):
    raise ValueError("the loss has a bug")


def is_a_vector(logits, labels, known):
    return logits.mean(1)


def is_nan(logits, labels, known):
    return logits.mean() * float("nan")


def of_other_arguments(predictions, targets):
    return predictions.mean()


not_a_function = 3
'''

FILES = {
    "losses.py": LOSSES,
    "syntax_error.py": "def loss(:\n",
    "recipe.toml": 'method = "asl"\n[training]\nepochs = 2\nbatch_size = 8\n[settings]\ngamma_negative = 3.0\n',
    "recipe_unknown_key.toml": 'method = "asl"\ncolor = "red"\n',
    "recipe_wrong_type.toml": 'method = "asl"\n[training]\nepochs = "many"\n',
    "recipe_nan.toml": 'method = "asl"\n[training]\nlearning_rate = nan\n',
    "recipe_syntax.toml": "method = \n",
    "hierarchy.csv": "child,parent\nroof,sky\n",
    "hierarchy_unknown.csv": "child,parent\nroof,building\npetal,plant\n",
    "names.csv": "data,model\nRoof,roof\nPetal,petal\nAzure,sky\n",
    "names.json": '{"Roof": "roof", "Petal": "petal", "Azure": "sky"}',
    "names_unknown.csv": "data,model\nRoof,castle\n",
    "names_damaged.json": '{"Roof": ',
    "images.txt": "photos/0.jpg\nphotos/1.jpg\n\nphotos/nowhere.jpg\n",
    "split.csv": "path,split\n0.jpg,train\n",
    "exists.csv": "precious\n",
    "a_file": "no folder\n",
    "weights.safetensors": "no tensors",
    "table_broken.csv": 'filename,labels\n"0.jpg,roof\n1.jpg,sky\n',
    "table_nul.csv": "filename,labels\n0.jpg,ro\0of\n",
    "table_utf16.csv": "\ufefffilename,labels\n",
    "coco_damaged.json": '{"images": [',
    "empty_folder/.keep": "",
}
"""Small files by path."""


def write_table(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)


def write_layouts(folder: Path) -> None:
    """Write every layout of the tests into a folder of its own, and a file with the commands of each."""
    commands = {}
    for name, layout in importlib.import_module("layouts").LAYOUTS.items():
        layout.write(folder / name)
        words = dict.fromkeys([layout.command, *layout.commands])
        commands[name] = [shlex.join(shlex.split(command)[2:]) for command in words]
    (folder / "commands.json").write_text(json.dumps(commands, indent=1))


def write_photographs(folder: Path) -> None:
    """Write photographs with splits, and folders made from them."""
    photographs = importlib.import_module("helpers.photographs")
    photographs.folder(folder / "photos", count=48, splits=SPLITS)
    patients = [f"patient {number // 3}" for number in range(60)]
    photographs.folder(folder / "grouped", count=60, patients=patients)
    write_site(folder / "site", photographs)
    write_problems(folder)
    shutil.copytree(folder / "photos", folder / "leaky")
    for number in (0, 1, 2):
        shutil.copy(folder / "leaky" / f"{number}.jpg", folder / "leaky" / f"{45 + number}.jpg")
    write_hostile_images(folder)
    write_deep_images(folder / "deep", photographs)


def write_site(folder: Path, photographs: object) -> None:
    """Write photographs of another site, with other class names, scanners and patients."""
    rows: list[list[object]] = [["path", "who", "scanner", "Roof", "Petal", "Azure"]]
    for number in range(40):
        (folder / "images").mkdir(parents=True, exist_ok=True)
        photographs.photograph(200 + number).save(folder / "images" / f"{number}.png")  # type: ignore[attr-defined]
        labels = [int(number % (k + 2) == 0 or number % 5 == k) for k in range(3)]
        rows.append([f"images/{number}.png", f"p{number // 4}", "north" if number < 20 else "south", *labels])
    write_table(folder / "labels.csv", rows)


def write_problems(folder: Path) -> None:
    """Write a copy of the photographs in which every finding of `check` occurs."""
    data = Path(shutil.copytree(folder / "photos", folder / "problems"))
    (data / "3.jpg").unlink()
    (data / "4.jpg").write_bytes(b"")
    (data / "5.jpg").write_bytes((data / "5.jpg").read_bytes()[:900])
    Image.new("RGB", (64, 64), "gray").save(data / "6.jpg")
    shutil.copy(data / "7.jpg", data / "8.jpg")  # other labels
    with Image.open(data / "9.jpg") as image:
        image.resize((80, 60)).save(data / "40.jpg")  # a copy in the test split
    rows = list(csv.reader((data / "labels.csv").open(newline="")))
    rows = [[*row, "patient" if number == 0 else f"p{number % 11}"] for number, row in enumerate(rows)]
    rows[20][1] += "|rare"
    write_table(data / "labels.csv", rows)


def write_hostile_images(folder: Path) -> None:
    """Write a copy of the photographs with the unreadable, damaged and unusual images of the tests of faults."""
    images = importlib.import_module("faults.test_images")
    data = Path(shutil.copytree(folder / "photos", folder / "hostile"))
    makes = {name: make for name, (make, _) in images.UNREADABLE.items()} | images.DAMAGED | images.READABLE
    for name, make in makes.items():
        make(data / name)
    with (data / "labels.csv").open("a", newline="") as file:
        csv.writer(file).writerows([name, "roof", "train"] for name in makes)


def write_deep_images(folder: Path, photographs: object) -> None:
    """Write images with 16 bits per pixel."""
    rows: list[list[object]] = [["filename", "labels"]]
    folder.mkdir()
    for number in range(30):
        gray = np.asarray(photographs.photograph(number).convert("L"))  # type: ignore[attr-defined]
        Image.fromarray(gray.astype(np.uint16) * 16).save(folder / f"{number}.png")
        rows.append([f"{number}.png", "odd" if number % 2 else "even"])
    write_table(folder / "labels.csv", rows)


def write_many_images(folder: Path) -> None:
    """Write enough tiny images for isotonic calibration, which needs 1,000 positives for validation."""
    rng = np.random.default_rng(0)
    rows: list[list[object]] = [["filename", "split", "light", "dark", "rare"]]
    folder.mkdir()
    for number in range(1400):
        bright = bool(rng.random() < 0.8)
        pixels = rng.integers(60 if bright else 0, 256 if bright else 200, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        split = "val" if number < 1300 else ("train", "test")[number % 2]
        rows.append([f"{number}.png", split, int(bright), int(not bright), int(number % 20 == 0)])
    write_table(folder / "labels.csv", rows)


def write_tables(folder: Path) -> None:
    """Write the degenerate tables of the tests of faults, which are about the photographs."""
    tables = importlib.import_module("faults.test_tables")
    for name, (rows, _) in {**tables.TRAINED, **tables.REFUSED}.items():
        write_table(folder / f"{name}.csv", rows)


def main() -> None:
    """Write all inputs into the folder that is given as the argument."""
    folder = Path(sys.argv[1])
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        encoding = "utf-16" if "utf16" in name else "utf-8"
        (folder / name).write_text(content, encoding=encoding)
    write_layouts(folder / "layouts")
    write_photographs(folder)
    write_many_images(folder / "many")
    write_tables(folder / "tables")


if __name__ == "__main__":
    main()
