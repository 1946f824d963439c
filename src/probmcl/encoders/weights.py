"""Encoder weights from a file, a run folder, the local cache or the Hugging Face hub."""

import http.client
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from huggingface_hub import constants, hf_hub_download, hf_hub_url, try_to_load_from_cache
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from probmcl.errors import WeightsError
from probmcl.runtime import torchvision_compat  # noqa: F401  # before timm, which imports torchvision
from probmcl.runtime.tensor_files import refuse_non_finite
from probmcl.store.files import MODEL

import timm  # isort: skip

HUB_TIMEOUT = 4.0
"""Seconds after which the hub is considered unreachable."""


def pretrained(name: str, cfg: dict[str, Any], size: dict[str, Any]) -> Any:
    """Return a model with timm's weights for its name and tag.

    Args:
        name: name of the model, with or without a tag.
        cfg: timm's configuration of the pretrained model.
        size: arguments of `timm.create_model` for the image size; may be empty.
    """
    path = _fetch(name, cfg)
    # `custom_load` refers to the original weights; the file on the hub has PyTorch's layout.
    overlay = {"file": str(path), "custom_load": False}
    try:
        return timm.create_model(name, pretrained=True, num_classes=0, pretrained_cfg_overlay=overlay, **size)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read ({error}); delete the file to download it again") from error


def load_weights(model: nn.Module, path: Path, cfg: dict[str, Any]) -> None:
    """Load the weights of a model from a run folder, or from a safetensors file with timm's parameter names.

    Args:
        model: timm's model without its classifier.
        path: the run folder or the file.
        cfg: timm's configuration of the pretrained model.
    """
    file = path / MODEL if path.is_dir() else path
    state = _read_encoder_weights(file, cfg)
    _refuse_other_shapes(model, state, file, cfg)
    refuse_non_finite(file, state)
    model.load_state_dict(state, strict=True)


def _read_encoder_weights(file: Path, cfg: dict[str, Any]) -> dict[str, Tensor]:
    """Read the weights of an encoder under timm's names, without those of a head or a classifier."""
    try:
        state = load_file(file)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{file}: cannot be read ({error}); expected a safetensors file or a run folder") from error
    prefix_in_run = "encoder.model."  # the file of a run also contains the head
    if file.name == MODEL.name and any(key.startswith(prefix_in_run) for key in state):
        state = {
            key.removeprefix(prefix_in_run): value for key, value in state.items() if key.startswith(prefix_in_run)
        }
    classifiers = cfg["classifier"] or ()  # the name of the classifier, or several names
    if isinstance(classifiers, str):
        classifiers = (classifiers,)
    classifier_prefixes = tuple(f"{name}." for name in classifiers)
    return {key: value for key, value in state.items() if not key.startswith(classifier_prefixes)}


def _refuse_other_shapes(model: nn.Module, state: dict[str, Tensor], file: Path, cfg: dict[str, Any]) -> None:
    """Raise `WeightsError` if the names or shapes of the tensors differ from those of the model."""
    expected_shapes = {key: value.shape for key, value in model.state_dict().items()}
    shapes = {key: value.shape for key, value in state.items()}
    all_names = expected_shapes.keys() | shapes.keys()
    differing = sorted(name for name in all_names if expected_shapes.get(name) != shapes.get(name))
    if not differing:
        return
    are, have = ("is", "has") if len(differing) == 1 else ("are", "have")
    first_names = ", ".join(differing[:3])
    raise WeightsError(
        f"{file}: the weights do not fit {cfg['architecture']}: {len(differing)} of {len(expected_shapes)} tensors "
        f"{are} missing, unexpected or {have} a different shape ({first_names} …); use weights for this "
        "model at this image size"
    )


def _fetch(name: str, cfg: dict[str, Any]) -> Path:
    """Return the file with timm's weights of a model: from the local cache, or downloaded from the hub."""
    repository = cfg["hf_hub_id"]
    file = cfg["hf_hub_filename"] or "model.safetensors"
    if not repository:
        raise WeightsError(f"timm has no downloadable weights for {name}; choose a tag or use a safetensors file")
    cached = try_to_load_from_cache(repository, file)
    if isinstance(cached, str):
        return Path(cached)
    remedy = 'use a safetensors file (`weights=FILE`) or a random initialization (`weights="none"`)'
    if constants.HF_HUB_OFFLINE:
        raise WeightsError(f"{name}: the weights are not in the local cache and HF_HUB_OFFLINE is set; {remedy}")
    if not is_reachable(hf_hub_url(repository, file)):
        raise WeightsError(f"{name}: the weights are not in the local cache and the hub cannot be reached; {remedy}")
    try:
        return Path(hf_hub_download(repository, file))
    except OSError as error:
        raise WeightsError(f"{name}: the hub does not provide the weights ({error}); {remedy}") from error


def is_reachable(address: str) -> bool:
    """Return True if the server responds within `HUB_TIMEOUT` seconds, including the DNS lookup."""
    responses: list[bool] = []

    def request() -> None:
        """Add whether the server is available."""
        try:
            head_request = urllib.request.Request(address, method="HEAD")
            with urllib.request.urlopen(head_request, timeout=HUB_TIMEOUT):
                responses.append(True)
        except urllib.error.HTTPError as error:
            error.close()
            # 5xx and 429 count as unreachable, because the download would retry for half a minute.
            responses.append(error.code < 500 and error.code != 429)
        except (OSError, http.client.HTTPException, ValueError):
            responses.append(False)

    # The timeout of `urlopen` does not include the DNS lookup, so a thread makes the request.
    thread = threading.Thread(target=request, daemon=True)
    thread.start()
    thread.join(HUB_TIMEOUT)
    return responses == [True]
