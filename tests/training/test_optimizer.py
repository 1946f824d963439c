import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.methods.bce import BCE
from probmcl.methods.probe import Probe
from probmcl.training.optimizer import EMA, Training, build_optimizer, one_cycle


def test_only_matrices_decay_and_the_head_has_a_separate_rate() -> None:
    method = BCE(Encoder("test_resnet"), label_space())
    optimizer = build_optimizer(method, Training(learning_rate=1e-3, head_factor=3.0, weight_decay=0.1))
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    assert len(group_of) == len(list(method.parameters()))
    for name, p in method.named_parameters():
        group = group_of[id(p)]
        assert group["weight_decay"] == (0.1 if p.ndim > 1 else 0.0), name
        assert group["lr"] == pytest.approx(1e-3 if name.startswith("encoder") else 3e-3), name


def test_decay_setting_selects_the_optimizer() -> None:
    method = BCE(PrecomputedFeatures(4), label_space())
    assert type(build_optimizer(method, Training(decay="l2"))) is Adam
    assert type(build_optimizer(method, Training(decay="decoupled"))) is AdamW


def test_frozen_parameters_are_left_out() -> None:
    probe = Probe(Encoder("test_resnet"), label_space())
    assert sum(len(group["params"]) for group in build_optimizer(probe, Training()).param_groups) == 2
    probe.linear.requires_grad_(False)
    with pytest.raises(ValueError, match="Probe has no trainable parameters"):
        build_optimizer(probe, Training())


@pytest.mark.parametrize("steps", [1, 2, 5, 40])
def test_learning_rate_rises_and_falls(steps: int) -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = one_cycle(optimizer, steps, warmup=0.25)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[0] == pytest.approx(1 / 25)
    if steps == 40:
        assert max(rates) == pytest.approx(1.0)
        assert rates.index(max(rates)) == 9  # the tenth of forty steps
        assert rates[-1] < 1e-3


@pytest.mark.parametrize(("steps", "warmup"), [(10, 0.1), (20, 0.05), (50, 0.02), (30, 0.0), (30, 1.0), (3, 0.5)])
def test_schedule_works_with_phases_of_any_length(steps: int, warmup: float) -> None:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = one_cycle(optimizer, steps, warmup)
    for _ in range(steps):
        optimizer.step()
        schedule.step()
        assert 0 < optimizer.param_groups[0]["lr"] <= 1


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"ema": 1.0}, {"warmup": 2.0}]
)
def test_settings_out_of_range_raise(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(ValueError, match=f"{name}=.* must be "):
        Training(**wrong)  # type: ignore[arg-type]


def test_initial_weights_fade_from_the_average_in_short_runs() -> None:
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 100.0)
    average = EMA(module, decay=0.9997)
    nn.init.constant_(module.weight, 1.0)
    expected = 100.0
    for step in range(1, 313):
        average.update()
        decay = min(0.9997, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * 1.0
    average.copy_to()
    assert module.weight.item() == pytest.approx(expected, rel=1e-4)
    assert module.weight.item() < 1.01


def test_average_includes_buffers_and_copies_counters() -> None:
    module = nn.BatchNorm1d(2)
    average = EMA(module, decay=0.5)
    module(torch.randn(8, 2) + 10)
    average.update()
    running = module.running_mean.clone() if module.running_mean is not None else None
    average.copy_to()
    assert module.num_batches_tracked == 1
    assert module.running_mean is not None
    assert running is not None
    assert not torch.equal(module.running_mean, running)


def test_without_decay_the_last_weights_are_kept() -> None:
    module = nn.Linear(2, 2)
    average = EMA(module, decay=0.0)
    nn.init.constant_(module.weight, 5.0)
    average.update()
    average.copy_to()
    assert (module.weight == 5).all()
