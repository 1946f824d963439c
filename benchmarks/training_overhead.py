"""Compare images/s of `probmcl train --tune all` with the plain script's loop and a bare loop on tensors in memory.

All use the same encoder, batch size and number of images. The first steps are excluded.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from plain_script import Photos, arguments, create_model, train_epoch, views

# isort: split
import torch
from torch import nn
from torch.utils.data import DataLoader

from rounds import alternate, median_ratio

WARM_UP = 10
"""Steps at the start that are excluded, while workers start and memory is allocated."""


def write_subset(data: Path, folder: Path, train: int) -> None:
    """Write a table of the first training images and a few others, so that a run is mostly training."""
    with (data / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    counts = {"train": train, "val": 64, "test": 64}
    kept = [row for split, n in counts.items() for row in [r for r in rows if r["split"] == split][:n]]
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(kept)
    (folder / "classes.txt").write_text((data / "classes.txt").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "images").symlink_to((data / "images").resolve())


def after_warm_up(end_times: list[float], batch_size: int) -> float:
    """Return images/s after the warm-up, from the end times of the steps."""
    return (len(end_times) - WARM_UP) * batch_size / (end_times[-1] - end_times[WARM_UP - 1])


def trained_images_per_second(args: argparse.Namespace, data: Path) -> float:
    """Return the speed of `probmcl train` in its metrics.jsonl, from the second row on."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        flags = {
            "--method": "bce",
            "--tune": "all",
            "--epochs": "1",
            "--probe-epochs": "1",
            "--encoder": args.encoder,
            "--weights": str(Path(args.weights).resolve()) if Path(args.weights).is_file() else args.weights,
            "--image-size": str(args.image_size),
            "--batch-size": str(args.batch_size),
            "--workers": str(args.workers),
            "--device": "cpu",
            "--out": str(run),
        }
        command = [
            sys.executable,
            "-m",
            "probmcl",
            "train",
            str(data),
            *(word for pair in flags.items() for word in pair),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return speed_of(run / "metrics.jsonl", "bce")


def speed_of(metrics: Path, stage: str) -> float:
    """Return images/s over all rows of a stage except the first, each row weighted by its steps."""
    rows = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["stage"] == stage]
    if len(rows) < 2:
        raise SystemExit(f"{metrics}: stage {stage!r} has {len(rows)} rows, expected at least 2; increase --limit")
    steps = [row["step"] - before["step"] for before, row in itertools.pairwise(rows)]
    seconds = sum(n / row["images_per_second"] for n, row in zip(steps, rows[1:], strict=True))
    return float(sum(steps) / seconds)


def plain_images_per_second(args: argparse.Namespace, data: Path) -> float:
    """Return the speed of the plain script's loop."""
    model = create_model(args.encoder, args.weights, classes_of(data))
    photos = Photos(data, "train", views(model, args.image_size)[0], None)
    batches = DataLoader(photos, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    return after_warm_up(train_epoch(model, batches, args.lr), args.batch_size)


def bare_images_per_second(args: argparse.Namespace, data: Path, *, like_probmcl: bool) -> float:
    """Return the speed of a bare training loop on one batch in memory, with the same number of steps.

    With `like_probmcl`, kernels and images are channels last, and batch normalization keeps its statistics. The
    remaining differences are loading, augmentation, the EMA and logging.
    """
    model: Any = create_model(args.encoder, args.weights, classes_of(data)).train()
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    if like_probmcl:
        model, images = (x.to(memory_format=torch.channels_last) for x in (model, images))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    labels = (torch.rand(args.batch_size, classes_of(data)) < 0.1).float()
    start, end_times = time.perf_counter(), []
    for _ in range(args.limit // args.batch_size):
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        end_times.append(time.perf_counter() - start)
    return after_warm_up(end_times, args.batch_size)


def classes_of(data: Path) -> int:
    """Return the number of classes."""
    return len((data / "classes.txt").read_text(encoding="utf-8").splitlines())


def main() -> None:
    """Print the speeds of each round, and the medians of the ratios."""
    parser = arguments()
    parser.description = __doc__
    parser.add_argument("--rounds", type=int, default=3, help="measurements per competitor")
    parser.set_defaults(limit=1280, batch_size=32, workers=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.limit < 3 * WARM_UP * args.batch_size:
        raise SystemExit(f"--limit {args.limit} must be at least {3 * WARM_UP * args.batch_size}, which is 30 steps")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_subset(args.data, data, args.limit)
        competitors = {
            "probmcl": lambda: trained_images_per_second(args, data),
            "plain script": lambda: plain_images_per_second(args, data),
            "bare loop": lambda: bare_images_per_second(args, data, like_probmcl=False),
            "bare loop like probmcl": lambda: bare_images_per_second(args, data, like_probmcl=True),
        }
        speeds = alternate(competitors, args.rounds, "images/s")
    for name in list(competitors)[1:]:
        print(f"probmcl / {name}: {median_ratio(speeds['probmcl'], speeds[name]):.3f} (median)")


if __name__ == "__main__":
    main()
