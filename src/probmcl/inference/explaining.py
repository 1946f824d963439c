"""Explanations of a batch: the labels to explain, and their maps."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy import ndarray
from torch import Tensor

from probmcl.data.stream import Decoded
from probmcl.errors import OptionError, suggestion
from probmcl.explain import Explanation, forward_pass
from probmcl.methods.base import Classifier
from probmcl.settings.model_options import ExplainedLabels


def label_columns(labels: ExplainedLabels, names: Sequence[str]) -> list[int] | None:
    """Return the columns of the labels to explain; None for the labels that the model assigns.

    >>> label_columns("all", ("cat", "dog")), label_columns(["dog"], ("cat", "dog"))
    ([0, 1], [1])
    >>> label_columns(["cts"], ("cat", "dog"))
    Traceback (most recent call last):
    probmcl.errors.OptionError: `labels=["cts"]` contains 'cts', which is not a class of the model; available: cat, dog
    """
    if labels == "decided":
        return None
    if labels == "all":
        return list(range(len(names)))
    if isinstance(labels, str):
        raise OptionError("labels", labels, 'must be "decided", "all" or a list of class names')
    for label in labels:
        if label not in names:
            problem = f"contains {label!r}, which is not a class of the model; {suggestion(label, names)}"
            raise OptionError("labels", list(labels), problem)
    return list(dict.fromkeys(names.index(label) for label in labels))


def explain_batch(
    classifier: Classifier,
    batch: Decoded,
    names: Sequence[str],
    decide: Callable[[Float[ndarray, "K C"]], tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]],
    columns: Sequence[int] | None,
) -> list[Explanation]:
    """Explain the images of a batch; `decide` computes probabilities and decisions from scores."""
    errors = iter(batch.errors)
    explained = iter(_explain_images(classifier, batch, names, decide, columns) if batch.rows else [])
    readable = set(batch.rows)
    return [
        next(explained) if row in readable else Explanation(path, {}, {}, error=next(errors).reason)
        for row, path in enumerate(batch.paths)
    ]


NOT_FINITE = "the model produced NaN or inf"


def failed_rows(batch: Decoded, outputs: Float[Tensor, "K *D"]) -> dict[int, str]:
    """Return the rows of the batch whose outputs are not all finite, with the reason."""
    finite = outputs.isfinite().flatten(1).all(1).tolist()
    return {row: NOT_FINITE for row, is_finite in zip(batch.rows, finite, strict=True) if not is_finite}


def _explain_images(
    classifier: Classifier,
    batch: Decoded,
    names: Sequence[str],
    decide: Callable[[Float[ndarray, "K C"]], tuple[Float[ndarray, "K C"], Bool[ndarray, "K C"]]],
    columns: Sequence[int] | None,
) -> list[Explanation]:
    device = next(classifier.parameters()).device
    result = forward_pass(classifier, batch.images.to(device, memory_format=torch.channels_last))
    failed = failed_rows(batch, result.logits.detach())
    probabilities, decisions = decide(np.asarray(result.logits.detach().sigmoid().cpu()))
    decided = [np.flatnonzero(row).tolist() for row in decisions]
    explained = decided if columns is None else [list(columns)] * len(decided)
    maps = np.asarray(result.maps(_padded(explained).to(device)).cpu())
    return [
        Explanation(
            batch.paths[row],
            {names[k]: heat for k, heat in zip(explained[i], maps[i], strict=False)},
            dict(zip(names, probabilities[i].tolist(), strict=True)),
            tuple(names[k] for k in decided[i]),
        )
        if row not in failed
        else Explanation(batch.paths[row], {}, {}, error=failed[row])
        for i, row in enumerate(batch.rows)
    ]


def _padded(columns: Sequence[Sequence[int]]) -> Tensor:
    """Return lists of different lengths as a rectangular tensor, filled up with column 0."""
    longest = max(map(len, columns))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in columns], dtype=torch.long)
