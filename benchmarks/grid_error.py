"""Compare the measured error of the mixture similarity with the error formula for different grid sizes."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from scipy.special import loggamma
from torch import Tensor
from torch.nn.functional import elu

from probmcl.mixture import IsotropicMixture, correlation
from probmcl.mixture.density import prune_components
from probmcl.mixture.feature_map import cosines, features
from probmcl.mixture.grid import ERROR, Grid, grid_for

ROWS, COMPONENTS = 24, 20
STEPS = [5.0, 4.5, 4.0, 3.5, 3.0, 2.75, 2.5, 2.25, 2.0, 1.75, 1.5, 1.25, 1.0]


def mixtures(dim: int) -> IsotropicMixture:
    """Return mixtures as at the start of training, in float64."""
    generator = torch.Generator().manual_seed(0)
    logit, mean, raw = (torch.randn(ROWS, COMPONENTS, generator=generator, dtype=torch.float64) for _ in range(3))
    return IsotropicMixture(logit.log_softmax(1), mean / 2, elu(raw) + 2, dim)


def predicted(grid: Grid, narrowest: float) -> float:
    """Return the predicted relative error of the inner product of two components, from both axes."""
    along = 2 * math.exp(-((math.pi * narrowest / grid.along.step) ** 2))
    if grid.across is None:
        return along
    half = (grid.dim - 1) / 2
    return along + 2 * math.exp(float(loggamma(complex(half, math.pi / grid.across.step)).real) - math.lgamma(half))


def errors(dim: int) -> list[tuple[int, float, float]]:
    """Return, for each step, the number of nodes, the largest error of a similarity and the predicted error."""
    p = mixtures(dim)
    truth: Tensor = correlation(p, way="tiled")
    results = []
    for step in STEPS:
        components = prune_components(p, torch.float64)
        grid = grid_for([components], dim, step=step)
        assert grid is not None
        error = (cosines(features(components, grid), None) - truth).abs().max().item()
        results.append((grid.nodes, error, predicted(grid, components.variance.amin().sqrt().item())))
    return results


def main() -> None:
    """Print the table, and draw it if --plot is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dims", type=int, nargs="+", default=[1, 16, 128, 2048], help="dimensions n of the mixtures")
    parser.add_argument("--plot", type=Path, help="PNG file for the plot; needs matplotlib")
    args = parser.parse_args()
    results = {dim: errors(dim) for dim in args.dims}
    print(
        f"{ROWS} mixtures of {COMPONENTS} components; {STEPS[0]} to 1 times the step for error {ERROR[torch.float64]}"
    )
    print("| n | nodes | error of Sim | formula |\n|---|---|---|---|")
    for dim, rows in results.items():
        for nodes, error, formula in rows:
            print(f"| {dim} | {nodes:,} | {error:.1e} | {formula:.1e} |")
    if args.plot:
        draw(results, args.plot)


def draw(results: dict[int, list[tuple[int, float, float]]], path: Path) -> None:
    """Plot measured errors as dots and predicted errors as lines."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    for number, (dim, rows) in enumerate(results.items()):
        nodes, error, formula = zip(*rows, strict=True)
        axes.loglog(nodes, error, "o", color=f"C{number}", label=f"n = {dim}")
        axes.loglog(nodes, formula, "-", color=f"C{number}", linewidth=1)
    axes.set(xlabel="nodes Q of the grid", ylabel="largest error of Sim", ylim=(1e-16, 10))
    axes.legend(title="dots: measured, lines: formula", frameon=False)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
