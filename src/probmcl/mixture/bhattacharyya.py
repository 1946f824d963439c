"""The Bhattacharyya coefficient ∫√(pq) of two mixtures."""

import torch
from jaxtyping import Float
from torch import Tensor

from probmcl.mixture.components import Components, at_most_one, check_same_space, of_nothing, one_with_itself
from probmcl.mixture.density import IsotropicMixture
from probmcl.mixture.feature_map import MEMORY, cosines, features, refuse_above
from probmcl.mixture.grid import grid_for, outside_of_graphs
from probmcl.runtime.precision import full_precision


@outside_of_graphs
@full_precision
def bhattacharyya(p: IsotropicMixture, q: IsotropicMixture | None = None, *, step: float = 0.5) -> Float[Tensor, "M P"]:
    """Bhattacharyya coefficient ∫√(pq) of two mixtures with scalar means, in [0, 1], 1 between equal mixtures.

    There is no closed form. The roots of the densities are sampled on the grid of the feature map, and their inner
    product is the trapezoidal rule for the integral. The change when `step` is halved estimates the error.

    Args:
        p: M mixtures.
        q: P mixtures; None compares p with itself.
        step: distance of the nodes relative to those of `correlation`, which suffice for squares but not for roots;
            half of it takes four times as many nodes.

    >>> p = IsotropicMixture(torch.zeros(2, 1), torch.tensor([[0.0], [2.0]]), torch.ones(2, 1), dim=1)
    >>> bhattacharyya(p)  # exp(−n d²/8)
    tensor([[1.0000, 0.6065],
            [0.6065, 1.0000]])
    """
    for mixture in (p, q or p):
        if mixture.has_vector_means:
            raise ValueError("bhattacharyya() is for scalar means")
    check_same_space(p, q or p)
    if 0 in (len(p.mean), len((q or p).mean)):
        return of_nothing(p, q or p)
    sides = [Components(m.log_weight.log_softmax(1), m.mean, m.variance) for m in ((p,) if q is None else (p, q))]
    grid = grid_for(sides, p.dim, kind="mass", step=step)
    if grid is None:
        raise ValueError("a mean or a variance is not finite")
    refuse_above(MEMORY, sides, grid, remedy="give a larger step")
    # The smallest normal number keeps the slope of the root finite where a density has vanished.
    roots = [(density + torch.finfo(torch.float32).tiny).sqrt() for density in (features(s, grid) for s in sides)]
    # Their lengths are one, up to the error.
    return at_most_one(one_with_itself(cosines(roots[0], None)) if q is None else cosines(*roots))
