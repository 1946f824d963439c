"""Grad-CAM for every classifier whose encoder has feature maps."""

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import one_hot

from probmcl.encoders import AnyEncoder, Encoder
from probmcl.encoders.encoder import MODEL_ERRORS
from probmcl.errors import ProbmclError
from probmcl.methods.base import Classifier, LinearClassifier
from probmcl.methods.probe import Probe

MAX_GRADIENTS = 2**25
"""Entries of the gradients that are computed at once, 128 MB; more labels are processed in several steps."""


@final
@dataclass(frozen=True, eq=False)
class ForwardPass:
    """A forward pass of N images, from which the map of any class can be computed.

    Attributes:
        logits: the logits of all classes.
        encoder: the encoder, which knows the layout of its activations.
        layers: activations that may be explained, the last one first. There is more than one only for models with a
            class token, whose last feature map may not affect the logits.
        weight: weights of the linear layer if the logits are a linear function of the mean over the positions.
    """

    logits: Float[Tensor, "N C"]
    encoder: Encoder
    layers: tuple[Float[Tensor, "N ..."], ...]
    weight: Float[Tensor, "C K"] | None = None

    def maps(self, columns: Int[Tensor, "N J"]) -> Float[Tensor, "N J h w"]:
        """Return one map for each image and each of its J classes; entries are at least 0, and all may be 0.

        L_c = relu(Σ_k a_kc A_k) with a_kc = mean over positions of ∂ logit_c / ∂ A_k, where A_k are the feature maps.
        If the logits are a linear function of the mean of the maps, a_kc is the weight w_ck divided by the number of
        positions, and no gradient is computed. The sum of Σ_k a_kc A_k over the positions is then logit_c without the
        bias.

        Reference: Selvaraju et al., Grad-CAM, ICCV 2017, Eq. 1 and 2; Zhou et al., CAM, CVPR 2016, for the linear form.
        """
        last_layer = self.layers[0]
        features = self.encoder.to_maps(last_layer.detach())  # A, (N, K, h, w)
        if self.weight is not None:  # the logits are linear in the mean of the maps
            positions = features[0, 0].numel()
            importance = self.weight[columns] / positions
            return _weighted(features, importance)
        if columns.numel() == 0:
            return features.new_zeros(*columns.shape, *features.shape[2:])
        for layer in self.layers:
            maps, affects_logits = self._gradient_maps(layer, columns)
            if affects_logits:  # otherwise, all maps are 0, and an earlier layer may explain the logits
                break
        return maps

    def _gradient_maps(
        self, layer: Float[Tensor, "N ..."], columns: Int[Tensor, "N J"]
    ) -> tuple[Float[Tensor, "N J h w"], bool]:
        """Return the maps of a layer, and whether any logit depends on them."""
        features = self.encoder.to_maps(layer.detach())
        labels_at_once = max(1, MAX_GRADIENTS // layer.numel())
        maps: list[Tensor] = []
        affects_logits = False
        for block in torch.split(columns, labels_at_once, dim=1):
            selected = one_hot(block.T, self.logits.shape[1]).to(self.logits)  # (J, N, C)
            gradients = _gradients(self.logits, layer, selected)  # (J, N, …)
            by_map = torch.stack([self.encoder.to_maps(gradient) for gradient in gradients], 1)  # (N, J, K, h, w)
            affects_logits = affects_logits or bool(by_map.any())
            importance = by_map.mean((3, 4))  # a_kc, (N, J, K)
            maps.append(_weighted(features, importance))
        return torch.cat(maps, 1), affects_logits


def forward_pass(classifier: Classifier, images: Float[Tensor, "N 3 H W"]) -> ForwardPass:
    """Run a classifier in such a way that its logits can be explained; its parameters and gradients do not change.

    >>> from probmcl.data.records import LabelSpace
    >>> from probmcl.methods.bce import BCE
    >>> import numpy as np
    >>> label_space = LabelSpace(("cat", "dog"), np.ones(2, dtype=int), np.zeros((2, 2), dtype=int))
    >>> classifier = BCE(Encoder("test_resnet", image_size=64), label_space).eval()
    >>> result = forward_pass(classifier, torch.rand(3, 3, 64, 64))
    >>> result.maps(torch.tensor([[0, 1], [0, 1], [1, 0]])).shape
    torch.Size([3, 2, 2, 2])
    """
    encoder = _with_maps(classifier.encoder)
    with torch.inference_mode(False), torch.enable_grad(), _frozen(classifier), _recorded(encoder) as recorded:
        logits, weight = _logits(classifier, images.float(), recorded)
    return ForwardPass(logits.float(), encoder, _layers(encoder, recorded), weight)


@dataclass
class _Recorded:
    """Activations recorded during a forward pass: the last one, and the one before the last attention layer."""

    last: Any = None
    before_attention: Tensor | None = None


def _with_maps(encoder: AnyEncoder) -> Encoder:
    """Return the encoder, or raise an error if it only passes on stored features, which have no maps."""
    if not isinstance(encoder, Encoder):
        raise ProbmclError("stored features have no feature maps, so predictions cannot be explained; use an encoder")
    return encoder


def _layers(encoder: Encoder, recorded: _Recorded) -> tuple[Tensor, ...]:
    """Return the recorded activations, the last one first; raise an error if the last one is not a feature map."""
    last = recorded.last
    try:
        if not isinstance(last, Tensor) or last.ndim not in (3, 4):  # tokens, or maps
            raise ValueError("its last activation is not one map")
        encoder.to_maps(last.detach())  # raises an error if the activation has an unexpected layout
    except MODEL_ERRORS as error:
        raise ProbmclError(
            f"{encoder.name} has no feature maps at {encoder.image_size} pixels, so its predictions cannot be "
            f"explained ({error}); train with another encoder or `image_size`"
        ) from error
    if recorded.before_attention is None:
        return (last,)
    return (last, recorded.before_attention)


def _logits(
    classifier: Classifier, images: Float[Tensor, "N 3 H W"], recorded: _Recorded
) -> tuple[Float[Tensor, "N C"], Float[Tensor, "C K"] | None]:
    """Return the logits and, if they are a linear function of the mean of the maps, the weights; otherwise None.

    The forward pass fills `recorded`.
    """
    if not isinstance(classifier, LinearClassifier):
        return classifier.logits(images), None
    features = classifier.encoder(images)
    weight = classifier.linear.weight.detach()
    if isinstance(classifier, Probe):  # the same as its `logits`, which has no gradient
        logits = classifier.linear((features - classifier.shift) / classifier.scale)
        weight = weight / classifier.scale
    else:
        logits = classifier.linear(features)
    if not _is_mean(classifier.encoder, features, recorded.last):
        return logits, None
    return logits, weight


def _is_mean(encoder: AnyEncoder, features: Float[Tensor, "N D"], activation: Any) -> bool:
    """Return whether the pooled features are the mean of the maps, apart from rounding."""
    assert isinstance(encoder, Encoder)
    try:
        means = encoder.to_maps(activation).detach().mean((2, 3))
    except MODEL_ERRORS:  # `_layers` reports an activation that is not a feature map
        return False
    tolerance = 1e-5 * float(means.abs().max())
    return means.shape == features.shape and torch.allclose(features, means, rtol=1e-4, atol=tolerance)


def _weighted(maps: Float[Tensor, "N K h w"], importance: Float[Tensor, "N J K"]) -> Float[Tensor, "N J h w"]:
    """Return relu(Σ_k a_kc A_k) for the feature maps A_k and their importance a_kc for each label."""
    return torch.einsum("njk,nkhw->njhw", importance, maps).relu().float()


def _gradients(
    logits: Float[Tensor, "N C"], layer: Float[Tensor, "N ..."], selected: Float[Tensor, "J N C"]
) -> Float[Tensor, "J N ..."]:
    """Return the gradients of the selected logits, computed together if all operations support it."""
    try:
        (gradients,) = torch.autograd.grad(
            logits, layer, selected, retain_graph=True, is_grads_batched=True, materialize_grads=True
        )
        return gradients
    except RuntimeError:  # an operation without a rule for vmap
        one_by_one = []
        for label in selected:
            (gradient,) = torch.autograd.grad(logits, layer, label, retain_graph=True, materialize_grads=True)
            one_by_one.append(gradient)
        return torch.stack(one_by_one)


@contextlib.contextmanager
def _frozen(classifier: nn.Module) -> Iterator[None]:
    """Record no gradients of parameters within the context, which saves the memory of a training step."""
    trainable = [parameter for parameter in classifier.parameters() if parameter.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextlib.contextmanager
def _recorded(encoder: Encoder) -> Iterator[_Recorded]:
    """Record the activations of a model in every forward pass within the context, with gradients."""
    recorded = _Recorded()
    model = encoder.model
    forward_features = model.forward_features

    @functools.wraps(forward_features)
    def record_last(*inputs: Any, **options: Any) -> Any:
        recorded.last = _differentiable(forward_features(*inputs, **options))
        return recorded.last

    def record_before_attention(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
        recorded.before_attention = _differentiable(output)
        return recorded.before_attention

    norm = _norm_before_attention(model)
    handle = None if norm is None else norm.register_forward_hook(record_before_attention)
    model.forward_features = record_last  # the last map is not the output of a module, so it cannot be hooked
    try:
        yield recorded
    finally:
        del model.forward_features
        if handle is not None:
            handle.remove()


def _differentiable(activation: Any) -> Any:
    """Return an activation that gradients can be computed for; nothing before it is differentiated."""
    if not isinstance(activation, Tensor) or activation.requires_grad:
        return activation
    return activation.detach().requires_grad_()


def _norm_before_attention(model: nn.Module) -> nn.Module | None:
    """Return the first norm of the last block of a vision transformer with a class token, otherwise None.

    After the last attention, only the class token affects the logits, so the gradient of the last map is 0.
    """
    if getattr(model, "cls_token", None) is None:
        return None
    modules = dict(model.named_modules())
    blocks = [int(name.split(".")[1]) for name in modules if name.startswith("blocks.")]  # as in blocks.11.norm1
    if not blocks:
        return None
    return modules.get(f"blocks.{max(blocks)}.norm1")
