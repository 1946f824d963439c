"""Damaged or hostile content of a run folder gives one message, without a traceback, a hang or gigabytes of memory."""

import json
import os
import shutil
import struct
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from faults.conftest import NO_REPORT, SMALL
from helpers.faults import Commands, Ended, edit, refused, relist

pytestmark = pytest.mark.slow

LIMITED = "import resource; resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))"
"""Code that limits the memory of a command, so that a failing test does not exhaust the machine."""

MEMORY = 2 << 30
"""Peak memory of a refused command in bytes; importing torch takes a quarter of it."""

SECONDS = 60.0
"""Seconds after which a refused command is considered to hang; on an idle machine, most take less than one."""


DELETED = object()


def exhaustive(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.exhaustive)


def resume(command: Commands, run: Path) -> Ended:
    return command("train", "--resume", run, *NO_REPORT, timeout=SECONDS, prepare=LIMITED)


def change(path: Path, key: str, value: Any) -> None:
    """Set a key of a JSON file, such as `jobs.0.method`; `DELETED` deletes it."""
    content = json.loads(path.read_text())
    *parents, last = [int(part) if part.isdigit() else part for part in key.split(".")]
    inner = content
    for part in parents:
        inner = inner[part]
    if value is DELETED:
        del inner[last]
    else:
        inner[last] = value
    path.write_text(json.dumps(content))


def predict(command: Commands, run: Path, photos: Path) -> Ended:
    return command("predict", run, photos / "1.jpg", timeout=SECONDS, prepare=LIMITED)


def report(command: Commands, run: Path) -> Ended:
    return command("report", run, "--no-images", timeout=SECONDS, prepare=LIMITED)


# Resources.


@pytest.mark.parametrize("name", ["run.json", exhaustive("manifest.json"), "metrics.jsonl"])
def test_huge_file_is_refused(command: Commands, unfinished: Path, name: str) -> None:
    os.truncate(unfinished / name, 10 << 30)
    ended = resume(command, unfinished)
    limit = "500,000,000" if name.endswith(".jsonl") else "100,000,000"
    refused(ended, name, f"10,737,418,240 bytes; the limit is {limit}")
    assert ended.peak < MEMORY


def test_long_file_of_tensors_is_refused(command: Commands, run: Path, photos: Path) -> None:
    path = run / "model.safetensors"
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(100))
    relist(run)
    refused(predict(command, run, photos), "model.safetensors", f"{size + 100:,} bytes instead of {size:,}")


@pytest.mark.parametrize("hierarchy", [False, exhaustive(True)])
def test_many_classes_are_refused_quickly(command: Commands, run: Path, photos: Path, hierarchy: bool) -> None:
    names = [f"class {number}" for number in range(100_000)]
    chain = dict(pairwise(names)) if hierarchy else None
    edit(run / "labels.json", names=names, counts=[1] * len(names), hierarchy=chain)
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "model.safetensors does not match", "linear.weight")
    assert ended.peak < MEMORY


@pytest.mark.parametrize("size", [30_000, exhaustive(10**6), exhaustive(10**20)])
def test_huge_image_size_is_refused(command: Commands, run: Path, photos: Path, size: int) -> None:
    edit(run / "preprocessing.json", size=size)
    relist(run)
    refused(predict(command, run, photos), "preprocessing.json", f"size={size} must be at most 4096")
    ended = command("train", photos, "--weights", run, "--out", run.parent / "new", *NO_REPORT, prepare=LIMITED)
    refused(ended, "preprocessing.json", f"size={size}")


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("ml_gcn", {"hidden": 10**7}),
        exhaustive("ml_decoder", {"groups": 10**7}),
        exhaustive("kssnet", {"vector_size": 10**9}),
        exhaustive("tdrg", {"width": 10**7}),
        exhaustive("tdrg", {"layers": 10**7}),
        exhaustive("kmcl", {"hidden": [1] * 1_000_000}),
    ],
)
def test_huge_model_is_refused(
    command: Commands, run: Path, photos: Path, method: str, settings: dict[str, Any]
) -> None:
    edit(run / "run.json", model={"method": method, "settings": settings})
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "run.json")
    assert ended.peak < MEMORY


def test_graph_of_many_classes_is_refused(command: Commands, run: Path, photos: Path) -> None:
    names = [f"class {number}" for number in range(50_000)]
    edit(run / "labels.json", names=names, counts=[1] * len(names))
    edit(run / "run.json", model={"method": "ml_gcn", "settings": {}})
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "model.safetensors does not match")
    assert ended.peak < MEMORY


def test_huge_encoder_is_refused(command: Commands, run: Path, photos: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    edit(run / "config.json", encoder={**config["encoder"], "name": "vit_gigantic_patch14_clip_224"})
    relist(run)
    ended = predict(command, run, photos)
    refused(ended, "model.safetensors does not match", "encoder.model")
    assert ended.peak < MEMORY


def write_header(path: Path, text: bytes) -> None:
    """Write a safetensors file that has only a header."""
    path.write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize(
    "text",
    [
        exhaustive(b'{"a":' * 100_000),
        exhaustive(b"[]"),
        exhaustive(b'{"__metadata__": 5}'),
        exhaustive(b'{"__metadata__": {"facts": "\\ud800"}}'),
        exhaustive(b'{"a": {"dtype": "F32", "shape": [1000000000000], "data_offsets": [0, 4000000000000]}}'),
        exhaustive(b'{"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 0]}}'),
        b'{"a": {"dtype": "F32", "shape": [1099511627776, 1099511627776, 1099511627776], "data_offsets": [0, 0]}}',
        exhaustive(b'{"a": {"dtype": "F32", "shape": [0, 1099511627776, 1099511627776], "data_offsets": [0, 0]}}'),
        exhaustive(b'{"a": {"dtype": "F4", "shape": [0], "data_offsets": [0, 0]}}'),
        b'{"a": [' + b"[]," * 30_000_000 + b"[]]}",
    ],
    ids=["deep", "list", "number", "surrogate", "tensor", "negative", "overflow", "strides", "type", "long"],
)
def test_damaged_header_is_refused(command: Commands, run: Path, photos: Path, text: bytes) -> None:
    write_header(run / "model.safetensors", text)
    relist(run)
    refused(predict(command, run, photos), "model.safetensors", "damaged")


WriteArray = Callable[[IO[bytes]], object]


def replace_arrays(path: Path, **arrays: WriteArray) -> None:
    """Replace arrays of an .npz file."""
    with np.load(path) as file:
        old = {key: file[key] for key in file}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, array in old.items():
            with archive.open(f"{key}.npy", "w", force_zip64=True) as entry:
                arrays[key](entry) if key in arrays else np.lib.format.write_array(entry, array)


def array_header(*shape: int) -> WriteArray:
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    return lambda file: np.lib.format.write_array_header_1_0(file, header)


def array(values: Any) -> WriteArray:
    return lambda file: np.lib.format.write_array(file, np.asarray(values))


def zip_bomb(file: IO[bytes]) -> None:
    array_header(1_250_000_000, 1)(file)
    for _ in range(500):
        file.write(bytes(10_000_000))


@pytest.mark.parametrize(
    ("key", "content", "problem"),
    [
        ("scores", array_header(10**12, 3), "Unable to allocate"),
        exhaustive("scores", array_header(10**30, 3), "too large"),
        exhaustive("scores", zip_bomb, "bytes; the limit is 4,000,000,000"),
        exhaustive("scores", array(np.zeros((12, 3), "U3")), "scores has the data type <U3"),
        exhaustive("scores", array(np.full((12, 3), np.nan, "f4")), "scores"),
        exhaustive("paths", array(range(12)), "paths has the data type int64"),
        ("known", array(np.ones((12, 3), "f4")), "known has the data type float32"),
        ("scores", array(np.full((12, 3), np.inf, "f4")), "scores are not between 0 and 1"),
        ("labels", array(np.full((12, 3), 7, "f4")), "labels are not 0 and 1"),
    ],
    ids=["long", "too long", "bomb", "text", "nan", "paths", "known", "infinite", "labels"],
)
def test_damaged_scores_are_refused(command: Commands, run: Path, key: str, content: WriteArray, problem: str) -> None:
    replace_arrays(run / "predictions" / "test.npz", **{key: content})
    relist(run)
    ended = report(command, run)
    refused(ended, "test.npz", problem)
    assert ended.peak < MEMORY


def encrypt(path: Path) -> None:
    """Set the flag of encrypted content in all entries of a zip file."""
    content = path.read_bytes()
    for signature, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        parts = content.split(signature)
        content = signature.join(
            [parts[0], *(part[: flags - 4] + bytes([part[flags - 4] | 1]) + part[flags - 3 :] for part in parts[1:])]
        )
    path.write_bytes(content)


def delete_rows(path: Path) -> None:
    with np.load(path) as file:
        empty = {key: file[key][:0] for key in file}
    np.savez_compressed(path, **empty)


@pytest.mark.parametrize(("damage", "problem"), [(encrypt, "is encrypted"), (delete_rows, "shape (0")])
def test_held_out_scores_that_cannot_be_used_are_refused(
    command: Commands, run: Path, damage: Callable[[Path], None], problem: str
) -> None:
    name = json.loads((run / "calibration.json").read_text())["predictions"]
    damage(run / "predictions" / f"{name}.npz")
    relist(run)
    refused(command("calibrate", run, timeout=SECONDS), f"{name}.npz", problem)


def delete_class(path: Path) -> None:
    with np.load(path) as file:
        arrays = {key: file[key][:, :2] if file[key].ndim == 2 else file[key] for key in file}
    np.savez_compressed(path, **arrays)


@pytest.mark.parametrize(
    ("words", "split"),
    [(["report"], "test"), (["calibrate"], "val"), exhaustive(["predict", "--abstain", "0.1"], "val")],
)
def test_scores_of_other_classes_are_refused(
    command: Commands, run: Path, photos: Path, words: list[str], split: str
) -> None:
    edit(run / "calibration.json", predictions="val")
    delete_class(run / "predictions" / f"{split}.npz")
    relist(run)
    images = [photos / "1.jpg"] if words[0] == "predict" else []
    ended = command(words[0], run, *images, *words[1:], timeout=SECONDS)
    refused(ended, f"{split}.npz", "it has 2 classes; the run has 3")


def replace_tensors(path: Path, **tensors: Any) -> None:
    """Replace tensors of a safetensors file."""
    save_file({**load_file(path), **tensors}, path)


TRAINING_PATHS = np.frombuffer(json.dumps([*range(24)]).encode(), np.uint8)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"paths": TRAINING_PATHS}, "paths are not text"),
        ({"features": np.zeros(24, "f2")}, "features [24]"),
        ({"labels": np.zeros((24, 2), bool)}, "labels [24, 2], known [24, 3]"),
        exhaustive({"labels": np.zeros((24, 3), "f4")}, "labels are not booleans"),
        ({key: np.zeros((24, 2), bool) for key in ("labels", "known")}, "it has 2 classes; the run has 3"),
    ],
    ids=["paths", "features", "labels", "type", "classes"],
)
def test_damaged_training_images_are_refused(
    command: Commands, run: Path, tensors: dict[str, Any], problem: str
) -> None:
    replace_tensors(run / "neighbors.safetensors", **tensors)
    relist(run)
    refused(report(command, run), "neighbors.safetensors", problem)


@pytest.mark.parametrize("features", [np.ones((24, 5), "f2"), exhaustive(np.full((24, 64), np.nan, "f2"))])
def test_features_of_another_encoder_are_refused(command: Commands, run: Path, features: Any) -> None:
    replace_tensors(run / "neighbors.safetensors", features=features)
    relist(run)
    refused(command("report", run, timeout=SECONDS), "neighbors.safetensors: its features")


# Content.


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("mAP", "x"),
        ("mAP", DELETED),
        exhaustive("mAP", 1e999),
        exhaustive("classes", 0),
        exhaustive("at", {}),
        exhaustive("mAP_interval", [0.5]),
        exhaustive("risk_coverage.risk", [0.5]),
        exhaustive("calibration", {}),
        ("calibration.after.per_class.sky", DELETED),
    ],
)
def test_damaged_evaluation_is_refused(command: Commands, run: Path, key: str, value: Any) -> None:
    change(run / "evaluation.json", key, value)
    relist(run)
    refused(report(command, run), "evaluation.json")


@pytest.mark.parametrize("words", [["report"], ["train", "--resume"]], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data", DELETED),
        ("seconds", {}),
        exhaustive("seconds", 1e999),
        exhaustive("seconds", -1),
        exhaustive("warnings", True),
        ("warnings.0", True),
        exhaustive("warnings.0.kind", "weird"),
        exhaustive("candidates.1.name", DELETED),
        ("candidates.1.name", [1]),
        exhaustive("candidates.1.name", "other"),
        exhaustive("candidates.1.head", "crown"),
        exhaustive("candidates.1.trial", 0),
        exhaustive("candidates.1.method", "../../bce"),
        exhaustive("candidates.0", -1),
        exhaustive("test_mAP", "x"),
        exhaustive("test_mAP.bce, own head", []),
        exhaustive("duplicates.exact", {}),
        exhaustive("status", "weird"),
        exhaustive("kept", None),
        exhaustive("versions.numpy", 5),
        exhaustive("model.settings", 5),
        exhaustive("data.options", 5),
    ],
)
def test_damaged_run_json_is_refused(command: Commands, run: Path, words: list[str], key: str, value: Any) -> None:
    change(run / "run.json", key, value)
    relist(run)
    ended = command(*words, run, *(NO_REPORT if words[0] == "train" else ()), timeout=SECONDS)
    refused(ended, "run.json", "damaged")
    assert "--" not in ended.stderr.replace("--resume", "")


@pytest.mark.parametrize(
    "key",
    ["`probmcl.x(y)`", *map(exhaustive, ("`probmcl.train(,)`", "`probmcl.load(1)(2)`", "`x=" + "(" * 1000 + "`"))],
)
def test_text_of_a_file_is_not_taken_for_a_call(command: Commands, run: Path, photos: Path, key: str) -> None:
    edit(run / "run.json", **{key: 1})
    relist(run)
    refused(predict(command, run, photos), "run.json: unknown key", "probmcl" if "probmcl" in key else "x")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("jobs.0", 5),
        exhaustive("jobs.0.method", []),
        exhaustive("jobs.0.settings", 5),
        exhaustive("jobs.0.name", "../bce"),
        exhaustive("jobs.0.trial", -1),
        ("jobs.0.evil", 1),
        exhaustive("jobs.0.training.evil", 1),
        exhaustive("probe.evil", 1),
        exhaustive("jobs", DELETED),
    ],
)
def test_damaged_settings_are_refused(command: Commands, unfinished: Path, key: str, value: Any) -> None:
    change(unfinished / "config.json", key, value)
    relist(unfinished)
    refused(resume(command, unfinished), "config.json")


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        exhaustive("policy", True, "policy"),
        exhaustive("policy.labels", 5, "policy.labels"),
        exhaustive("names.0", "a\0b", "class name"),
        ("names.0", "\ud800", "class name"),
        exhaustive("evil", 1, "unknown key"),
    ],
)
def test_damaged_labels_are_refused(command: Commands, run: Path, key: str, value: Any, problem: str) -> None:
    change(run / "labels.json", key, value)
    relist(run)
    refused(report(command, run), "labels.json", problem)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("classes.sky.threshold", 2.0, "threshold=2.0"),
        exhaustive("classes.sky.slope", 1e308, "slope"),
        exhaustive("predictions", "../../elsewhere", "predictions='../../elsewhere' must be one of"),
    ],
)
def test_damaged_calibration_is_refused(
    command: Commands, run: Path, photos: Path, key: str, value: Any, problem: str
) -> None:
    change(run / "calibration.json", key, value)
    relist(run)
    refused(predict(command, run, photos), "calibration.json", problem)


@pytest.mark.parametrize("facts", ["[]", "{}", exhaustive("5"), exhaustive('{"method": 5}')])
def test_damaged_checkpoint_is_computed_again(command: Commands, unfinished: Path, facts: str) -> None:
    text = json.dumps({"__metadata__": {"facts": facts}}).encode()
    write_header(unfinished / "checkpoints" / "frozen.safetensors", text)
    ended = resume(command, unfinished)
    assert ended.code == 0, ended.text
    assert "frozen.safetensors" in ended.stdout
    assert "it is computed again" in ended.stdout


@pytest.mark.parametrize(
    "content",
    [
        exhaustive(b"5\n"),
        exhaustive(b'{"x": 1}\n'),
        b'{"stage": "bce"}\n',
        exhaustive(b'{"a":' * 100_000 + b"\n"),
        exhaustive(b'{"step": ' + b"9" * 5000 + b"}\n"),
        exhaustive(b"\xff\xfe\n"),
    ],
    ids=["number", "object", "step", "deep", "digits", "bytes"],
)
def test_damaged_log_is_refused(command: Commands, run: Path, content: bytes) -> None:
    (run / "metrics.jsonl").write_bytes(content)
    relist(run)
    ended = report(command, run)
    refused(ended, "metrics.jsonl", "damaged")
    assert "--" not in ended.stderr


@pytest.mark.parametrize("words", [["evaluate", "--draws", "0"], exhaustive(["calibrate"])], ids=lambda words: words[0])
def test_class_name_cannot_look_like_other_output(command: Commands, run: Path, words: list[str]) -> None:
    forged = "sky\nprobmcl: all is well"
    change(run / "labels.json", "names.2", forged)
    calibration = json.loads((run / "calibration.json").read_text())
    classes = {forged if name == "sky" else name: fitted for name, fitted in calibration["classes"].items()}
    edit(run / "calibration.json", classes=classes)
    relist(run)
    assert "\nprobmcl: " not in command(*words[:1], run, *words[1:]).text


# Comparisons.


@pytest.fixture(scope="session")
def finished_comparison(command: Commands, photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished comparison on the photographs; read only."""
    folder = tmp_path_factory.mktemp("comparisons") / "finished"
    options = [part for part in SMALL if part not in ("--method", "bce")]
    ended = command("compare", photos, *options, "--methods", "bce", "--seeds", "1", "--out", folder)
    assert ended.code == 0, ended.text
    return folder


@pytest.fixture
def comparison(finished_comparison: Path, tmp_path: Path) -> Path:
    """A copy of the finished comparison."""
    return Path(shutil.copytree(finished_comparison, tmp_path / "comparison"))


def resume_comparison(command: Commands, folder: Path, *words: str | Path) -> Ended:
    return command("compare", "--resume", folder, *words, *NO_REPORT, timeout=SECONDS)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        exhaustive("spec", DELETED),
        exhaustive("evil", 1),
        exhaustive("spec.evil", 1),
        exhaustive("spec.methods", [5]),
        exhaustive("spec.epochs", "x"),
        ("spec.seeds", -1),
        exhaustive("spec.seeds", "3"),
        exhaustive("spec.trials", 99),
        exhaustive("warnings", [{"x": 1}]),
        exhaustive("add", None),
        exhaustive("name", 5),
        exhaustive("source", None),
        exhaustive("spec.settings.jobs", [5]),
        exhaustive("spec.methods", []),
    ],
)
def test_damaged_specification_is_refused(command: Commands, comparison: Path, key: str, value: Any) -> None:
    change(comparison / "spec.json", key, value)
    refused(resume_comparison(command, comparison), "spec.json")


@pytest.mark.parametrize(("key", "value"), [("evil", 1), exhaustive("tune", DELETED), exhaustive("expenses", {})])
def test_damaged_measurements_are_refused(command: Commands, comparison: Path, key: str, value: Any) -> None:
    change(comparison / "measured.json", key, value)
    refused(resume_comparison(command, comparison), "measured.json")


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("evaluation.json", "mAP", "x"),
        exhaustive("evaluation.json", "mAP", DELETED),
        ("evaluation.json", "at", DELETED),
        exhaustive("evaluation.json", "ap.sky", 1e999),
        ("retrieval.json", "mAP", DELETED),
        exhaustive("retrieval.json", "evil", 1),
    ],
)
def test_damaged_metrics_of_a_comparison_are_refused(
    command: Commands, comparison: Path, name: str, key: str, value: Any
) -> None:
    change(comparison / "seed-0" / "frozen" / name, key, value)
    relist(comparison / "seed-0")
    refused(resume_comparison(command, comparison), f"frozen/{name}")


def test_scores_of_other_classes_are_not_compared(command: Commands, comparison: Path) -> None:
    two = {key: array(np.zeros((12, 2), kind)) for key, kind in {"scores": "f4", "labels": "f4", "known": "?"}.items()}
    replace_arrays(comparison / "seed-0" / "frozen" / "predictions" / "test.npz", **two)
    relist(comparison / "seed-0")
    refused(resume_comparison(command, comparison), "test.npz", "it has 2 classes; the run has 3")


@pytest.mark.parametrize(
    "changes",
    [
        {"test": {}},
        exhaustive({"by_embedding": {}}),
        exhaustive({"fingerprint": {}}),
        exhaustive({"evil": 1}),
        exhaustive({"predictions": "../finished/seed-0/predictions/test.npz"}),
        exhaustive({"predictions": "/etc/passwd"}),
    ],
)
def test_damaged_results_are_not_added(
    command: Commands, finished_comparison: Path, comparison: Path, changes: dict[str, Any]
) -> None:
    path = comparison / "results.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**line, **changes}) + "\n" for line in lines))
    refused(resume_comparison(command, finished_comparison, "--add", comparison), "results.jsonl, line 1")


@pytest.mark.parametrize("kind", ["pipe", exhaustive("deep"), exhaustive("link")])
def test_results_that_cannot_be_read_are_not_added(
    command: Commands, finished_comparison: Path, comparison: Path, kind: str
) -> None:
    path = comparison / "results.jsonl"
    if kind == "deep":
        path.write_text('{"a":' * 100_000)
    else:
        path.rename(comparison / "elsewhere")
        os.mkfifo(path) if kind == "pipe" else path.symlink_to(comparison / "elsewhere")
    refused(resume_comparison(command, finished_comparison, "--add", comparison), "results.jsonl")
