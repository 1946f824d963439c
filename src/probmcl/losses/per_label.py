"""The contrastive loss of MulSupCon, in which each label of an image is an anchor of its own."""

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
    """Return the supervised contrastive loss of every label of every row, averaged.

    L_ik = −1/|A(i,k)| Σ_{j∈A(i,k)} log[ exp(Sim_ij/τ) / Σ_l exp(Sim_il/τ) ],  A(i,k) = {j ≠ i : k ∈ y_j},
    for the labels k ∈ y_i, where l runs over all columns but i itself of which it is known whether they have k. A row
    without labels adds 0, and so does a label that no other row has.

    Reference: Zhang and Wu, Multi-Label Supervised Contrastive Learning, AAAI 2024; τ is `temperature`.

    Args:
        similarity: of M anchors with P columns.
        labels_a: of the anchors, 0 or 1.
        labels_b: of the columns.
        temperature: divides the similarity.
        known_a: labels of the anchors that take part; None means all.
        known_b: the same for the columns.
        self_column: the column that is the row itself; None means the diagonal of a square matrix.
        average: over all `labels` of all rows, so that a row counts as often as it has labels, or over `images`: the
            labels of each row first, then all rows.

    >>> import torch
    >>> labels = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    >>> per_label_contrastive(torch.zeros(3, 3), labels, labels, temperature=1.0)  # one of two others, each time
    tensor(0.6931)
    """
    check_range(above=0, temperature=temperature)
    if average not in get_args(Average):
        raise ValueError(f"average={average!r}; there are 'labels' and 'images'")
    present_a, present_b = present(labels_a, known_a), present(labels_b, known_b)
    rows, classes = present_a.nonzero(as_tuple=True)  # R pairs of a row and a label of it
    other = ~is_self(similarity, self_column)[rows]  # (R, P)
    seen = other if known_b is None else other & known_b.T[classes]
    positive = present_b.T[classes] & other
    logits = similarity[rows] / temperature
    log_denominator = masked_logsumexp(logits, seen)
    loss = (log_denominator - logits).where(positive, 0).sum(1) / positive.sum(1).clamp(min=1)  # (R)
    if average == "labels":
        return loss.sum() / max(1, len(loss))
    weight = 1 / present_a.sum(1).to(loss.dtype)[rows]  # of a row that has labels, or it would not be among the rows
    return (loss * weight).sum() / len(similarity)


def present(labels: Float[Tensor, "M C"], known: Bool[Tensor, "M C"] | None) -> Bool[Tensor, "M C"]:
    """Mark the labels that an image is known to have.

    >>> import torch
    >>> present(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([[True, False, True]]))
    tensor([[ True, False, False]])
    """
    return labels > 0 if known is None else (labels > 0) & known
