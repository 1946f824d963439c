"""Output for terminals, spreadsheets and logs: hostile names, models with NaN, and long stages without a terminal."""

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy import ndarray
from safetensors.numpy import load_file, save_file

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands, relist

pytestmark = pytest.mark.slow

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
HOSTILE = {"escape": ESCAPE, "return": "\rcat", "c1": "\x9b2J", "direction": "\u202egpj.exe", "surrogate": "\udcff"}
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
FORMULA, NUMBER = re.compile(r"\s*[=+\-@]"), re.compile(r"[+-]?[0-9.]+(e[+-]?[0-9]+)?")
CLASSES = {"roof": "=cmd' C calc'!A0", "petal": "'@x", "sky": "-2+3"}
FORMULAS = ("=cmd' C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "'=quoted", "\t=1", "plain")


def copied(photos: Path, name: str, folder: Path) -> Path:
    """Copy a photograph to a file with another name."""
    folder.mkdir(exist_ok=True)
    return Path(shutil.copy(photos / "0.jpg", folder / name))


def strict_json(path: Path) -> object:
    """Read JSON that must not contain NaN or infinity."""

    def refuse(constant: str) -> object:
        raise AssertionError(f"{path} contains {constant}")

    return json.loads(path.read_text(), parse_constant=refuse)


def table(path: Path) -> list[list[str]]:
    """Read a CSV file."""
    with path.open(newline="", errors="surrogateescape") as file:
        return list(csv.reader(file))


def change_model(run: Path, change: Callable[[ndarray], object]) -> str:
    """Change the head's weight in the model of a run, with its entry in the manifest, and return the tensor's name."""
    path = run / "model.safetensors"
    tensors = {name: values.copy() for name, values in load_file(path).items()}
    name = max((name for name in tensors if not name.startswith("encoder.") and tensors[name].ndim == 2), key=len)
    change(tensors[name])
    save_file(tensors, path)
    relist(run)
    return name


# Terminals and spreadsheets (1.5)


@pytest.mark.parametrize("kind", HOSTILE)
def test_control_characters_in_file_names_are_escaped(
    command: Commands, photos: Path, finished_run: Path, tmp_path: Path, kind: str
) -> None:
    image = copied(photos, f"a{HOSTILE[kind]}.jpg", tmp_path / "images")
    (tmp_path / "images" / f"b{HOSTILE[kind]}.jpg").write_bytes(b"")  # named in the message about unreadable images
    for options in ([], ["--format", "short"], ["--format", "short", "--out", tmp_path / "out.csv"]):
        ended = command("predict", finished_run, image.parent, "--workers", "0", *options)
        assert ended.code == 0
        assert not CONTROL.search(ended.text)
        assert "�" not in ended.text
    assert repr(HOSTILE[kind])[1:-1].replace("udc", "x") in ended.stderr


def test_control_characters_in_classes_and_messages_are_escaped(
    command: Commands, photos: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    labels = (data / "labels.csv").read_text().replace("petal", f"pe{ESCAPE}tal")
    (data / "labels.csv").write_text(labels)
    run = tmp_path / "run"
    commands: list[tuple[str | Path, ...]] = [
        ("check", data, "--workers", "0"),
        ("train", data, *SMALL, "--out", run),
        ("predict", run, data, "--workers", "0"),
        ("evaluate", run, "--workers", "0"),
        ("calibrate", run),
        ("predict", run, data, f"--{ESCAPE}"),
        ("predict", run, f"nowhere{ESCAPE}/*.jpg"),
        ("check", tmp_path / f"{ESCAPE}.csv"),
        ("evaluate", run, data, "--by", f"{ESCAPE}"),
    ]
    for words in commands:
        ended = command(*words, cwd=tmp_path)
        assert not CONTROL.search(ended.text), words
        assert "Traceback" not in ended.text


@pytest.fixture(scope="module")
def formulas(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run whose classes are formulas, and with images whose names are."""
    folder = tmp_path_factory.mktemp("formulas")
    rows = [
        {"file": file, "labels": [CLASSES[label] for label in labels.split("|") if label], "split": split}
        for file, labels, split in table(photos / "labels.csv")[1:]
    ]
    data = Path(shutil.copytree(photos, folder / "photos"))
    (data / "labels.csv").unlink()
    (data / "labels.json").write_text(json.dumps(rows))
    ended = command("train", data / "labels.json", *SMALL, "--out", folder / "run")
    assert ended.code == 0, ended.text
    for number, formula in enumerate(FORMULAS):
        copied(photos, f"{formula}{number}.jpg", folder / "images")
    return folder


@pytest.mark.parametrize("layout", ["full", "short"])
def test_predictions_contain_no_formulas(command: Commands, formulas: Path, tmp_path: Path, layout: str) -> None:
    words = ("predict", formulas / "run", ".", "--workers", "0", "--format", layout, "--threshold", "0")
    ended = command(*words, "--out", tmp_path / "safe.csv", cwd=formulas / "images")
    assert ended.code == 0, ended.text
    safe = table(tmp_path / "safe.csv")
    assert not [cell for row in safe for cell in row if FORMULA.match(cell) and not NUMBER.fullmatch(cell)]
    assert command(*words, "--raw-cells", "--out", tmp_path / "raw.csv", cwd=formulas / "images").code == 0
    raw = table(tmp_path / "raw.csv")
    assert {row[0] for row in raw[1:]} == {path.name for path in (formulas / "images").iterdir()}
    assert {*CLASSES.values()} <= {*(raw[0] if layout == "full" else raw[1][1].split("|"))}


def test_predictions_are_read_back_exactly(command: Commands, formulas: Path, tmp_path: Path) -> None:
    images = Path(shutil.copytree(formulas / "images", tmp_path / "images"))
    words = ("predict", formulas / "run", ".", "--workers", "0", "--format", "short", "--threshold", "0")
    assert command(*words, "--out", "labels.csv", cwd=images).code == 0
    ended = command("check", "labels.csv", "--workers", "0", cwd=images)
    assert ended.code in (0, 3, 4), ended.text
    report = json.loads((images / "check.json").read_text())
    assert report["missing"] == []
    assert {*report["per_class"]} == {*CLASSES.values()}


# Models and outputs with NaN (2.4)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize(
    "words", [("predict",), ("explain", "--out", "maps"), ("evaluate",)], ids=lambda words: words[0]
)
def test_model_with_nan_weights_is_refused(
    command: Commands, photos: Path, run: Path, value: float, words: tuple[str, ...]
) -> None:
    name = change_model(run, lambda weight: np.put(weight, 3, value))
    images = [] if words[0] == "evaluate" else [photos]
    ended = command(words[0], run, *images, "--workers", "0", *words[1:], cwd=run.parent)
    assert ended.code == 1
    assert f"model.safetensors: tensor '{name}' has NaN or infinite values" in ended.stderr
    assert "Traceback" not in ended.text


def test_encoder_weights_with_nan_are_refused(command: Commands, photos: Path, run: Path, tmp_path: Path) -> None:
    prefix = "encoder.model."
    stored = load_file(run / "model.safetensors")
    tensors = {name.removeprefix(prefix): stored[name] for name in stored if name.startswith(prefix)}
    name = next(name for name, values in tensors.items() if values.ndim == 4)
    np.put(tensors[name], 0, np.nan)
    weights = tmp_path / "weights.safetensors"
    save_file(tensors, weights)
    ended = command(
        "train", photos, *(weights if word == "none" else word for word in SMALL), "--out", tmp_path / "new"
    )
    assert ended.code == 1
    assert f"{weights}: tensor '{name}' has NaN or infinite values" in ended.stderr


def overflow(weight: ndarray) -> None:
    """Make outputs infinite although the weight is finite."""
    weight[:] = np.sign(weight + 1e-30) * 3e38


def test_non_finite_output_is_an_error_of_the_image(command: Commands, photos: Path, run: Path, tmp_path: Path) -> None:
    change_model(run, overflow)
    two = (photos / "1.jpg", photos / "2.jpg", "--workers", "0")
    for name in ("out.csv", "out.json"):
        ended = command("predict", run, *two, "--out", tmp_path / name)
        assert ended.code == 1  # no image has a prediction
        assert "2 of 2 images" in ended.stderr
    rows = table(tmp_path / "out.csv")
    assert {row[1] for row in rows[1:]} == {"the model produced NaN or inf"}
    assert {cell for row in rows[1:] for cell in row[2:]} == {""}
    images = strict_json(tmp_path / "out.json")
    assert isinstance(images, dict)
    assert {image["error"] for image in images["images"]} == {"the model produced NaN or inf"}
    assert "the model produced NaN or inf" in command("predict", run, *two).text
    ended = command("explain", run, *two, "--out", tmp_path / "maps")
    assert ended.code == 1
    assert f"{photos / '1.jpg'}: the model produced NaN or inf" in ended.stderr
    ended = command("evaluate", run, "--workers", "0", "--json", tmp_path / "evaluation.json")
    assert ended.code == 1
    assert "12 of 12 images cannot be used" in ended.stderr
    assert ".jpg" in ended.stderr
    assert "the model produced NaN or inf" in ended.stderr
    assert "Traceback" not in ended.text


def test_no_file_of_a_run_contains_bare_nan(command: Commands, photos: Path, tmp_path: Path) -> None:
    """Classes without positives or negatives in a split have undefined scores."""
    data, run = Path(shutil.copytree(photos, tmp_path / "photos")), tmp_path / "run"
    rows = table(data / "labels.csv")
    for number, row in enumerate(rows[1:]):
        row[1] = "|".join(["always", *(["train only"] if row[2] == "train" and number % 2 else []), row[1]]).strip("|")
    with (data / "labels.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    assert command("check", data, "--workers", "0", "--out", tmp_path / "check.json").code in (0, 3)
    ended = command("train", data, *[word for word in SMALL if word not in NO_REPORT], "--out", run)
    assert ended.code == 0, ended.text
    assert command("evaluate", run, "--workers", "0", "--json", tmp_path / "evaluation.json").code == 0
    assert command("predict", run, data, "--workers", "0", "--out", tmp_path / "predictions.json").code == 0
    for path in (*run.rglob("*.json"), *tmp_path.glob("*.json")):
        strict_json(path)
    for line in (run / "metrics.jsonl").read_text().splitlines():
        assert "NaN" not in line
        assert "Infinity" not in line


# Long stages without a terminal (3.7)

LONG_STAGES = """
import contextlib, threading, probmcl.console
probmcl.console.SILENT_SECONDS = 0.02
never_silent, waited = probmcl.console.Console._never_silent, set()
@contextlib.contextmanager
def wait_for_line(self, status):
    lines, kind = threading.Semaphore(0), status().endswith("so far")
    def counted_status():
        lines.release()
        return status()
    with never_silent(self, counted_status):
        if kind not in waited:
            waited.add(kind)
            for _ in range(2):  # once the second line is made, the first one is printed
                assert lines.acquire(timeout=600)
        yield
probmcl.console.Console._never_silent = wait_for_line
"""
"""Makes the first stage with steps and the first one without steps last until their status has been printed."""


def test_log_has_progress_lines(command: Commands, photos: Path, tmp_path: Path) -> None:
    ended = command("train", photos, *SMALL, "--out", tmp_path / "run", prepare=LONG_STAGES)
    assert ended.code == 0, ended.text
    lines = re.findall(r"^  [\w ,-]+: +[0-9]+ %, [0-9,]+ of [0-9,]+(?:, [0-9]+ (?:s|min) left)?$", ended.stdout, re.M)
    assert lines
    assert re.search(r"^  (still working|reading the data): [0-9]+ s so far$", ended.stdout, re.M)


# Hostile tables (R21)


@pytest.mark.parametrize(
    "value", ["../../etc/passwd", "..\\..\\etc\\passwd", "http://127.0.0.1:9/0.jpg", "file:///etc/passwd"]
)
def test_paths_out_of_the_folder_and_addresses_are_not_read(
    command: Commands, photos: Path, tmp_path: Path, value: str
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    (data / "labels.csv").write_text((data / "labels.csv").read_text().replace("\n5.jpg", f"\n{value}"))
    ended = command("check", data, "--workers", "0", "--out", tmp_path / "check.json")
    assert ended.code == 4, ended.text
    assert re.split(r"[/\\]", value)[-1] in ended.text
    assert "Traceback" not in ended.text


def test_absolute_paths_and_links_in_the_users_own_table_are_read(
    command: Commands, photos: Path, tmp_path: Path
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    shutil.move(data / "5.jpg", tmp_path / "elsewhere.jpg")
    shutil.move(data / "6.jpg", tmp_path / "linked.jpg")
    (data / "6.jpg").symlink_to(tmp_path / "linked.jpg")
    text = (data / "labels.csv").read_text().replace("\n5.jpg", f"\n{tmp_path / 'elsewhere.jpg'}")
    (data / "labels.csv").write_text(text)
    ended = command("check", data / "labels.csv", "--workers", "0", "--out", tmp_path / "check.json")
    assert ended.code in (0, 3), ended.text


@pytest.mark.parametrize("value", [ESCAPE, "=cmd|' /C calc'!A0", "@SUM(A1)", "\u202egpj.exe"])
def test_hostile_cells_are_named_but_not_interpreted(
    command: Commands, photos: Path, tmp_path: Path, value: str
) -> None:
    data = Path(shutil.copytree(photos, tmp_path / "photos"))
    (data / "labels.csv").write_text((data / "labels.csv").read_text().replace("\n5.jpg", f"\n{value}.jpg"))
    ended = command("check", data, "--workers", "0", "--out", tmp_path / "check.json")
    assert ended.code == 4, ended.text
    assert not CONTROL.search(ended.text)
    assert "Traceback" not in ended.text
