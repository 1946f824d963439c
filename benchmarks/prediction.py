"""Compare images/s of `model.predict` on files with the bare forward pass of the same timm model on tensors."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: waiting threads must not spin on busy cores

import torch

import probmcl.inference
from probmcl.runtime.machine import CPU_PIXELS
from rounds import alternate, median_ratio

import timm  # isort: skip  # after probmcl, which makes torchvision importable

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def predicting(model: Any, paths: list[Path], batch_size: int, workers: int) -> Callable[[], float]:
    """Return a function that measures images/s from files to probabilities, including the start of the workers."""

    def call() -> float:
        start = time.perf_counter()
        model.predict(paths, batch_size=batch_size, workers=workers)
        return len(paths) / (time.perf_counter() - start)

    return call


def bare_forward(network: Any, images: int, size: int, batch_size: int) -> Callable[[], float]:
    """Return a function that measures images/s from tensors to logits, with the same batch sizes."""
    batch = torch.randn(batch_size, 3, size, size)
    sizes = [min(batch_size, images - first) for first in range(0, images, batch_size)]

    @torch.inference_mode()
    def call() -> float:
        start = time.perf_counter()
        for n in sizes:
            network(batch[:n])
        return images / (time.perf_counter() - start)

    return call


def main() -> None:
    """Print both speeds in each round, and the median of their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="run folder of a trained model")
    parser.add_argument("--images", type=Path, required=True, help="folder of images")
    parser.add_argument("--limit", type=int, default=1500, help="images per round")
    parser.add_argument("--batch-size", type=int, help="batch size of both (default: that of predict on a CPU)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--rounds", type=int, default=5, help="measurements per competitor")
    args = parser.parse_args()
    model = probmcl.inference.load(args.run, device="cpu")
    size = model.preprocessing.size
    batch_size = args.batch_size or max(1, CPU_PIXELS // size**2)
    paths = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in SUFFIXES)[: args.limit]
    name = json.loads((args.run / "config.json").read_text(encoding="utf-8"))["encoder"]["name"]
    network = timm.create_model(name, pretrained=False, num_classes=len(model.names)).eval()
    print(f"{name} at {size} px, {len(paths):,} images, batches of {batch_size}, {torch.get_num_threads()} threads")
    competitors = {
        "probmcl": predicting(model, paths, batch_size, args.workers),
        "bare forward": bare_forward(network, len(paths), size, batch_size),
    }
    bare_forward(network, 8 * batch_size, size, batch_size)()
    speeds = alternate(competitors, args.rounds, "images/s")
    print(f"predict / bare forward: {median_ratio(speeds['probmcl'], speeds['bare forward']):.3f} (median)")


if __name__ == "__main__":
    main()
