"""Compare implementations of the similarity between M mixtures of C components in n dimensions.

The variants are plain autograd, tiled, and the feature map. Each time covers a forward and a backward pass with the
contrastive loss, with parameters as at the start of training. Plain autograd runs in a separate process; the others
take turns. The plot needs matplotlib: pip install matplotlib.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}  # before torch, as the command does

import torch
from torch import Tensor
from torch.nn.functional import elu

from plain_similarity import naive, truth
from probmcl.losses import contrastive
from probmcl.mixture import IsotropicMixture, correlation, plan
from probmcl.overlap import jaccard
from similarity_report import VARIANTS, Row, ratios, save, shown, table

NAIVE_BYTES = 36
"""Bytes per pair of components and pair of rows for plain autograd in float32, measured at 20 and 40 classes."""

ERROR_SIZE = 8000
"""Rows times classes for measuring errors: the reference takes the square of that, in float64."""


def random_parameters(rows: int, classes: int) -> tuple[list[Tensor], Tensor]:
    """Return logits, means and raw variances as at the start of training, and overlaps of random label sets."""
    generator = torch.Generator().manual_seed(0)
    leaves = [(scale * torch.randn(rows, classes, generator=generator)).requires_grad_() for scale in (1, 0.5, 1)]
    labels = (torch.rand(-(-rows // 2), 8, generator=generator) < 0.4).float()
    return leaves, jaccard(labels.repeat(2, 1)[:rows])


def mixture(leaves: list[Tensor], dim: int) -> IsotropicMixture:
    """Return the mixtures with these parameters."""
    logit, mean, raw = leaves
    return IsotropicMixture(logit.log_softmax(1), mean, elu(raw) + 2, dim)


def compute(variant: str, p: IsotropicMixture, shared: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Return the similarities and the gradients of the loss with respect to the leaves."""
    baselines = {"naive": naive, "truth": truth}
    similarity = baselines[variant](p) if variant in baselines else correlation(p, way=variant)  # type: ignore[arg-type]
    loss = contrastive(similarity, shared, threshold=0.5, temperature=0.2)
    return [similarity.detach(), *torch.autograd.grad(loss, leaves)]


def seconds(variant: str, rows: int, classes: int, dim: int) -> float:
    """Return the time of one forward and backward pass."""
    leaves, shared = random_parameters(rows, classes)
    start = time.perf_counter()
    compute(variant, mixture(leaves, dim), shared, leaves)
    return time.perf_counter() - start


def peak() -> int:
    """Return the peak memory of this process; `ru_maxrss` only as a fallback, because it includes the parent's peak."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text(encoding="utf-8").split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def reset_peak() -> bool:
    """Return unused memory to the system and reset the peak; return False if the system does not support this."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except (OSError, AttributeError):
        return False
    return True


def child(variant: str, rows: int, classes: int, dim: int, rounds: int) -> dict[str, Any]:
    """Return the times of a few calls and the additional memory of the first call."""
    seconds(variant, 4, classes, dim)  # excludes the memory of what torch loads
    reset_peak()
    before, times = peak(), [seconds(variant, rows, classes, dim)]
    extra = peak() - before
    while len(times) < rounds and sum(times) < 30:
        times.append(seconds(variant, rows, classes, dim))
    return {"seconds": times, "bytes": extra}


def in_child(args: argparse.Namespace, row: Row, rounds: int) -> list[float]:
    """Measure a row in a new process: store its memory in the row and return its times."""
    sizes = json.dumps([row.variant, args.rows, row.classes, row.dim, rounds])
    command = [sys.executable, __file__, "--child", sizes, "--threads", str(args.threads)]
    result = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    row.bytes = result["bytes"]
    print(f"  {row.variant}: {shown(row.bytes, 1e6)} MB", flush=True)
    return [float(x) for x in result["seconds"]]


def fits(args: argparse.Namespace, needed: float) -> bool:
    """Return whether plain autograd may use this many bytes: they must be within its limit and within free memory."""
    meminfo = Path("/proc/meminfo")
    free = math.inf
    if meminfo.exists():
        free = 1024 * int(meminfo.read_text(encoding="utf-8").split("MemAvailable:")[1].split()[0])
    return needed <= args.naive_memory * 1e9 and 1.1 * needed <= free


def measure_naive(args: argparse.Namespace, row: Row) -> None:
    """Measure plain autograd in a separate process, if there is enough memory."""
    row.predicted_bytes = NAIVE_BYTES * (args.rows * row.classes) ** 2
    if fits(args, row.predicted_bytes):
        row.seconds = in_child(args, row, args.rounds)
    print(f"  naive: {row.note or shown(row.time()) + ' s'}", flush=True)


def measure_others(args: argparse.Namespace, rows: list[Row]) -> None:
    """Measure time in alternating rounds (for tiled, as many as --patience allows), and memory in new processes."""
    rounds = {row.variant: args.rounds for row in rows}
    for row in rows:
        if row.predicted_seconds is not None:
            rounds[row.variant] = int(args.patience / row.predicted_seconds)
        if rounds[row.variant] > 1:  # a single call takes so long that no warm-up is needed
            seconds(row.variant, args.rows, row.classes, row.dim)
    for index in range(args.rounds):
        for row in rows if index % 2 == 0 else reversed(rows):
            if index < rounds[row.variant]:
                row.seconds.append(seconds(row.variant, args.rows, row.classes, row.dim))
                print(f"  round {index + 1} of {args.rounds}: {row.variant} {row.seconds[-1]:.4g} s", flush=True)
    for row in rows:
        if row.seconds:
            in_child(args, row, rounds=1)


def measure_errors(args: argparse.Namespace, rows: list[Row]) -> None:
    """Measure the largest error of a similarity, and of a gradient relative to the largest gradient, on a few rows."""
    few, classes, dim = rows[0].error_rows, rows[0].classes, rows[0].dim
    print(f"  errors against float64 on {few} rows", flush=True)
    reference = from_parameters("truth", few, classes, dim, torch.float64)
    for row in rows:
        if row.variant != "naive" or fits(args, NAIVE_BYTES * (few * classes) ** 2):
            result = from_parameters(row.variant, few, classes, dim, torch.float32)
            row.similarity_error, *errors = (float((a - b).abs().max()) for a, b in zip(result, reference, strict=True))
            row.gradient_error = max(
                error / float(b.abs().max()) for error, b in zip(errors, reference[1:], strict=True)
            )
            print(f"  {row.variant}: error {row.similarity_error:.1e}, gradients {row.gradient_error:.1e}", flush=True)


def from_parameters(variant: str, rows: int, classes: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Return similarities and gradients computed in `dtype` from mixtures that were rounded to float32."""
    leaves, shared = random_parameters(rows, classes)
    p = mixture(leaves, dim)
    rounded = [x.detach().to(dtype).requires_grad_() for x in (p.log_weight, p.mean, p.variance)]
    return compute(variant, IsotropicMixture(rounded[0], rounded[1], rounded[2], dim), shared.to(dtype), rounded)


def tiled_seconds(measured: list[Row], rows: int, components: int) -> float:
    """Extrapolate the time of `tiled` by the square of the components, from the last or from a small measurement."""
    for row in reversed(measured):
        if row.variant == "tiled" and row.seconds:
            return statistics.median(row.seconds) * (components / row.components) ** 2
    return seconds("tiled", 64, 20, 128) * (rows * components / (64 * 20)) ** 2


def measure(args: argparse.Namespace, classes: int, dim: int, measured: list[Row]) -> list[Row]:
    """Measure all variants at one size."""
    print(f"n = {dim:,}, C = {classes:,}, M = {args.rows}", flush=True)
    few = min(args.rows, max(4, ERROR_SIZE // classes // 2 * 2))
    components = plan(mixture(random_parameters(args.rows, classes)[0], dim), way="tiled").components
    rows = [Row(dim, classes, variant, components, few) for variant in args.variants]
    for row in rows:
        if row.variant == "naive":
            measure_naive(args, row)
        elif row.variant == "tiled":
            row.predicted_seconds = tiled_seconds(measured, args.rows, components)
    measure_others(args, [row for row in rows if row.variant != "naive"])
    measure_errors(args, rows)
    return rows


def arguments() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="mixtures M")
    parser.add_argument("--classes", type=int, nargs="+", default=[20, 80, 500, 2000, 9605], help="components C")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 2048], help="dimensions n")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="variants to measure")
    parser.add_argument("--rounds", type=int, default=5, help="calls per variant")
    parser.add_argument("--patience", type=float, default=120.0, help="maximum seconds for all calls of tiled")
    parser.add_argument("--naive-memory", type=float, default=20.0, help="maximum memory of naive in GB")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads of torch")
    parser.add_argument("--out", type=Path, help="folder for similarity.json and similarity.png")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Print each measurement, then the table and the ratios."""
    args = arguments().parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        return print(json.dumps(child(*args.child)))
    if args.out and not importlib.util.find_spec("matplotlib"):
        print("matplotlib is not installed, so there will be no plot; to get one: pip install matplotlib")
    rows: list[Row] = []
    for dim in args.dims:
        for classes in sorted(args.classes):
            rows += measure(args, classes, dim, [row for row in rows if row.dim == dim])
            if args.out:
                save(rows, args.out, rows=args.rows, threads=args.threads)
    print("", table(rows), "", *ratios(rows), sep="\n")
    return None


if __name__ == "__main__":
    main()
