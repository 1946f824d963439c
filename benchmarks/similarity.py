"""The similarity of M mixtures of C components in n dimensions: plain autograd, tiled, feature map, eager and compiled.

What is timed is forward + backward with the contrastive loss, from parameters as at the start of training. Plain
autograd has a process of its own, the others take turns. A plot needs matplotlib, which is optional: pip install
matplotlib.
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

os.environ |= {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5000"}  # before torch, as the command does for itself

import torch
from torch import Tensor
from torch.nn.functional import elu

from plain_similarity import naive, truth
from probmcl.losses import contrastive
from probmcl.mixture import IsotropicMixture, correlation, plan
from probmcl.overlap import jaccard
from similarity_report import VARIANTS, Row, ratios, save, shown, table

NAIVE_BYTES = 36
"""Of plain autograd in float32, for each pair of components of each pair of rows; measured at 20 and 40 classes."""

ERROR_SIZE = 8000
"""Rows times classes at which errors are measured: the truth looks at the square of that, in float64."""


def drawn(rows: int, classes: int) -> tuple[list[Tensor], Tensor]:
    """Logits, means and raw variances as at the start of training; overlaps of random label sets, one for two views."""
    generator = torch.Generator().manual_seed(0)
    leaves = [(scale * torch.randn(rows, classes, generator=generator)).requires_grad_() for scale in (1, 0.5, 1)]
    labels = (torch.rand(-(-rows // 2), 8, generator=generator) < 0.4).float()
    return leaves, jaccard(labels.repeat(2, 1)[:rows])


def mixture(leaves: list[Tensor], dim: int) -> IsotropicMixture:
    """The mixtures that these leaves stand for."""
    logit, mean, raw = leaves
    return IsotropicMixture(logit.log_softmax(1), mean, elu(raw) + 2, dim)


def computed(variant: str, p: IsotropicMixture, shared: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    """Similarities, and the gradients of the loss at the leaves."""
    plain = {"naive": naive, "truth": truth}
    similarity = plain[variant](p) if variant in plain else correlation(p, way=variant)  # type: ignore[arg-type]
    loss = contrastive(similarity, shared, threshold=0.5, temperature=0.2)
    return [similarity.detach(), *torch.autograd.grad(loss, leaves)]


def seconds(variant: str, rows: int, classes: int, dim: int) -> float:
    """Of one forward and backward."""
    leaves, shared = drawn(rows, classes)
    start = time.perf_counter()
    computed(variant, mixture(leaves, dim), shared, leaves)
    return time.perf_counter() - start


def peak() -> int:
    """Most memory that this process ever had. Not `ru_maxrss` where there is better: that starts with the parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        return 1024 * int(status.read_text().split("VmHWM:")[1].split()[0])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def forget_peak() -> bool:
    """Give back memory that is not in use and count the peak from here on, where the system can."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return False
    return True


def child(variant: str, rows: int, classes: int, dim: int, rounds: int) -> dict[str, Any]:
    """Seconds of a few calls, and memory of the first beyond that of a tiny problem; of compiled, of the second."""
    seconds(variant, 4 if variant != "compiled" else rows, classes, dim)  # a compiler's memory is not a step's
    known = forget_peak() or variant != "compiled"
    before, found = peak(), [seconds(variant, rows, classes, dim)]
    taken = peak() - before if known else None
    while len(found) < rounds and sum(found) < 30:
        found.append(seconds(variant, rows, classes, dim))
    return {"seconds": found, "bytes": taken}


def in_child(args: argparse.Namespace, row: Row, rounds: int) -> list[float]:
    """Note the memory of a fresh process; its seconds."""
    sizes = json.dumps([row.variant, args.rows, row.classes, row.dim, rounds])
    command = [sys.executable, __file__, "--child", sizes, "--threads", str(args.threads)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    row.bytes = found["bytes"]
    print(f"  {row.variant}: {shown(row.bytes, 1e6)} MB", flush=True)
    return [float(x) for x in found["seconds"]]


def fits(args: argparse.Namespace, wanted: float) -> bool:
    """Whether naive may take so many bytes: of what it is allowed, and of what is free."""
    meminfo = Path("/proc/meminfo")
    free = 1024 * int(meminfo.read_text().split("MemAvailable:")[1].split()[0]) if meminfo.exists() else math.inf
    return wanted <= args.naive_memory * 1e9 and 1.1 * wanted <= free


def measure_naive(args: argparse.Namespace, row: Row) -> None:
    """In a process of its own, and only where memory suffices."""
    row.predicted_bytes = NAIVE_BYTES * (args.rows * row.classes) ** 2
    if fits(args, row.predicted_bytes):
        row.seconds = in_child(args, row, args.rounds)
    print(f"  naive: {row.note or shown(row.time()) + ' s'}", flush=True)


def measure_others(args: argparse.Namespace, rows: list[Row]) -> None:
    """Time in alternating rounds, of which tiled takes part in as many as patience allows; memory in processes."""
    rounds = {row.variant: args.rounds for row in rows}
    for row in rows:
        if row.predicted_seconds is not None:
            rounds[row.variant] = int(args.patience / row.predicted_seconds)
        if rounds[row.variant] > 1:  # one alone takes so long that a first call is like any other
            seconds(row.variant, args.rows, row.classes, row.dim)
    for turn in range(args.rounds):
        for row in rows if turn % 2 == 0 else reversed(rows):
            if turn < rounds[row.variant]:
                row.seconds.append(seconds(row.variant, args.rows, row.classes, row.dim))
                print(f"  round {turn + 1} of {args.rounds}: {row.variant} {row.seconds[-1]:.4g} s", flush=True)
    for row in rows:
        if row.seconds:
            in_child(args, row, rounds=1)


def measure_errors(args: argparse.Namespace, rows: list[Row]) -> None:
    """Largest error of a similarity, and of a gradient relative to the largest of its kind, on a few rows."""
    few, classes, dim = rows[0].error_rows, rows[0].classes, rows[0].dim
    print(f"  errors against float64 on {few} rows", flush=True)
    exact = from_parameters("truth", few, classes, dim, torch.float64)
    for row in rows:
        if row.variant != "naive" or fits(args, NAIVE_BYTES * (few * classes) ** 2):
            found = from_parameters(row.variant, few, classes, dim, torch.float32)
            row.similarity_error, *off = (float((a - b).abs().max()) for a, b in zip(found, exact, strict=True))
            row.gradient_error = max(error / float(b.abs().max()) for error, b in zip(off, exact[1:], strict=True))
            print(f"  {row.variant}: off by {row.similarity_error:.1e}, gradients {row.gradient_error:.1e}", flush=True)


def from_parameters(variant: str, rows: int, classes: int, dim: int, dtype: torch.dtype) -> list[Tensor]:
    """Similarities and gradients from mixtures that were rounded to float32, whatever it is computed in."""
    leaves, shared = drawn(rows, classes)
    p = mixture(leaves, dim)
    rounded = [x.detach().to(dtype).requires_grad_() for x in (p.log_weight, p.mean, p.variance)]
    return computed(variant, IsotropicMixture(rounded[0], rounded[1], rounded[2], dim), shared.to(dtype), rounded)


def tiled_seconds(before: list[Row], rows: int, components: int) -> float:
    """What tiled will take, by the square of the components: from the last size measured, or from a small one."""
    for row in reversed(before):
        if row.variant == "tiled" and row.seconds:
            return statistics.median(row.seconds) * (components / row.components) ** 2
    return seconds("tiled", 64, 20, 128) * (rows * components / (64 * 20)) ** 2


def measure(args: argparse.Namespace, classes: int, dim: int, before: list[Row]) -> list[Row]:
    """All variants at one size."""
    print(f"n = {dim:,}, C = {classes:,}, M = {args.rows}", flush=True)
    few = min(args.rows, max(4, ERROR_SIZE // classes // 2 * 2))
    components = plan(mixture(drawn(args.rows, classes)[0], dim), way="tiled").components
    rows = [Row(dim, classes, variant, components, few) for variant in args.variants]
    for row in rows:
        if row.variant == "naive":
            measure_naive(args, row)
        elif row.variant == "tiled":
            row.predicted_seconds = tiled_seconds(before, args.rows, components)
    measure_others(args, [row for row in rows if row.variant != "naive"])
    measure_errors(args, rows)
    return rows


def arguments() -> argparse.ArgumentParser:
    """What can be set."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--rows", type=int, default=256, help="mixtures M")
    parser.add_argument("--classes", type=int, nargs="+", default=[20, 80, 500, 2000, 9605], help="components C")
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 2048], help="dimensions n")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=VARIANTS, help="who takes part")
    parser.add_argument("--rounds", type=int, default=5, help="calls of each")
    parser.add_argument("--patience", type=float, default=120.0, help="seconds that all calls of tiled may take")
    parser.add_argument("--naive-memory", type=float, default=20.0, help="GB that naive may take")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    parser.add_argument("--out", type=Path, help="folder for similarity.json and similarity.png")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    return parser


def main() -> None:
    """Print each number as it comes, then all of them and the ratios."""
    args = arguments().parse_args()
    torch.set_num_threads(args.threads)
    if args.child:
        return print(json.dumps(child(*args.child)))
    if args.out and not importlib.util.find_spec("matplotlib"):
        print("matplotlib is not installed and there will be no plot; to change that: pip install matplotlib")
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
