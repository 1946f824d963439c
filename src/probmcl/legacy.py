"""Run folders and comparisons of version 0.1: the only place that knows their file names and keys.

Reading maps the content in memory and leaves the folder alone. Resuming renames the files once, config.json last, so
that an interrupted upgrade is repeated.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probmcl.files import load_tensors, read_json, save_tensors, write_json

COMPARISON = "asked.json"

METHOD_SETTINGS: Mapping[str, str] = {
    "initialisation": "initialization",
    "neighbour_share": "neighbor_share",
    "normalise": "normalize",
    "regularised_share": "regularized_share",
}
"""Settings of methods that were spelled differently."""

MODULES: Mapping[str, str] = {"optimiser": "optimizer", "regularisation": "regularization"}
"""Parts of the names of tensors that were spelled differently."""


def upgrade(name: str, content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file of a run in the form of the current schema version."""
    upgrades = {"config.json": _config, "run.json": _metadata, "preprocessing.json": _preprocessing}
    return upgrades[name](content) if name in upgrades else content


def upgrade_tensor_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return tensors of 0.1 under their current names.

    >>> upgrade_tensor_names({"optimiser.0.exp_avg": 1})
    {'optimizer.0.exp_avg': 1}
    """
    return {".".join(MODULES.get(part, part) for part in key.split(".")): value for key, value in tensors.items()}


def upgrade_spec(content: dict[str, Any]) -> dict[str, Any]:
    """Return the asked.json of a comparison as the current spec.json."""
    spec = dict(content["asked"])
    spec["methods"] = spec.pop("entrants")
    spec["all_methods"] = spec.pop("everyone")
    spec["settings"] = _config(spec["settings"])
    warnings = [_warning(message) for message in content["alarms"]]
    return {
        "source": _source(content["data"]),
        "name": content["name"],
        "spec": spec,
        "warnings": warnings,
        "add": content["add"],
    }


def upgrade_comparison(folder: Path, file: Path) -> None:
    """Bring a comparison of 0.1 to the current form, so that it can be resumed."""
    if not file.exists() and (folder / COMPARISON).exists():
        write_json(file, upgrade_spec(read_json(folder / COMPARISON)))
        (folder / COMPARISON).unlink()


def upgrade_folder(folder: Path, schema: int) -> None:
    """Rename the files of a run of 0.1 and rewrite their content, so that it can be resumed."""
    for path in sorted((folder / "checkpoints").glob("*.safetensors")):
        if path.stem.startswith("trained "):
            _, facts = load_tensors(path)
            _write_outcome(path, {"seconds": facts["seconds"], "error": None})
        _upgrade_tensors(path, path.with_name(f"{_state_key(path.stem)}.safetensors"))
    for path in sorted((folder / "checkpoints").glob("diverged *.json")):
        _write_outcome(path, {"seconds": 0.0, "error": read_json(path)["error"]})
        path.unlink()
    # Filled activations would have to be found under the names of progress bars; computing them again is safer.
    shutil.rmtree(folder / "checkpoints" / "activations", ignore_errors=True)
    for path in sorted((folder / "candidates").glob("*, *")):
        path.rename(path.with_name(_state_key(path.name)))
    if (folder / "checkpoints" / "plan.json").exists():
        plan = read_json(folder / "checkpoints" / "plan.json")
        write_json(folder / "checkpoints" / "plan.json", _plan(plan))
    if (folder / "model.safetensors").exists():
        _upgrade_tensors(folder / "model.safetensors", folder / "model.safetensors")
    for name in ("preprocessing.json", "run.json", "config.json"):
        if (folder / name).exists():
            content = upgrade(name, read_json(folder / name))
            write_json(folder / name, content | ({"schema": schema} if name == "config.json" else {}))


def _upgrade_tensors(old: Path, new: Path) -> None:
    tensors, metadata = load_tensors(old)
    renamed = upgrade_tensor_names(tensors)
    if old != new or renamed.keys() != tensors.keys():
        save_tensors(new, renamed, _upgrade_settings_in(metadata))
    if old != new:
        old.unlink()


def _write_outcome(path: Path, outcome: dict[str, Any]) -> None:
    """Write how a training ended, which 0.1 stored in files named `trained NAME` or `diverged NAME`."""
    job = _key(*_job(path.stem.partition(" ")[2]))
    write_json(path.with_name(f"{job}.outcome.json"), outcome)


def _upgrade_settings_in(metadata: Any) -> Any:
    if isinstance(metadata, dict) and isinstance(metadata.get("settings"), dict):
        return metadata | {"settings": _method_settings(metadata["settings"])}
    return metadata


def _plan(plan: dict[str, Any]) -> dict[str, Any]:
    if "said" not in plan:
        return plan
    return {"epochs": {_key(*_job(name)): n for name, n in plan["epochs"].items()}, "views": plan["views"]} | {
        "messages": plan["said"]
    }


def _config(config: dict[str, Any]) -> dict[str, Any]:
    if "contenders" not in config:
        return config
    jobs = []
    for job in config["contenders"]:
        name, trial = _job(job["name"])
        jobs.append(job | {"name": name, "trial": trial, "settings": _method_settings(job["settings"])})
    renamed = {"contenders": "jobs", "levels": "intensity"}
    return {renamed.get(key, key): value for key, value in config.items()} | {"jobs": jobs}


def _metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    if "warnings" in metadata:
        return metadata
    model = metadata.get("model")
    content = {key: value for key, value in metadata.items() if key != "alarms"}
    content["warnings"] = [_warning(message) for message in metadata.get("alarms", [])]
    content["data"] = _source(metadata.get("data"))
    content["candidates"] = [{**_candidate(c["name"]), **c} for c in metadata.get("candidates", [])]
    return content | {"model": model and model | {"settings": _method_settings(model["settings"])}}


def _source(source: dict[str, Any] | None) -> dict[str, Any] | None:
    """0.1 stored the reading options next to the data, lists of one as text, and the group under another name."""
    if source is None or "options" in source:
        return source
    other = ("data", "images", "skipped", "leaks_allowed")
    options = {"group" if key == "group_column" else key: value for key, value in source.items() if key not in other}
    for name in ("blank", "minus_one", "ignore"):
        if isinstance(options.get(name), str):
            options[name] = [options[name]]
    return {key: value for key, value in source.items() if key in other} | {"options": options}


def _preprocessing(preprocessing: dict[str, Any]) -> dict[str, Any]:
    return {"intensity" if key == "levels" else key: value for key, value in preprocessing.items()}


def _method_settings(settings: dict[str, Any]) -> dict[str, Any]:
    return {METHOD_SETTINGS.get(key, key): value for key, value in settings.items()}


def _warning(message: str) -> dict[str, str]:
    """0.1 stored sentences; what they are about follows from their words."""
    kinds = {
        " is left out: ": "diverged",
        "collapsed: ": "collapse",
        "-allow-leaks:": "leak",
        " were trained on in ": "seen_before",
    }
    kind = next((kind for words, kind in kinds.items() if words in message), "collapse")
    return {"kind": kind, "message": message}


def _job(name: str) -> tuple[str, int]:
    """Return the method and the trial that a name of 0.1 stands for: `bce`, `bce, trial 2`."""
    found = re.fullmatch(r"(.*), trial (\d+)", name)
    return (found[1], int(found[2])) if found else (name, 1)


def _key(name: str, trial: int) -> str:
    return name if trial == 1 else f"{name}.trial{trial}"


def _candidate(name: str) -> dict[str, Any]:
    """Return the parts of a candidate's name: `frozen probe`, `bce, own head`, `bce, trial 2, re-probed`."""
    if name == "frozen probe":
        return {"method": "", "trial": 1, "head": "frozen"}
    job, _, head = name.rpartition(", ")
    method, trial = _job(job)
    return {"method": method, "trial": trial, "head": head}


def _state_key(stem: str) -> str:
    """Return the current key of a state file of 0.1, which was named in words.

    >>> _state_key("frozen probe"), _state_key("bce, trial 2, own head"), _state_key("training bce")
    ('frozen', 'bce.trial2.own_head', 'bce.training')
    """
    for word in ("trained", "training"):
        if stem.startswith(f"{word} "):
            return f"{_key(*_job(stem.removeprefix(f'{word} ')))}.{word}"
    if stem != "frozen probe" and ", " not in stem:
        return stem
    candidate = _candidate(stem)
    if candidate["head"] == "frozen":
        return "frozen"
    head = candidate["head"].replace(" ", "_").replace("-", "_")
    return f"{_key(candidate['method'], candidate['trial'])}.{head}"
