"""Contract tests of all methods and presets. A new method is covered as soon as it is in `METHODS`."""

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
"""Mark for slow tests, which run only the default preset unless `exhaustive` tests are selected."""


def label_space(together: int = 2) -> LabelSpace:
    """Return four classes, of which the first two occur together."""
    cooccurrence = np.zeros((CLASSES, CLASSES), dtype=np.int64)
    cooccurrence[0, 1] = cooccurrence[1, 0] = together
    return LabelSpace(tuple("abcd"), np.array([4, 3, 2, 2]), cooccurrence)


def build(case: str, *, seed: int = 0, together: int = 2) -> Method:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the paper's preset warns about a collapse
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


def has_head(method: Method) -> bool:
    return type(method).has_own_head(method.config)


def trainable(method: Method) -> list[Tensor]:
    return [p for p in method.parameters() if p.requires_grad]


def test_loss_is_finite_and_has_gradients(method: Method) -> None:
    step = method(*batch(method))
    step.loss.backward()
    assert step.loss.shape == ()
    assert step.loss.isfinite()
    assert all(value.ndim == 0 and value.isfinite() for value in step.terms.values())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in trainable(method))


def test_encoder_has_gradients_unless_frozen(method: Method) -> None:
    before = {key: value.clone() for key, value in method.encoder.state_dict().items()}
    method.train()
    method(*batch(method)).loss.backward()
    gradients = [p.grad for p in method.encoder.parameters() if p.grad is not None]
    if any(p.requires_grad for p in method.encoder.parameters()):
        assert any((g != 0).any() for g in gradients)
    else:
        assert not gradients
        assert all(torch.equal(value, before[key]) for key, value in method.encoder.state_dict().items())


def test_loss_does_not_depend_on_the_order_of_images(method: Method) -> None:
    method.eval().double()
    views, labels, known = batch(method)
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    loss = method(views.double(), labels.double(), known).loss
    shuffled = method(views[:, order].double(), labels[order].double(), known[order]).loss
    torch.testing.assert_close(shuffled, loss)


def test_unknown_labels_do_not_affect_loss_and_gradients(method: Method) -> None:
    method.eval()
    views, labels, known = batch(method)
    known[0, 1] = known[2] = known[4, 3] = False
    losses, gradients = [], []
    for value in (0.0, 1.0, float("nan")):
        step = method(views, labels.where(known, value), known)
        losses.append(step.loss.detach())
        gradients.append(torch.autograd.grad(step.loss, trainable(method)))
    assert torch.equal(losses[0], losses[1])
    assert torch.equal(losses[0], losses[2])
    for other in gradients[1:]:
        assert all(torch.equal(a, b) for a, b in zip(gradients[0], other, strict=True))


def test_no_mask_is_the_same_as_all_known(method: Method) -> None:
    method.eval()
    views, labels, known = batch(method)
    assert torch.equal(method(views, labels, known).loss, method(views, labels).loss)


@pytest.mark.parametrize("unusual", ["no labels", "nothing known", "all labels", "one image"])
def test_unusual_batches_stay_finite(method: Method, unusual: str) -> None:
    views, labels, known = batch(method)
    method.eval()
    if unusual == "no labels":
        labels = torch.zeros_like(labels)
    elif unusual == "nothing known":
        known = torch.zeros_like(known)
    elif unusual == "all labels":
        labels = torch.ones_like(labels)
    else:
        views, labels, known = views[:, :1], labels[:1], known[:1]
    loss = method(views, labels, known).loss
    gradients = torch.autograd.grad(loss, trainable(method), allow_unused=True)
    assert loss.isfinite()
    assert all(g is None or g.isfinite().all() for g in gradients)


@pytest.mark.slow
@each_method
def test_thirty_steps_reduce_the_loss(method: Method) -> None:
    method.train()
    data = batch(method)
    optimizer = torch.optim.Adam(trainable(method), lr=1e-3)
    losses = []
    for _ in range(30):
        loss = method(*data).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_loading_a_saved_state_gives_the_same_loss_and_logits(case: str, method: Method, tmp_path: Path) -> None:
    save_file(method.state_dict(), tmp_path / "method.safetensors")
    other = build(case, seed=7, together=0)  # with other label counts, which must be part of the state
    other.load_state_dict(load_file(tmp_path / "method.safetensors"))
    data = batch(method)
    assert torch.equal(method.eval()(*data).loss, other.eval()(*data).loss)
    if has_head(method):
        assert isinstance(method, Classifier)
        assert isinstance(other, Classifier)
        assert torch.equal(method.logits(data[0][0]), other.logits(data[0][0]))


def test_bfloat16_autocast_is_close_to_full_precision(method: Method) -> None:
    method.eval()
    data = batch(method)
    full = method(*data).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = method(*data).loss
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


@pytest.mark.slow
@each_method
def test_logits_can_be_exported_for_any_number_of_images(method: Method) -> None:
    if not has_head(method):
        pytest.skip("the method has no head")
    assert isinstance(method, Classifier)

    class Logits(torch.nn.Module):
        def __init__(self, classifier: Classifier) -> None:
            super().__init__()
            self.classifier = classifier

        def forward(self, images: Tensor) -> Tensor:
            return self.classifier.logits(images)

    images, any_number = batch(method)[0][0], ({0: torch.export.Dim("images")},)
    exported = torch.export.export(Logits(method).eval(), (images,), dynamic_shapes=any_number)
    for subset in (images, images[:3]):
        torch.testing.assert_close(exported.module()(subset), method.logits(subset))


def test_wrong_method_name_suggests_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'probmcl'"):
        find_method("probmlc")
    with pytest.raises(ValueError, match="probe, bce, asl, focal, csra"):
        find_method("zzz")


def test_method_can_be_given_as_module_and_class() -> None:
    assert find_method("probmcl.methods.bce:BCE") is find_method("bce")


def test_a_loss_that_uses_unknown_labels_would_be_noticed() -> None:
    logits, labels = torch.zeros(1, 2), torch.tensor([[1.0, 0.0]])
    known = torch.tensor([[True, False]])
    assert not torch.equal(binary_cross_entropy(logits + 1, labels), binary_cross_entropy(logits + 1, labels, known))
