from dataclasses import replace
from typing import Literal

import pytest
import torch
from sklearn.metrics import average_precision_score

from helpers.images import label_space
from probmcl.encoders import Encoder, PrecomputedFeatures
from probmcl.losses import asymmetric, binary_cross_entropy
from probmcl.methods.probe import Config, Probe
from probmcl.run.candidates import fit_grid, fit_probe, validation_map
from probmcl.settings import ProbeSettings
from probmcl.training import fit
from probmcl.training.features import FeatureBatches, LabeledFeatures, StoredFeatures
from probmcl.training.fit import StepEvent


def labeled(images: int, *, seed: int, views: int = 1) -> LabeledFeatures:
    generator = torch.Generator().manual_seed(seed)
    features = 5 + 3 * torch.randn(views, images, 10, generator=generator)
    labels = (features[0, :, :3] > 5).float()
    return LabeledFeatures(features, labels, torch.ones(images, 3, dtype=torch.bool), label_space())


def test_standardized_features_have_mean_0_and_deviation_1() -> None:
    features = labeled(50, seed=0).features[0]
    features[:, 4] = 7.0
    probe = Probe(PrecomputedFeatures(10), label_space())
    probe.standardize(features)
    standardized = (features - probe.shift) / probe.scale
    torch.testing.assert_close(standardized.mean(0), torch.zeros(10), atol=1e-6, rtol=0)
    expected = torch.ones(10)
    expected[4] = 0.0  # constant
    torch.testing.assert_close(standardized.std(0, correction=0), expected)


def test_folding_into_the_linear_layer_keeps_the_logits() -> None:
    encoder = Encoder("test_resnet", image_size=32).eval()
    images = torch.randn(4, 3, 32, 32)
    probe = Probe(PrecomputedFeatures(96), label_space())
    torch.nn.init.normal_(probe.linear.weight)
    probe.standardize(torch.randn(30, 96) * 2 + 1)
    folded = probe.on(encoder, label_space())
    torch.testing.assert_close(folded.logits(images), probe.logits(encoder(images).detach()), atol=1e-5, rtol=1e-5)
    assert (folded.scale == 1).all()
    assert (folded.shift == 0).all()


def test_encoder_is_frozen_and_stays_in_eval_mode() -> None:
    probe = Probe(Encoder("test_resnet"), label_space()).train()
    assert probe.training
    assert not probe.encoder.training
    assert not any(p.requires_grad for p in probe.encoder.parameters())


@pytest.mark.parametrize(("name", "loss"), [("asl", asymmetric), ("bce", binary_cross_entropy)])
def test_loss_setting(name: str, loss: object) -> None:
    features, labels, known, *_ = labeled(6, seed=0)
    probe = Probe(PrecomputedFeatures(10), label_space(), Config(loss=name))  # type: ignore[arg-type]
    torch.nn.init.normal_(probe.linear.weight)
    expected = loss(probe.logits(features[0]), labels, known, reduction="mean")  # type: ignore[operator]
    torch.testing.assert_close(probe(features, labels, known).loss, expected)


def test_chooses_the_weight_decay_with_the_best_validation_map() -> None:
    train, validation = labeled(200, seed=0, views=2), labeled(100, seed=1)
    settings = ProbeSettings(weight_decays=(0.1, 10.0, 1e5), epochs=20)
    events: list[StepEvent] = []
    fitted = fit_probe(train, validation, settings, callbacks=[events.append])
    map_by_decay = {
        d: fit_probe(train, validation, ProbeSettings(weight_decays=(d,), epochs=20)).validation
        for d in settings.weight_decays
    }
    assert len(events) == settings.steps(200)
    assert fitted.validation == max(map_by_decay.values()) == map_by_decay[fitted.weight_decay]
    assert map_by_decay[1e5] < map_by_decay[0.1]


@pytest.mark.parametrize("loss", ["asl", "bce"])
def test_probes_fitted_together_equal_probes_fitted_alone(loss: Literal["asl", "bce"]) -> None:
    """The reference is a probe that is trained alone by AdamW, on the same batches."""
    train = labeled(120, seed=0, views=2)
    train.known[torch.rand(120, 3, generator=torch.Generator().manual_seed(1)) < 0.2] = False
    settings = ProbeSettings(weight_decays=(0.1, 10.0, 300.0), epochs=5, batch_size=32, loss=loss)
    for decay, together in fit_grid(train, settings).items():
        alone = Probe(PrecomputedFeatures(10), label_space(), Config(loss=loss))
        alone.standardize(train.features.flatten(0, 1))
        batches = FeatureBatches(StoredFeatures(*train[:3]), batch_size=32, epochs=5, seed=0)
        fit(alone, batches, replace(settings.training(), weight_decay=decay))
        expected = alone.logits(train.features[0])
        torch.testing.assert_close(together.logits(train.features[0]), expected, atol=1e-5, rtol=0)


def test_validation_map_uses_the_first_view() -> None:
    data = labeled(60, seed=2, views=2)
    probe = Probe(PrecomputedFeatures(10), label_space())
    torch.nn.init.normal_(probe.linear.weight)
    scores = probe.logits(data.features[0]).detach()
    expected = sum(average_precision_score(data.labels[:, k], scores[:, k]) for k in range(3)) / 3
    assert validation_map(probe, data) == pytest.approx(expected)
