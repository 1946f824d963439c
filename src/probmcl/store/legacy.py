"""Upgrades for runs and comparisons written by version 0.1. Only this module uses the old file names and keys.

Reading a run upgrades its content in memory and does not change the folder. Resuming a run renames and rewrites the
files. config.json is rewritten last, so an interrupted upgrade starts over.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from probmcl.errors import RunError
from probmcl.runtime.files import read_json, write_json
from probmcl.runtime.tensor_files import load_tensors, save_tensors

COMPARISON = "asked.json"

METHOD_SETTINGS: Mapping[str, str] = {
    "initialisation": "initialization",
    "neighbour_share": "neighbor_share",
    "normalise": "normalize",
    "regularised_share": "regularized_share",
}
"""Method settings that were spelled differently in 0.1."""

MODULES: Mapping[str, str] = {"optimiser": "optimizer", "regularisation": "regularization"}
"""Parts of tensor names that were spelled differently in 0.1."""


RUN_DEFAULTS: Mapping[str, Any] = {
    "command": [],
    "seed": 0,
    "versions": {},
    "commit": None,
    "started": "",
    "data": None,
    "records": "",
    "status": "running",
    "seconds": 0.0,
    "warnings": [],
    "candidates": [],
    "kept": None,
    "model": None,
}
"""Values of the keys that run.json may lack in older versions."""


@contextmanager
def _damage_explained(path: Path) -> Iterator[None]:
    """Turn the errors of converting content with missing keys or wrong types into `RunError`."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path} cannot be upgraded ({error!r}); the file is damaged or was edited") from error


def upgrade(path: Path, content: dict[str, Any], schema: int) -> dict[str, Any]:
    """Convert the content of one of a run's JSON files to the current schema version."""
    name = path.name
    upgrades = {"config.json": _upgrade_config, "run.json": _upgrade_run, "preprocessing.json": _upgrade_preprocessing}
    with _damage_explained(path):
        content = upgrades[name](content) if schema == 1 and name in upgrades else content
    return {**RUN_DEFAULTS, **content} if name == "run.json" else content


def upgrade_tensor_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors written by 0.1 under their current names.

    >>> upgrade_tensor_names({"optimiser.0.exp_avg": 1})
    {'optimizer.0.exp_avg': 1}
    """
    return {".".join(MODULES.get(part, part) for part in key.split(".")): value for key, value in tensors.items()}


def upgrade_spec(content: dict[str, Any]) -> dict[str, Any]:
    """Convert the content of a comparison's asked.json to the format of the current spec.json."""
    spec = _rename_keys(content["asked"], {"entrants": "methods", "everyone": "all_methods"})
    spec["settings"] = _upgrade_config(spec["settings"])
    unchanged = {"name": content["name"], "add": content["add"]}
    warnings = [_upgrade_warning(message) for message in content["alarms"]]
    return unchanged | {"source": _upgrade_source(content["data"]), "spec": spec, "warnings": warnings}


def upgrade_comparison(folder: Path, file: Path) -> None:
    """Upgrade the folder of a comparison written by 0.1 so that it can be resumed."""
    if not file.exists() and (folder / COMPARISON).exists():
        with _damage_explained(folder / COMPARISON):
            content = upgrade_spec(read_json(folder / COMPARISON))
        write_json(file, content)
        (folder / COMPARISON).unlink()


def upgrade_folder(folder: Path, schema: int) -> None:
    """Upgrade the folder of a run written by 0.1 so that it can be resumed."""
    checkpoints, model = folder / "checkpoints", folder / "model.safetensors"
    for path in sorted(checkpoints.glob("*.safetensors")):
        if path.stem.startswith("trained "):
            with _damage_explained(path):
                _write_outcome(path, {"seconds": load_tensors(path)[1]["seconds"], "error": None})
        _upgrade_tensors(path, path.with_name(f"{_state_key(path.stem)}.safetensors"))
    for path in sorted(checkpoints.glob("diverged *.json")):
        with _damage_explained(path):
            _write_outcome(path, {"seconds": 0.0, "error": read_json(path)["error"]})
        path.unlink()
    # Version 0.1 named cached activations after its progress bars. Recomputing them is safer than mapping old names.
    for path in (checkpoints / "activations").glob("*.*"):
        if path.suffix in (".npy", ".json"):
            path.unlink()
    for path in sorted((folder / "candidates").glob("*, *")):
        path.rename(path.with_name(_state_key(path.name)))
    if (checkpoints / "plan.json").exists():
        with _damage_explained(checkpoints / "plan.json"):
            plan = _upgrade_plan(read_json(checkpoints / "plan.json"))
        write_json(checkpoints / "plan.json", plan)
    if model.exists():
        _upgrade_tensors(model, model)
    for name in ("preprocessing.json", "run.json", "config.json"):
        if (folder / name).exists():
            content = upgrade(folder / name, read_json(folder / name), 1)
            write_json(folder / name, {**content, "schema": schema})


def _upgrade_tensors(old: Path, new: Path) -> None:
    tensors, metadata = load_tensors(old)
    renamed = upgrade_tensor_names(tensors)
    if old == new and renamed.keys() == tensors.keys():
        return
    if isinstance(metadata, dict) and isinstance(metadata.get("settings"), dict):
        metadata["settings"] = _rename_keys(metadata["settings"], METHOD_SETTINGS)
    save_tensors(new, renamed, metadata)
    if old != new:
        old.unlink()


def _write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    """Write the outcome of a training job, which 0.1 stored in files named `trained NAME` or `diverged NAME`."""
    job = _job_key(*_parse_job(path.stem.partition(" ")[2]))
    write_json(path.with_name(f"{job}.outcome.json"), outcome)


def _upgrade_plan(plan: dict[str, Any]) -> dict[str, Any]:
    if "said" not in plan:
        return plan
    epochs = {_job_key(*_parse_job(name)): n for name, n in plan["epochs"].items()}
    return {"epochs": epochs, "views": plan["views"], "messages": plan["said"]}


def _upgrade_config(config: dict[str, Any]) -> dict[str, Any]:
    if "contenders" not in config:
        return config
    jobs = []
    for job in config["contenders"]:
        name, trial = _parse_job(job["name"])
        jobs.append(job | {"name": name, "trial": trial, "settings": _rename_keys(job["settings"], METHOD_SETTINGS)})
    return _rename_keys(config, {"contenders": "jobs", "levels": "intensity"}) | {"jobs": jobs}


def _upgrade_run(metadata: dict[str, Any]) -> dict[str, Any]:
    if "warnings" in metadata:
        return metadata
    model = metadata.get("model")
    content = {key: value for key, value in metadata.items() if key != "alarms"}
    content["warnings"] = [_upgrade_warning(message) for message in metadata.get("alarms", [])]
    content["data"] = _upgrade_source(metadata.get("data"))
    content["candidates"] = [{**_parse_candidate(c["name"]), **c} for c in metadata.get("candidates", [])]
    return content | {"model": model and model | {"settings": _rename_keys(model["settings"], METHOD_SETTINGS)}}


def _upgrade_source(source: dict[str, Any] | None) -> dict[str, Any] | None:
    """Move the reading options into a dictionary; 0.1 stored them with the data, and one-element lists as text."""
    if source is None or "options" in source:
        return source
    other = ("data", "images", "skipped", "leaks_allowed")
    options = {key: value for key, value in _rename_keys(source, {"group_column": "group"}).items() if key not in other}
    for name in ("blank", "minus_one", "ignore"):
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    return {key: value for key, value in source.items() if key in other} | {"options": options}


def _upgrade_preprocessing(preprocessing: dict[str, Any]) -> dict[str, Any]:
    return _rename_keys(preprocessing, {"levels": "intensity"})


def _rename_keys(content: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in content.items()}


def _upgrade_warning(message: str) -> dict[str, str]:
    """Infer the kind of a warning from its text, which is all that 0.1 stored."""
    kinds = {" is left out: ": "diverged", "collapsed: ": "collapse", "-allow-leaks:": "leak"}
    kinds |= {" were trained on in ": "seen_before"}
    kind = next((kind for phrase, kind in kinds.items() if phrase in message), "collapse")
    return {"kind": kind, "message": message}


def _parse_job(name: str) -> tuple[str, int]:
    """Return the method and trial of a job, given its name in 0.1, such as `bce` or `bce, trial 2`."""
    match = re.fullmatch(r"(.*), trial (\d+)", name)
    return (match[1], int(match[2])) if match else (name, 1)


def _job_key(name: str, trial: int) -> str:
    return name if trial == 1 else f"{name}.trial{trial}"


def _parse_candidate(name: str) -> dict[str, Any]:
    """Return the parts of a candidate's name, such as `frozen probe` or `bce, trial 2, re-probed`."""
    job, _, head = ("", "", "frozen") if name == "frozen probe" else name.rpartition(", ")
    method, trial = _parse_job(job)
    return {"method": method, "trial": trial, "head": head}


def _state_key(stem: str) -> str:
    """Return the current key of a checkpoint, given the stem of its file name in 0.1.

    >>> _state_key("frozen probe"), _state_key("bce, trial 2, own head"), _state_key("training bce")
    ('frozen', 'bce.trial2.own_head', 'bce.training')
    """
    word, _, name = stem.partition(" ")
    if word in ("trained", "training"):
        return f"{_job_key(*_parse_job(name))}.{word}"
    if ", " not in stem:
        return "frozen" if stem == "frozen probe" else stem
    job, _, head = stem.rpartition(", ")
    return f"{_job_key(*_parse_job(job))}.{head.replace(' ', '_').replace('-', '_')}"
