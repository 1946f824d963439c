"""Images/s of `model.predict` over image files, beside the bare forward of the same timm model over decoded tensors."""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: threads that wait on busy cores must not spin

import torch

import probmcl.inference
from probmcl.runtime.machine import CPU_PIXELS
from rounds import alternate, median_ratio

import timm  # isort: skip  # after probmcl, which makes torchvision safe

KINDS = {".jpg", ".jpeg", ".png", ".bmp", ".webp"}


def predicting(model: Any, paths: list[Path], batch_size: int, workers: int) -> Callable[[], float]:
    """Images/s from files to probabilities, the start of the workers included."""

    def call() -> float:
        start = time.perf_counter()
        model.predict(paths, batch_size=batch_size, workers=workers)
        return len(paths) / (time.perf_counter() - start)

    return call


def bare_forward(network: Any, images: int, size: int, batch_size: int) -> Callable[[], float]:
    """Images/s from tensors in memory to logits, the last batch as small as it is for files."""
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
    """Print both speeds as they come, and the median of their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--run", type=Path, required=True, help="the folder of a trained model")
    parser.add_argument("--images", type=Path, required=True, help="a folder of images")
    parser.add_argument("--limit", type=int, default=1500, help="images of a round")
    parser.add_argument("--batch-size", type=int, help="of both; by default what predict takes on a CPU")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that decode")
    parser.add_argument("--rounds", type=int, default=5, help="times that each is measured")
    args = parser.parse_args()
    model = probmcl.inference.load(args.run, device="cpu")
    size = model.preprocessing.size
    batch_size = args.batch_size or max(1, CPU_PIXELS // size**2)
    paths = sorted(path for path in args.images.rglob("*") if path.suffix.lower() in KINDS)[: args.limit]
    name = json.loads((args.run / "config.json").read_text(encoding="utf-8"))["encoder"]["name"]
    network = timm.create_model(name, pretrained=False, num_classes=len(model.names)).eval()
    print(f"{name} at {size} px, {len(paths):,} images, {batch_size} at once, {torch.get_num_threads()} threads")
    rivals = {
        "probmcl": predicting(model, paths, batch_size, args.workers),
        "bare forward": bare_forward(network, len(paths), size, batch_size),
    }
    bare_forward(network, 8 * batch_size, size, batch_size)()
    found = alternate(rivals, args.rounds, "images/s")
    print(f"predict / bare forward: {median_ratio(found['probmcl'], found['bare forward']):.3f} (median)")


if __name__ == "__main__":
    main()
