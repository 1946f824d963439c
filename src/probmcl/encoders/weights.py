"""Weights of an encoder: from a file, a run, the local cache or the model hub."""

import http.client
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from probmcl.errors import WeightsError
from probmcl.run_folder import MODEL
from probmcl.runtime import torchvision_compat  # noqa: F401  # before timm, which imports torchvision

import timm  # isort: skip

HUB_TIMEOUT = 4.0
"""Seconds to wait for the model hub before it counts as unreachable."""


def pretrained(name: str, cfg: dict[str, Any], size: dict[str, Any]) -> Any:
    """Return a model with timm's weights for its name and tag."""
    path = _fetch(name, cfg)
    # The hub's file has torch's layout even if `custom_load` is set for the original weights.
    overlay = {"file": str(path), "custom_load": False}
    try:
        return timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay, **size)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}); delete it to have it downloaded again") from error


def load(model: nn.Module, path: Path, cfg: dict[str, Any]) -> None:
    """Load the weights of a model from a safetensors file in timm's own keys, or from a run folder."""
    path = path / MODEL if path.is_dir() else path
    try:
        state = load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}); give a whole safetensors file, or a run") from error
    within = "encoder.model."  # in the file of a run, which also contains the head
    if path.name == MODEL and any(key.startswith(within) for key in state):
        state = {key.removeprefix(within): value for key, value in state.items() if key.startswith(within)}
    head = cfg["classifier"] or ()  # the encoder does not have this layer
    heads = tuple(f"{name}." for name in ((head,) if isinstance(head, str) else head))
    state = {key: value for key, value in state.items() if not key.startswith(heads)}
    wanted = {key: value.shape for key, value in model.state_dict().items()}
    differing = sorted(
        key for key in wanted.keys() | state.keys() if key not in state or wanted.get(key) != state[key].shape
    )
    if differing:
        raise WeightsError(
            f"{path}: these weights do not fit {cfg['architecture']}: {len(differing)} of {len(wanted)} tensors are "
            f"missing, unexpected or of another shape ({', '.join(differing[:3])} …); give a file made from this model "
            "at this image size"
        )
    model.load_state_dict(state, strict=True)


def _fetch(name: str, cfg: dict[str, Any]) -> Path:
    repository, file = cfg["hf_hub_id"], cfg["hf_hub_filename"] or "model.safetensors"
    if not repository:
        raise WeightsError(f"timm has no downloadable weights for {name}; choose a tag, or give a safetensors file")
    cached = try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return Path(cached)
    remedy = "give a safetensors file (`weights=FILE`), or start from random numbers (`weights=none`)"
    if constants.HF_HUB_OFFLINE:
        raise WeightsError(f"{name}: the weights are not in the local cache and HF_HUB_OFFLINE is set; {remedy}")
    if not is_reachable(hf_hub_url(repository, file)):
        raise WeightsError(f"{name}: the weights are not in the local cache and the hub cannot be reached; {remedy}")
    try:
        return Path(hf_hub_download(repository, file))
    except OSError as error:
        raise WeightsError(f"{name}: the hub does not provide the weights ({error}); {remedy}") from error


def is_reachable(address: str) -> bool:
    """True if the server answers within `HUB_TIMEOUT` seconds; a name server that hangs counts as no answer."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(urllib.request.Request(address, method="HEAD"), timeout=HUB_TIMEOUT):
                answers.append(True)
        except urllib.error.HTTPError as error:
            error.close()
            # A refusal is an answer; "try again later" is not, since the download would retry for half a minute.
            answers.append(error.code < 500 and error.code != 429)
        except (OSError, http.client.HTTPException, ValueError):
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    return answers == [True]
