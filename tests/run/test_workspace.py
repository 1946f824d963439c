"""The encoder in two parts, and the initial weights of methods."""

from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console as RichConsole

from helpers.evaluations import split_metrics
from helpers.run_folders import made_run
from probmcl.console import Console
from probmcl.data.records import Records
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.methods import find_method
from probmcl.methods.base import LinearClassifier
from probmcl.run.activation_cache import ActivationCache, ImageBatchSource
from probmcl.run.results import FROZEN_PROBE, Candidate
from probmcl.run.workspace import Backbone, Workspace, warm_start
from probmcl.runtime.tensor_files import load_tensors
from probmcl.settings import EncoderSettings, Settings, Tune
from probmcl.store.files import MODEL

NAMES = ("blue", "violet", "red")
FEATURES = 96


def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder("test_resnet", image_size=32)


def opened(folder: Path, tune: Tune, weights: str | None = None) -> tuple[Workspace, StringIO]:
    """Open the workspace of a run, and return what it prints."""
    paths = [folder / f"{number}.jpg" for number in range(4)]
    labels = np.eye(4, 3, dtype=np.float32)
    records = Records.from_labels(NAMES, paths, ["train", "train", "val", "test"], labels)
    start = EncoderSettings("test_resnet", weights=weights, image_size=32)
    settings = Settings("bce", (), start, tune=tune, workers=0, device="cpu")
    printed = StringIO()
    console = Console(RichConsole(file=printed, width=300))
    return Workspace.open(records, settings, encoder(), folder / "checkpoints", console), printed


def frozen_probe() -> Candidate:
    layer = {"linear.weight": torch.full((3, FEATURES), 0.5), "linear.bias": torch.arange(3.0)}
    scores = np.eye(3, dtype=np.float32)
    metrics = split_metrics(scores, scores)
    return Candidate(FROZEN_PROBE, "probe", None, layer, {"val": torch.from_numpy(scores)}, metrics, 0.0)


def linear_method(workspace: Workspace, name: str = "bce") -> LinearClassifier:
    method = workspace.backbone.build(name, None, workspace.records.label_space)
    assert isinstance(method, LinearClassifier)
    return method


def started(workspace: Workspace) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the weight and the bias of the linear layer of a method before and after its warm start."""
    method = linear_method(workspace)
    before = [value.detach().clone() for value in method.linear.parameters()]
    warm_start(method, workspace, frozen_probe())
    weight, bias = method.linear.parameters()
    return before[0], before[1], weight, bias


def test_a_layer_on_a_pretrained_encoder_that_is_tuned_starts_as_the_frozen_probe(tmp_path: Path) -> None:
    workspace, printed = opened(tmp_path, "all", "pretrained")
    _, _, weight, bias = started(workspace)
    assert torch.equal(weight, frozen_probe().state["linear.weight"])
    assert torch.equal(bias, frozen_probe().state["linear.bias"])
    assert printed.getvalue() == ""


@pytest.mark.parametrize(("tune", "weights"), [("all", None), ("last", "pretrained"), ("none", "pretrained")])
def test_other_layers_start_with_random_weights(tmp_path: Path, tune: Tune, weights: str | None) -> None:
    workspace, printed = opened(tmp_path, tune, weights)
    weight_before, bias_before, weight, bias = started(workspace)
    assert torch.equal(weight, weight_before)
    assert torch.equal(bias, bias_before)
    assert printed.getvalue() == ""


def test_rows_of_an_earlier_run_are_copied_by_class_name(tmp_path: Path) -> None:
    made_run(tmp_path / "earlier", names=("green", "red", "blue"))
    earlier, _ = load_tensors(tmp_path / "earlier" / MODEL)
    workspace, printed = opened(tmp_path, "none", str(tmp_path / "earlier"))
    weight_before, bias_before, weight, bias = started(workspace)
    blue, violet, red = range(3)
    assert torch.equal(weight[[red, blue]], earlier["linear.weight"][[1, 2]])
    assert torch.equal(bias[[red, blue]], earlier["linear.bias"][[1, 2]])
    assert torch.equal(weight[violet], weight_before[violet])
    assert torch.equal(bias[violet], bias_before[violet])
    assert "2 of 3; new: violet; not used: green" in printed.getvalue()


def test_the_common_classes_are_printed_although_the_frozen_probe_is_copied(tmp_path: Path) -> None:
    made_run(tmp_path / "earlier", names=NAMES)
    workspace, printed = opened(tmp_path, "all", str(tmp_path / "earlier"))
    _, _, weight, _ = started(workspace)
    assert torch.equal(weight, frozen_probe().state["linear.weight"])
    assert "3 of 3; new: none; not used: none" in printed.getvalue()


def test_only_a_linear_layer_is_initialized(tmp_path: Path) -> None:
    workspace, _ = opened(tmp_path, "all", "pretrained")
    method = workspace.backbone.build("probmcl", None, workspace.records.label_space)
    before = {name: value.clone() for name, value in method.state_dict().items()}
    warm_start(method, workspace, frozen_probe())
    assert all(torch.equal(value, before[name]) for name, value in method.state_dict().items())


@pytest.mark.parametrize("tune", ["all", "last", "none"])
def test_a_classifier_is_restored_from_its_full_state(tmp_path: Path, tune: Tune) -> None:
    workspace, _ = opened(tmp_path, tune)
    backbone, label_space = workspace.backbone, workspace.records.label_space
    method = linear_method(workspace)
    with torch.no_grad():
        for parameter in method.parameters():
            parameter.add_(1)
    state = backbone.full_state(method)
    complete = find_method("bce")(encoder(), label_space, None).state_dict()
    assert state.keys() == complete.keys()
    candidate = replace(frozen_probe(), method="bce", state=state)
    restored = backbone.classifier(candidate, label_space).state_dict()
    assert all(torch.equal(value, method.state_dict()[name]) for name, value in restored.items())


def test_an_encoder_is_divided_as_the_settings_ask(tmp_path: Path) -> None:
    whole, _ = opened(tmp_path, "all")
    assert whole.backbone.trunk is None
    assert isinstance(whole.batches, ImageBatchSource)
    last, _ = opened(tmp_path, "last")
    assert last.backbone.tail is not last.backbone.encoder
    assert isinstance(last.batches, ActivationCache)
    assert last.batches.dtype is torch.float16
    none, _ = opened(tmp_path, "none")
    assert isinstance(none.backbone.tail, PrecomputedFeatures)
    assert isinstance(none.batches, ActivationCache)
    assert none.batches.dtype is torch.float32
    whole_transformer = Backbone.divide(Encoder("test_vit", image_size=32), "last")
    assert (whole_transformer.trunk, whole_transformer.tune) == (None, "all")
