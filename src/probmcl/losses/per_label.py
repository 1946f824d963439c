"""MulSupCon's contrastive loss, which treats each label of an image as a separate anchor."""

from typing import Literal, get_args

from jaxtyping import Bool, Float, Int
from torch import Tensor

from probmcl.errors import check_range
from probmcl.losses.contrastive import is_self, masked_logsumexp
from probmcl.runtime.precision import full_precision

Average = Literal["labels", "images"]


@full_precision
def per_label_contrastive(
    similarity: Float[Tensor, "M P"],
    labels_a: Float[Tensor, "M C"],
    labels_b: Float[Tensor, "P C"],
    *,
    temperature: float,
    known_a: Bool[Tensor, "M C"] | None = None,
    known_b: Bool[Tensor, "P C"] | None = None,
    self_column: Int[Tensor, "M"] | None = None,
    average: Average = "labels",
) -> Float[Tensor, ""]:
    """Return the supervised contrastive loss, averaged over the labels of all rows.

    L_ik = −1/|A(i,k)| Σ_{j∈A(i,k)} log[ exp(Sim_ij/τ) / Σ_l exp(Sim_il/τ) ],  A(i,k) = {j ≠ i : k ∈ y_j},
    for the labels k ∈ y_i, where l ≠ i runs over columns whose label k is known. Rows without labels and labels
    without positives have loss 0.

    Reference: Zhang and Wu, Multi-Label Supervised Contrastive Learning, AAAI 2024; τ is `temperature`.

    Args:
        similarity: similarity of M anchors to P columns.
        labels_a: labels of the anchors, 0 or 1.
        labels_b: labels of the columns.
        temperature: positive divisor of the similarity.
        known_a: mask of the known labels of the anchors; defaults to all.
        known_b: mask of the known labels of the columns; defaults to all.
        self_column: column that contains the anchor itself; defaults to the diagonal of a square matrix.
        average: `labels` averages over all pairs of a row and one of its labels; `images` averages over the labels of
            each row, then over rows.

    >>> import torch
    >>> labels = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> per_label_contrastive(torch.zeros(3, 3), labels, labels, temperature=1.0)  # one of two columns each time
    tensor(0.6931)
    """
    check_range(above=0, temperature=temperature)
    if average not in get_args(Average):
        raise ValueError(f"`average` must be 'labels' or 'images', got {average!r}")
    present_a, present_b = present(labels_a, known_a), present(labels_b, known_b)
    row, label = present_a.nonzero(as_tuple=True)  # (R,): all pairs of a row i and one of its labels k
    other = ~is_self(similarity, self_column)[row]  # (R, P)
    contrasted = other
    if known_b is not None:
        contrasted = other & known_b.T[label]
    positive = present_b.T[label] & other
    logits = similarity[row] / temperature
    log_denominator = masked_logsumexp(logits, contrasted)
    total = (log_denominator - logits).where(positive, 0).sum(1)
    loss = total / positive.sum(1).clamp(min=1)  # (R,): L_ik
    if average == "labels":
        return loss.sum() / max(1, len(loss))
    labels_of_row = present_a.sum(1).to(loss.dtype)[row]  # at least 1: rows without labels are not among the pairs
    weight = 1 / labels_of_row
    return (loss * weight).sum() / len(similarity)


def present(labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None) -> Bool[Tensor, "M C"]:
    """Return a mask of the labels that are known and positive.

    >>> import torch
    >>> present(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[True, False, True]]))
    tensor([[ True, False, False]])
    """
    return labels > 0 if known is None else (labels > 0) & known
