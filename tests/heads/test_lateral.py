import pytest
import torch
from torch import Tensor

from probmcl.heads.lateral import EmbeddingClassifier, LateralConnection


def connection(*, scale: float = 1.0) -> LateralConnection:
    """One that has learned something."""
    torch.manual_seed(0)
    learned = LateralConnection(channels=5, classes=3, scale=scale).double()
    torch.nn.init.normal_(learned.back.weight)
    return learned


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("scale", [1.0, 0.25])
@pytest.mark.parametrize("side", [1, 3])
def test_a_connection_is_a_loop_over_positions_classes_and_channels(scale: float, side: int) -> None:
    learned, maps, embeddings = connection(scale=scale), some(2, 5, side, side + 1), some(3, 5)
    measured = learned(maps, embeddings)
    assert measured.shape == maps.shape
    back = learned.back.weight[:, :, 0, 0]  # (K, C)
    for n in range(2):
        for y in range(side):
            for x in range(side + 1):
                here = maps[n, :, y, x]
                shared = [scale * sum(here[k] * embeddings[c, k] for k in range(5)) for c in range(3)]
                for k in range(5):
                    expected = here[k] + sum(back[k, c] * shared[c] for c in range(3))
                    torch.testing.assert_close(measured[n, k, y, x], expected)


def test_a_new_connection_adds_nothing_and_can_learn() -> None:
    new, maps, embeddings = LateralConnection(5, 3), torch.rand(2, 5, 4, 4), torch.rand(3, 5)
    assert torch.equal(new(maps, embeddings), maps)
    (new(maps, embeddings) ** 2).sum().backward()
    assert new.back.weight.grad is not None
    assert (new.back.weight.grad != 0).all()


def test_gradients_of_a_connection() -> None:
    learned, maps, embeddings = connection(), some(2, 5, 2, 2).requires_grad_(), some(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(learned, (maps, embeddings))


@pytest.mark.parametrize("scale", [1.0, 0.25])
def test_logits_are_those_of_the_linear_layer_and_of_the_embeddings_together(scale: float) -> None:
    torch.manual_seed(0)
    classifier = EmbeddingClassifier(5, 3, scale=scale).double().eval()
    features, embeddings = some(4, 5), some(3, 5)
    measured = classifier(features, embeddings)
    for n in range(4):
        for c in range(3):
            whole = classifier.linear.weight[c] + scale * embeddings[c]
            expected = sum(features[n, d] * whole[d] for d in range(5)) + classifier.linear.bias[c]
            torch.testing.assert_close(measured[n, c], expected)


def test_gradients_of_the_classifier() -> None:
    classifier = EmbeddingClassifier(5, 3).double().eval()
    assert torch.autograd.gradcheck(classifier, (some(4, 5).requires_grad_(), some(3, 5).requires_grad_()))


def test_both_classifiers_see_the_same_features_after_dropout() -> None:
    torch.manual_seed(0)
    classifier = EmbeddingClassifier(200, 1).train()
    opposite = -classifier.linear.weight.detach()
    logits = classifier(torch.rand(3, 200), opposite)
    torch.testing.assert_close(logits, classifier.linear.bias.expand(3, 1), atol=1e-4, rtol=0)
    assert not torch.equal(classifier(torch.ones(1, 200), 0 * opposite), classifier(torch.ones(1, 200), 0 * opposite))
