"""The settings of runs and comparisons, from the options of `train` and `compare` and from recipes.

Invalid options raise an error here, before any images are read. Importing this module does not import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmcl.errors import OptionError, ProbmclError, SettingsError, keyword, suggestion
from probmcl.readers.options import DataChecks
from probmcl.store import files
from probmcl.store.run_folder import RunFolder

if TYPE_CHECKING:
    from probmcl.audit.prepare import PreparedData
    from probmcl.experiments.protocol import ComparisonSpec
    from probmcl.settings import MethodSpec, Settings, ValueOrigin

NAMED_WEIGHTS = ("pretrained", "none")

UNNAMED = "files that only a run folder names are not read"

Options = dict[str, Any]
"""The options of a function by name; None for an option that is not set."""


def run_settings(options: Options) -> Settings:
    """Build the settings of a run from the options of `train` and the recipe."""
    from probmcl.settings import find_recipe, make_settings, read_recipe

    keys = _shared_keys(options)
    keys |= drop_none({name: options[name] for name in ("preset", "budget", "seed", "calibration", "thresholds")})
    keys |= drop_none({"neighbors": options["neighbors"]})
    training = {"epochs": options["epochs"], "batch_size": options["batch_size"], "learning_rate": options["lr"]}
    method, changes = _method_or_loss(options["method"], options["loss"]), dict(options.get("settings") or {})
    keys |= drop_none({"method": method, "settings": changes, "training": drop_none(training)})
    recipe = read_recipe(find_recipe(options["recipe"])) if options["recipe"] else {}
    return make_settings(*_merge(recipe, keys))


def comparison_spec(options: Options) -> ComparisonSpec:
    """Build the specification of a comparison from the options of `compare`."""
    from probmcl.encoders import describe_encoder
    from probmcl.experiments.protocol import TRIALS, ComparisonSpec, parse_methods
    from probmcl.settings import make_settings, parse_duration

    numbers = drop_none({name: options[name] for name in ("seeds", "trials", "epochs", "batch_size")})
    for name, number in numbers.items():
        if number < 1:
            raise OptionError(name, number, "must be at least 1")
    if numbers.get("trials", 1) > len(TRIALS):
        raise OptionError("trials", numbers["trials"], f"must be at most {len(TRIALS)}")
    if options["budget"] is not None and "epochs" in numbers:
        raise SettingsError("`budget` and `epochs` cannot be combined: a budget determines the number of epochs")
    merged, origins = _merge({}, _shared_keys(options))
    settings = replace(make_settings(merged | {"method": "probe"}, origins), method="comparison")
    settings = replace(settings, neighbors=False)  # the runs of a comparison are only scored
    settings = replace(settings, probe=replace(settings.probe, frozen_views=settings.probe.views))
    describe_encoder(settings.encoder.name)
    names = method_names("all" if options["methods"] is None else options["methods"])
    length = {"epochs": 6} if options["budget"] is None else {"budget": parse_duration(options["budget"])}
    return ComparisonSpec(settings, parse_methods(names), all_methods="all" in names, **(length | numbers))


def with_intensity(settings: Settings, prepared: PreparedData, checks: DataChecks) -> Settings:
    """Return the settings with the intensity range of the images."""
    origin: ValueOrigin = "auto" if checks.range == "auto" else "user"
    return replace(settings, intensity=prepared.intensity, origins={**settings.origins, "intensity": origin})


def resumed_settings(settings: Settings, options: Options) -> Settings:
    """Return the stored settings of a run or comparison with the `device`, `workers` and `cache` of this call."""
    from probmcl.runtime.machine import default_workers, find_device

    _refuse_unnamed_files(settings, options)
    device = find_device(options["device"] or settings.device)
    # A stranger's run can neither start many processes nor name a folder to write to. Results do not depend on them.
    workers = min(settings.workers, default_workers()) if options["workers"] is None else options["workers"]
    return replace(settings, device=device, workers=workers, cache=_cache_folder(options["cache"]))


def _refuse_unnamed_files(settings: Settings, options: Options) -> None:
    """Raise an error if a run names a file that the user has not named in this call; only data may be read again."""
    from probmcl.methods import find_method

    weights = settings.encoder.weights
    if weights not in (None, *NAMED_WEIGHTS) and _weights(options["weights"]) != weights:
        raise ProbmclError(
            f"the run starts from the weights {weights}, but {UNNAMED}; add {keyword('weights', weights)}"
        )
    for job in settings.jobs:
        for name in find_method(job.method).files:
            file = getattr(job.settings, name)
            if file is not None and (options.get("settings") or {}).get(name) != file:
                example = keyword("settings", f"{name}={file}")
                raise ProbmclError(f"the run uses {name} from {file}, but {UNNAMED}; add {example}")


def named_files(settings: Settings) -> dict[str, Any]:
    """Return the options of a run that name code and files other than data; resuming it requires them again."""
    from probmcl.methods import METHODS, find_method

    weights = settings.encoder.weights
    losses = [job.method for job in settings.jobs if job.method not in METHODS]
    files = {name: getattr(job.settings, name) for job in settings.jobs for name in find_method(job.method).files}
    named = {"weights": None if weights in NAMED_WEIGHTS else weights, "loss": losses[0] if losses else None}
    return drop_none(named | {"settings": drop_none(files)})


def named_methods(methods: Sequence[MethodSpec]) -> dict[str, Any]:
    """Return the option of a comparison with all its methods if one of them is not part of this package."""
    from probmcl.methods import METHODS

    names = [spec.name if spec.method in METHODS else spec.method for spec in methods]
    return {"methods": names} if any(spec.method not in METHODS for spec in methods) else {}


def _shared_keys(options: Options) -> dict[str, Any]:
    """Return the settings that `train` and `compare` have in common."""
    keys = {name: options[name] for name in ("tune", "augment", "device", "workers")}
    encoder = {"name": options["encoder"], "image_size": options["image_size"], "weights": _weights(options["weights"])}
    probe, cache = {"epochs": options["probe_epochs"]}, _cache_folder(options["cache"])
    return drop_none(keys | {"encoder": drop_none(encoder), "probe": drop_none(probe), "cache": cache})


def _cache_folder(cache: Path | str | None) -> str | None:
    from probmcl.data.cache import default_folder

    if cache is None:
        return None
    return str(default_folder() if str(cache) == "auto" else Path(cache).resolve())


def _merge(recipe: dict[str, Any], keys: dict[str, Any]) -> tuple[dict[str, Any], dict[str, ValueOrigin]]:
    """Return a recipe updated with options, and where each value came from; nested tables are merged key by key."""
    from probmcl.runtime.machine import default_workers
    from probmcl.settings import option_keys

    derived: dict[str, Any] = {"workers": default_workers()}
    earlier = RunFolder(Path(str(keys.get("encoder", {}).get("weights"))))
    if earlier.has(files.CONFIG):  # default to the encoder of the run that the weights come from
        from probmcl.data.images import PREPROCESSING_FILE
        from probmcl.settings import CONFIG_FILE

        earlier.read(files.LABELS)  # raises an error before anything is computed
        size = earlier.read(PREPROCESSING_FILE).size
        derived["encoder"] = {"name": earlier.read(CONFIG_FILE).encoder.name, "image_size": size}
    layers: dict[ValueOrigin, dict[str, Any]] = {"auto": derived, "recipe": recipe, "user": keys}
    merged: dict[str, Any] = {}
    origins: dict[str, ValueOrigin] = {}
    for origin, layer in layers.items():
        origins |= dict.fromkeys(option_keys(layer), origin)
        for key, value in layer.items():
            tables = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = merged[key] | value if tables else value
    return merged, origins


def _method_or_loss(method: str | None, loss: str | None) -> str | None:
    if loss is None:
        return method
    if method is not None:
        raise OptionError("method", method, f"cannot be combined with {keyword('loss', loss)}")
    if not loss.partition(":")[0].endswith(".py"):
        raise OptionError("loss", loss, 'must be FILE.py:FUNCTION, as in `loss="my_losses.py:my_loss"`')
    return loss


def _weights(weights: Path | str | None) -> str | None:
    if weights is None or str(weights) in NAMED_WEIGHTS:
        return None if weights is None else str(weights)
    if not Path(weights).exists():
        raise OptionError("weights", weights, f"does not exist; {suggestion(str(weights), NAMED_WEIGHTS)}")
    if Path(weights).is_dir():
        RunFolder.existing(weights)  # refuses a run with damaged files
    return str(Path(weights).resolve())


def method_names(methods: Sequence[str] | str) -> list[str]:
    """Return the names in a list or in a comma-separated text."""
    if isinstance(methods, str):
        return [part.strip() for part in methods.split(",") if part.strip()]
    return list(methods)


def drop_none(options: Options) -> dict[str, Any]:
    """Return the options that are neither None nor an empty table."""
    return {name: value for name, value in options.items() if value is not None and value != {}}
