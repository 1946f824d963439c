"""What every method promises, tested over every method there is: a new one is tested by existing."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from probmcl.data.records import LabelSpace
from probmcl.encoders import Encoder
from probmcl.losses import binary_cross_entropy
from probmcl.methods import METHODS, find_method
from probmcl.methods.base import Classifier, Method

CLASSES = 4
CASES = {f"{name}-{preset}": (name, config) for name in METHODS for preset, config in find_method(name).presets.items()}

each_method = pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[] if case.endswith("-default") else [pytest.mark.exhaustive]) for case in CASES]
)
"""For tests that take long: other presets differ in numbers only."""


def label_space(together: int = 2) -> LabelSpace:
    """Four classes, of which the first two occur together."""
    cooccurrence = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    cooccurrence[0, 1] = cooccurrence[1, 0] = together
    return LabelSpace(tuple("abcd"), np.array([4, 3, 2, 2]), cooccurrence)


def build(case: str, *, seed: int = 0, together: int = 2) -> Method:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's preset speaks of collapse; that is tested with the method
        name, config = CASES[case]
        return find_method(name)(Encoder("test_resnet", image_size=32), label_space(together), config)


def batch(method: Method, images: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    views = torch.randn(method.n_views, images, 3, 32, 32, generator=generator)
    labels = (torch.rand(images, CLASSES, generator=generator) < 0.4).float()
    return views, labels, torch.ones(images, CLASSES, dtype=torch.bool)


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def method(case: str) -> Method:
    return build(case)


def predicts(method: Method) -> bool:
    return type(method).has_own_head(method.config)


def learned(method: Method) -> list[Tensor]:
    return [p for p in method.parameters() if p.requires_grad]


def test_the_loss_is_finite_and_reaches_whatever_is_to_be_learned(method: Method) -> None:
    step = method(*batch(method))
    step.loss.backward()
    assert step.loss.shape == ()
    assert step.loss.isfinite()
    assert all(value.ndim == 0 and value.isfinite() for value in step.terms.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in learned(method))


def test_an_encoder_that_is_trained_has_gradients_and_a_frozen_one_is_left_alone(method: Method) -> None:
    before = {key: value.clone() for key, value in method.encoder.state_dict().items()}
    method.train()
    method(*batch(method)).loss.backward()
    gradients = [p.grad for p in method.encoder.parameters() if p.grad is not None]
    if any(p.requires_grad for p in method.encoder.parameters()):
        assert any((g != 0).any() for g in gradients)
    else:
        assert not gradients
        assert all(torch.equal(value, before[key]) for key, value in method.encoder.state_dict().items())


def test_the_order_of_the_images_does_not_matter(method: Method) -> None:
    method.eval().double()
    views, labels, known = batch(method)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    loss = method(views.double(), labels.double(), known).loss
    shuffled = method(views[:, order].double(), labels[order].double(), known[order]).loss
    torch.testing.assert_close(shuffled, loss)


def test_a_label_that_is_not_known_changes_no_loss_and_no_gradient(method: Method) -> None:
    method.eval()
    views, labels, known = batch(method)
    known[0, 1] = known[2] = known[4, 3] = False
    losses, gradients = [], []
    for value in (0.0, 1.0, float("nan")):
        step = method(views, labels.where(known, value), known)
        losses.append(step.loss.detach())
        gradients.append(torch.autograd.grad(step.loss, learned(method)))
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_known_everywhere_is_the_same_as_not_saying(method: Method) -> None:
    method.eval()
    views, labels, known = batch(method)
    assert torch.equal(method(views, labels, known).loss, method(views, labels).loss)


@pytest.mark.parametrize("oddity", ["no labels", "nothing known", "all labels", "one image"])
def test_odd_batches_stay_finite(method: Method, oddity: str) -> None:
    views, labels, known = batch(method)
    method.eval()
    if oddity == "no labels":
        labels = torch.zeros_like(labels)
    elif oddity == "nothing known":
        known = torch.zeros_like(known)
    elif oddity == "all labels":
        labels = torch.ones_like(labels)
    else:
        views, labels, known = views[:, :1], labels[:1], known[:1]
    loss = method(views, labels, known).loss
    gradients = torch.autograd.grad(loss, learned(method), allow_unused=True)
    assert loss.isfinite()
    assert all(g is None or g.isfinite().all() for g in gradients)


@each_method
def test_thirty_steps_on_one_batch_lower_the_loss(method: Method) -> None:
    method.train()
    data = batch(method)
    moves = torch.optim.Adam(learned(method), lr=1e-3)
    losses = []
    for _ in range(30):
        loss = method(*data).loss
        moves.zero_grad()
        loss.backward()
        moves.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_saving_and_loading_gives_the_same_loss_and_scores(case: str, method: Method, tmp_path: Path) -> None:
    save_file(method.state_dict(), tmp_path / "method.safetensors")
    other = build(case, seed=7, together=0)  # other counts: what a method makes of them is part of its state
    other.load_state_dict(load_file(tmp_path / "method.safetensors"))
    data = batch(method)
    assert torch.equal(method.eval()(*data).loss, other.eval()(*data).loss)
    if predicts(method):
        assert isinstance(method, Classifier)
        assert isinstance(other, Classifier)
        assert torch.equal(method.logits(data[0][0]), other.logits(data[0][0]))


def test_bfloat16_autocast_stays_near_full_precision(method: Method) -> None:
    method.eval()
    data = batch(method)
    full = method(*data).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = method(*data).loss
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


@pytest.mark.slow
@each_method
def test_a_classifiers_logits_can_be_exported_for_any_number_of_images(method: Method) -> None:
    if not predicts(method):
        pytest.skip("predicts through a probe")
    assert isinstance(method, Classifier)

    class Logits(torch.nn.Module):
        def __init__(self, classifier: Classifier) -> None:
            super().__init__()
            self.classifier = classifier

        def forward(self, images: Tensor) -> Tensor:
            return self.classifier.logits(images)

    images, any_number = batch(method)[0][0], ({0: torch.export.Dim("images")},)
    exported = torch.export.export(Logits(method).eval(), (images,), dynamic_shapes=any_number)
    for some in (images, images[:3]):
        torch.testing.assert_close(exported.module()(some), method.logits(some))


def test_a_wrong_method_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'probmcl'"):
        find_method("probmlc")
    with pytest.raises(ValueError, match="probe, bce, asl, focal, csra"):
        find_method("zzz")


def test_a_method_of_ones_own_is_found_by_its_place() -> None:
    assert find_method("probmcl.methods.bce:BCE") is find_method("bce")


def test_this_file_would_notice_a_loss_that_looks_at_unknown_labels() -> None:
    logits, labels = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    known = torch.tensor([[True, False]])
    assert not torch.equal(binary_cross_entropy(logits + 1, labels), binary_cross_entropy(logits + 1, labels, known))
