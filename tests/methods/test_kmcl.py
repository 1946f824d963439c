import dataclasses
import math

import pytest
import torch
from torch import Tensor

from helpers.images import label_space
from probmcl.encoders import PrecomputedFeatures
from probmcl.losses import asymmetric
from probmcl.methods.kmcl import KMCL, PAPER, Config

IMAGES, FEATURES, CLASSES = 6, 10, 4
CONFIGS = {
    "default": Config(),
    "paper": dataclasses.replace(PAPER, reduced_size=3),
    "anisotropic": Config(covariance="anisotropic", reduced_size=3, temperature=0.3),
    "clamps": Config(clamps=True, initialization="paper", gamma_positive=1.0),
}


def batch() -> tuple[Tensor, Tensor, Tensor]:
    """Return features, labels and the mask of known labels; image 0 has no labels, image 1 no known ones."""
    generator = torch.Generator().manual_seed(0)
    features = torch.rand(1, IMAGES, FEATURES, generator=generator, dtype=torch.float64)
    labels = (torch.rand(IMAGES, CLASSES, generator=generator) < 0.6).double()
    known = torch.rand(IMAGES, CLASSES, generator=generator) < 0.8
    labels[0], known[0] = 0, True
    known[1] = False
    return features, labels.where(known, torch.nan), known


def build(config: Config) -> KMCL:
    torch.manual_seed(0)
    return KMCL(PrecomputedFeatures(FEATURES), label_space(CLASSES), config).double()


def slow_reconstruction(method: KMCL, z: Tensor, present: Tensor, known: Tensor) -> float:
    """Compute the loss from the heads, as in the published code, over the known labels; 0 without a label."""
    mixture = method.heads.mixture(z)
    losses = []
    for i in range(IMAGES):
        of_present, of_all = 0.0, 0.0
        for k in range(CLASSES):
            squares = ((z[i] - mixture.mean[i, k]) ** 2 / mixture.variance[i, k]).sum().item()
            kernel = math.exp(-squares / 2)
            part = torch.sigmoid(mixture.logit[i, k]).item() * (
                max(kernel, 1.17549e-38) if has_clamps(method) else kernel
            )
            of_all += part if known[i, k] else 0.0
            of_present += part if present[i, k] else 0.0
        share = max(of_present / of_all, 1e-7 if has_clamps(method) else 0.0) if of_present else 1.0
        losses.append(-math.log(share))
    return sum(losses) / IMAGES


def slow_contrast(method: KMCL, z: Tensor, present: Tensor, known: Tensor) -> float:
    mixture = method.heads.mixture(z)
    means, variances = (x.expand(-1, -1, mixture.dim) for x in (mixture.mean, mixture.variance))
    factor = mixture.dim if method.config.repeated_dimensions else 1

    def exponential(i: int, j: int, k: int) -> float:
        v, w = variances[i, k], variances[j, k]
        distance = 0.5 * ((v + w) / (2 * (v * w).sqrt())).log() + (means[i, k] - means[j, k]) ** 2 / (4 * (v + w))
        return math.exp(math.exp(-factor * distance.sum().item()) / method.config.temperature)

    total = 0.0
    for i in range(IMAGES):
        others = [j for j in range(IMAGES) if j != i]
        positives = [j for j in others if (present[i] & present[j]).any()]
        for j in positives:
            seen = known[i] & known[j]
            index = (present[i] & present[j]).sum().item() / ((present[i] | present[j]) & seen).sum().item()
            for k in range(CLASSES):
                if present[i, k] and present[j, k]:
                    share = (
                        index
                        * exponential(i, j, k)
                        / sum(exponential(i, other, k) for other in others if known[other, k])
                    )
                    total -= math.log(share + (1e-7 if has_clamps(method) else 0.0)) / len(positives)
    return total / IMAGES


def has_clamps(method: KMCL) -> bool:
    return method.config.clamps


@pytest.mark.parametrize("name", CONFIGS)
def test_terms_match_the_published_formulas(name: str) -> None:
    method = build(CONFIGS[name])
    features, labels, known = batch()
    step = method(features, labels, known)
    present = (labels == 1) & known
    z = method.heads.reduction(features[0])
    c = method.config
    expected = asymmetric(method.logits(features[0]), labels, known, gamma_positive=c.gamma_positive)
    assert step.terms["classification"].item() == pytest.approx(expected.item(), rel=1e-12)
    for term, slow in (("reconstruction", slow_reconstruction), ("contrast", slow_contrast)):
        value = slow(method, z, present, known)
        assert value > 0.1
        assert step.terms[term].item() == pytest.approx(value, rel=1e-9)
    assert step.loss.item() == pytest.approx(sum(x.item() for x in step.terms.values()), rel=1e-12)


def test_terms_are_weighted() -> None:
    weights = {"classification": 0.5, "reconstruction": 2.0, "contrast": 3.0}
    config = Config(classification_weight=0.5, reconstruction_weight=2.0, contrastive_weight=3.0)
    step = build(config)(*batch())
    expected = sum(weight * step.terms[term].item() for term, weight in weights.items())
    assert step.loss.item() == pytest.approx(expected, rel=1e-12)


def test_repeated_dimensions_and_clamps_change_only_their_terms() -> None:
    plain = dataclasses.replace(PAPER, reduced_size=3, repeated_dimensions=False, clamps=False)
    terms = build(plain)(*batch()).terms
    repeated = build(dataclasses.replace(plain, repeated_dimensions=True))(*batch()).terms
    assert repeated["reconstruction"] == terms["reconstruction"]
    assert repeated["contrast"] != terms["contrast"]
    clamps = build(dataclasses.replace(plain, clamps=True))(*batch()).terms
    assert clamps["reconstruction"] == terms["reconstruction"]  # nothing here is that small
    assert 0 < terms["contrast"] - clamps["contrast"] < 1e-4


def test_logits_are_those_of_the_kernel_weights() -> None:
    for config in CONFIGS.values():
        method = build(config)
        features = batch()[0][0]
        assert torch.equal(method.logits(features), method.heads(features).logit)


def test_two_views_count_as_two_images() -> None:
    method = build(Config())
    features, labels, known = batch()
    both = torch.cat([features, features.flip(2)])
    as_images = method(both.flatten(0, 1)[None], labels.repeat(2, 1), known.repeat(2, 1))
    assert torch.equal(method(both, labels, known).loss, as_images.loss)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"temperature": 0.0}, "temperature=0.0"),
        ({"reduced_size": 0}, "reduced_size=0"),
        ({"repeated_dimensions": True}, "repeated_dimensions"),
    ],
)
def test_invalid_settings_raise(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(Config(), **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CONFIGS)
def test_images_without_known_labels_have_no_contrastive_gradient(name: str) -> None:
    method = build(CONFIGS[name])
    features, labels, known = batch()
    known[2] = False
    features = features.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(method(features, labels, known).terms["contrast"], features)
    assert (gradient[0, 2] == 0).all()
    assert (gradient[0] != 0).any()
