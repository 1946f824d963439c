"""Crafted run folders and comparisons are refused with one message, without a hang or gigabytes of memory.

The unit tests of `probmcl.store.decoding` have wrong types, missing keys and unknown keys of JSON. Here, one row for
each file shows that the commands read it through that boundary.
"""

import json
import os
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from faults.conftest import NO_REPORT
from helpers.crafted import (
    ADD,
    COMPARE,
    DELETED,
    EVALUATE,
    PREDICT,
    REPORT,
    RESUME,
    SECONDS,
    START,
    Craft,
    Crafted,
    cases,
    change,
    changes,
    check_refused,
    content,
)
from helpers.faults import Commands, edit, relist

pytestmark = pytest.mark.slow

# JSON and CSV.

DEEP = '{"a":' * 100_000 + "1" + "}" * 100_000
ENTRY = {"size": 1, "sha256": "0" * 64}

JSON: dict[str, Crafted] = {
    # One row for each file: a wrong type with its place.
    "run.json": Crafted(
        change("run.json", "candidates.1.trial", "x"), RESUME, ("run.json: candidates[1].trial: expected int, got str",)
    ),
    "run.json, data": Crafted(
        change("run.json", "data.options", 5), PREDICT, ("run.json: data.options: expected object, got int",)
    ),
    "config.json": Crafted(
        change("config.json", "probe.epochs", "x"), PREDICT, ("config.json: probe.epochs: expected int, got str",)
    ),
    "config.json, settings": Crafted(
        change("config.json", "jobs.0.settings", 5),
        RESUME,
        ("config.json: jobs[0].settings: expected object, got int",),
        "unfinished",
    ),
    "labels.json": Crafted(
        change("labels.json", "policy", True), REPORT, ("labels.json: policy: expected object, got bool",)
    ),
    "preprocessing.json": Crafted(
        change("preprocessing.json", "mean", [0.5]),
        PREDICT,
        ("preprocessing.json: mean: expected array of length 3, got 1",),
    ),
    "calibration.json": Crafted(
        change("calibration.json", "classes.sky.slope", "x"),
        PREDICT,
        ("calibration.json: classes[...].slope: expected float, got str",),
    ),
    "evaluation.json": Crafted(change("evaluation.json", "mAP", "x"), REPORT, ("evaluation.json: mAP: expected",)),
    "manifest.json": Crafted(
        change("manifest.json", "files", []), PREDICT, ("manifest.json: files: expected object, got array",)
    ),
    "split.csv": Crafted(
        content("split.csv", "path,split\na.jpg,trian\n"),
        EVALUATE,
        ("split.csv, row 2, split: invalid value 'trian'",),
    ),
    "images.csv": Crafted(
        content("images.csv", "path,size,mtime_ns,digest\na.jpg,x,1,0\n"),
        RESUME,
        ("images.csv, row 2, size: expected int, got str",),
        "unfinished",
    ),
    "metrics.jsonl": Crafted(content("metrics.jsonl", '{"stage": "bce"}\n'), REPORT, ("metrics.jsonl, line 1",)),
    "spec.json": Crafted(
        change("spec.json", "spec.seeds", "3"), COMPARE, ("spec.json: spec.seeds: expected int, got str",), "comparison"
    ),
    "measured.json": Crafted(
        change("measured.json", "tune", DELETED), COMPARE, ("measured.json: missing key 'tune'",), "comparison"
    ),
    "candidate's evaluation.json": Crafted(
        change("seed-0/frozen/evaluation.json", "mAP", DELETED),
        COMPARE,
        ("frozen/evaluation.json: missing", "mAP"),
        "comparison",
    ),
    "candidate's retrieval.json": Crafted(
        change("seed-0/frozen/retrieval.json", "mAP", DELETED),
        COMPARE,
        ("frozen/retrieval.json: missing", "mAP"),
        "comparison",
    ),
    # Missing and unknown keys.
    "missing key": Crafted(change("run.json", "data", DELETED), RESUME, ("run.json: missing key 'data'",)),
    "unknown key": Crafted(
        change("config.json", "jobs.0.evil", 1), RESUME, ("config.json: jobs[0]: unknown key 'evil'",), "unfinished"
    ),
    "text that looks like a call": Crafted(
        changes("run.json", **{"`probmcl.x(y)`": 1}), PREDICT, ("run.json: unknown key 'probmcl.x(y)'",)
    ),
    "text that looks like a deep call": Crafted(
        changes("run.json", **{"`x=" + "(" * 1000 + "`": 1}), PREDICT, ("run.json: unknown key 'x=((",)
    ),
    # Values.
    "text without candidates": Crafted(
        change("run.json", "kept", "other"), PREDICT, ("run.json: kept='other' is not the name of a candidate",)
    ),
    "name that is a path": Crafted(
        change("run.json", "candidates.1.method", "../../bce"), PREDICT, ("candidates[1]: method '../../bce'",)
    ),
    "predictions that are a path": Crafted(
        change("calibration.json", "predictions", "../../elsewhere"),
        PREDICT,
        ("calibration.json: predictions: invalid value '../../elsewhere'",),
    ),
    "infinite number": Crafted(change("run.json", "seconds", 1e999), PREDICT, ("run.json: has NaN or infinite",)),
    "large slope": Crafted(change("calibration.json", "classes.sky.slope", 1e308), PREDICT, ("classes[...]: slope=",)),
    "NUL in a name": Crafted(change("labels.json", "names.0", "a\0b"), REPORT, ("labels.json: the class name",)),
    "surrogate in a name": Crafted(change("labels.json", "names.0", "\ud800"), REPORT, ("labels.json: the class",)),
    "no cost of a method": Crafted(
        change("measured.json", "expenses", {}), COMPARE, ("measured.json: has no cost of frozen",), "comparison"
    ),
    "no classes of the run": Crafted(
        change("evaluation.json", "calibration.after.per_class.sky", DELETED),
        REPORT,
        ("evaluation.json does not match",),
    ),
    # Depth, size and version.
    "deep JSON": Crafted(content("labels.json", DEEP), PREDICT, ("labels.json: JSON is nested more than 64 levels",)),
    "deep log": Crafted(content("metrics.jsonl", '{"a":' * 100_000 + "\n"), REPORT, ("metrics.jsonl", "damaged")),
    "long number in a log": Crafted(
        content("metrics.jsonl", '{"step": ' + "9" * 5000 + "}\n"), REPORT, ("metrics.jsonl", "damaged")
    ),
    "log that is not UTF-8": Crafted(content("metrics.jsonl", b"\xff\xfe\n"), REPORT, ("metrics.jsonl", "not UTF-8")),
    "huge JSON": Crafted(
        lambda folder: os.truncate(folder / "run.json", 10 << 30),
        RESUME,
        ("run.json has 10,737,418,240 bytes; the limit is 100,000,000",),
        "unfinished",
    ),
    "huge log": Crafted(
        lambda folder: os.truncate(folder / "metrics.jsonl", 10 << 30),
        RESUME,
        ("metrics.jsonl has 10,737,418,240 bytes; the limit is 500,000,000",),
        "unfinished",
    ),
    "newer version": Crafted(
        changes("labels.json", schema=99),
        PREDICT,
        ("labels.json: schema version 99 is newer", "update to that version"),
    ),
    "newer manifest": Crafted(changes("manifest.json", schema=99), PREDICT, ("manifest.json: schema version 99 is",)),
    "manifest with a path": Crafted(
        changes("manifest.json", files={"../secret.csv": ENTRY}),
        PREDICT,
        ("manifest.json: '../secret.csv' is outside the folder",),
    ),
}

# Pipes, links, missing files, and files that the manifest does not list.


def pipe(name: str) -> Craft:
    """Replace a file by a named pipe."""

    def craft(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return craft


def link(name: str) -> Craft:
    """Replace a file by a link to its content."""

    def craft(folder: Path) -> None:
        (folder / name).rename(folder / "elsewhere")
        (folder / name).symlink_to(folder / "elsewhere")

    return craft


def unlisted(name: str) -> Craft:
    """Delete the entry of a file in the manifest."""

    def craft(folder: Path) -> None:
        entries = json.loads((folder / "manifest.json").read_text())["files"]
        del entries[name]
        edit(folder / "manifest.json", files=entries)

    return craft


FILES: dict[str, Crafted] = {
    "pipe as labels.json": Crafted(pipe("labels.json"), EVALUATE, ("labels.json",)),
    "pipe as split.csv": Crafted(pipe("split.csv"), EVALUATE, ("split.csv",)),
    "pipe as model.safetensors": Crafted(pipe("model.safetensors"), EVALUATE, ("model.safetensors",)),
    "missing manifest": Crafted(lambda folder: (folder / "manifest.json").unlink(), PREDICT, ("manifest.json",)),
    "unlisted model": Crafted(
        unlisted("model.safetensors"), PREDICT, ("model.safetensors", "is not listed in manifest.json")
    ),
    "unlisted labels": Crafted(unlisted("labels.json"), PREDICT, ("labels.json", "is not listed in manifest.json")),
    "unlisted calibration": Crafted(
        unlisted("calibration.json"), PREDICT, ("calibration.json", "is not listed in manifest.json")
    ),
}

# Models.


def class_names(count: int) -> list[str]:
    return [f"class {number}" for number in range(count)]


def classes(count: int, hierarchy: dict[str, str] | None = None) -> Craft:
    """Replace the classes by this many others."""
    return changes("labels.json", names=class_names(count), counts=[1] * count, hierarchy=hierarchy)


def model(method: str, **settings: Any) -> Craft:
    """Replace the method of the model and its settings."""
    return changes("run.json", model={"method": method, "settings": settings})


def graph_of_many_classes(folder: Path) -> None:
    """Replace the method by one that has a graph of the classes, of which there are many."""
    classes(50_000)(folder)
    model("ml_gcn")(folder)


MODELS: dict[str, Crafted] = {
    "too many classes": Crafted(classes(200_000), PREDICT, ("labels.json: 200,000 classes; the limit is 100,000",)),
    "many classes": Crafted(classes(100_000), PREDICT, ("model.safetensors does not match", "linear.weight")),
    "long hierarchy": Crafted(
        classes(100_000, dict(pairwise(class_names(100_000)))), PREDICT, ("model.safetensors does not match",)
    ),
    "graph of many classes": Crafted(graph_of_many_classes, PREDICT, ("model.safetensors does not match",)),
    "huge image": Crafted(
        changes("preprocessing.json", size=30_000), PREDICT, ("preprocessing.json: size=30000 must be at most 4096",)
    ),
    "huge image of weights": Crafted(
        changes("preprocessing.json", size=10**6), START, ("preprocessing.json: size=1000000 must be at most 4096",)
    ),
    "image size of 20 digits": Crafted(
        changes("preprocessing.json", size=10**20), PREDICT, ("preprocessing.json: size",)
    ),
    "huge encoder": Crafted(
        change("config.json", "encoder.name", "vit_gigantic_patch14_clip_224"),
        PREDICT,
        ("model.safetensors does not match", "encoder.model"),
    ),
    "ml_gcn": Crafted(model("ml_gcn", hidden=10**7), PREDICT, ("run.json",)),
    "ml_decoder": Crafted(model("ml_decoder", groups=10**7), PREDICT, ("run.json",)),
    "kssnet": Crafted(model("kssnet", vector_size=10**9), PREDICT, ("run.json",)),
    "tdrg, width": Crafted(model("tdrg", width=10**7), PREDICT, ("run.json",)),
    "tdrg, layers": Crafted(model("tdrg", layers=10**7), PREDICT, ("run.json",)),
    "kmcl": Crafted(model("kmcl", hidden=[1] * 1_000_000), PREDICT, ("run.json: model: hidden has 1,000,000 values",)),
}


@cases(
    JSON,
    *("run.json", "config.json, settings", "calibration.json", "split.csv", "images.csv", "spec.json", "measured.json"),
    *("candidate's evaluation.json", "candidate's retrieval.json", "metrics.jsonl", "missing key", "unknown key"),
    *("text that looks like a call", "predictions that are a path", "surrogate in a name", "no classes of the run"),
    *("infinite number", "deep JSON", "huge JSON", "huge log", "newer version", "newer manifest"),
    "manifest with a path",
)
def test_crafted_json_is_refused_with_the_file_and_the_place(
    command: Commands, folder: Path, photos: Path, case: Crafted
) -> None:
    ended = check_refused(case, command, folder, photos)
    assert "--" not in ended.stderr.replace("--resume", "")  # text of a file is not taken for a call


@cases(FILES, *FILES)
def test_crafted_files_are_refused(command: Commands, folder: Path, photos: Path, case: Crafted) -> None:
    check_refused(case, command, folder, photos)


@cases(MODELS, "too many classes", "many classes", "graph of many classes", "huge image", "huge encoder", "ml_gcn")
def test_crafted_model_is_refused_before_it_is_allocated(
    command: Commands, folder: Path, photos: Path, case: Crafted
) -> None:
    check_refused(case, command, folder, photos)


@pytest.mark.parametrize("facts", ["[]", pytest.param('{"method": 5}', marks=pytest.mark.exhaustive)])
def test_crafted_checkpoint_is_computed_again(command: Commands, unfinished: Path, facts: str) -> None:
    text = json.dumps({"__metadata__": {"facts": facts}}).encode()
    (unfinished / "checkpoints" / "frozen.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    ended = command(*RESUME[:2], unfinished, *NO_REPORT, timeout=SECONDS)
    assert ended.code == 0, ended.text
    assert "frozen.safetensors" in ended.stdout
    assert "it is computed again" in ended.stdout


@pytest.mark.parametrize(
    "words",
    [["evaluate", "--draws", "0"], pytest.param(["calibrate"], marks=pytest.mark.exhaustive)],
    ids=lambda words: words[0],
)
def test_class_name_cannot_look_like_other_output(command: Commands, run: Path, words: list[str]) -> None:
    forged = "sky\nprobmcl: all is well"
    change("labels.json", "names.2", forged)(run)
    calibration = json.loads((run / "calibration.json").read_text())
    renamed = {forged if name == "sky" else name: fitted for name, fitted in calibration["classes"].items()}
    edit(run / "calibration.json", classes=renamed)
    relist(run)
    assert "\nprobmcl: " not in command(*words[:1], run, *words[1:]).text


# Comparisons.


def results(**values: Any) -> Craft:
    """Set keys of every result of a comparison."""

    def craft(folder: Path) -> None:
        path = folder / "results.jsonl"
        lines = []
        for line in path.read_text().splitlines():
            result = json.loads(line)
            lines.append(json.dumps({**result, **values}) + "\n")
        path.write_text("".join(lines))

    return craft


def added(craft: Craft, *texts: str) -> Crafted:
    """Return a case in which a changed comparison is added to another one."""
    return Crafted(craft, ADD, texts, "comparison")


RESULTS: dict[str, Crafted] = {
    "type": added(results(seed="x"), "results.jsonl, line 1: seed: expected int, got str"),
    "key": added(results(evil=1), "line 1: unknown key 'evil'"),
    "part": added(results(fingerprint={}), "line 1: fingerprint: missing"),
    "path": added(results(predictions="../a.npz"), "is outside the folder"),
    "absolute": added(results(predictions="/etc/passwd"), "is outside"),
    "deep": added(content("results.jsonl", '{"a":' * 100_000), "results.jsonl"),
    "pipe": added(pipe("results.jsonl"), "results.jsonl"),
    "link": added(link("results.jsonl"), "results.jsonl"),
}


@cases(RESULTS, "type", "path", "pipe")
def test_crafted_results_are_not_added(
    command: Commands, finished_comparison: Path, folder: Path, photos: Path, case: Crafted
) -> None:
    check_refused(case, command, folder, photos, finished=finished_comparison)
