"""Images/s of `probmcl train --tune all`, beside the plain script's loop and the bare loop on tensors in memory.

Each passes the same number of images through the same encoder at the same batch size. The first steps are left out.
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
"""Steps at the start that are not counted: workers start, memory is found."""


def write_subset(data: Path, folder: Path, train: int) -> None:
    """A table of the first training images and a few others, so that a run is mostly training."""
    with (data / "labels.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    wanted = {"train": train, "val": 64, "test": 64}
    kept = [row for split, n in wanted.items() for row in [r for r in rows if r["split"] == split][:n]]
    with (folder / "labels.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, list(rows[0]))
        table.writeheader()
        table.writerows(kept)
    (folder / "classes.txt").write_text((data / "classes.txt").read_text(encoding="utf-8"), encoding="utf-8")
    (folder / "images").symlink_to((data / "images").resolve())


def after_warm_up(ended: list[float], batch_size: int) -> float:
    """Images/s, from the moments at which the steps ended."""
    return (len(ended) - WARM_UP) * batch_size / (ended[-1] - ended[WARM_UP - 1])


def trained_images_per_second(args: argparse.Namespace, data: Path) -> float:
    """What `probmcl train` says of itself in metrics.jsonl, from the second row on."""
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


def speed_of(journal: Path, stage: str) -> float:
    """Images/s over all rows of a stage but the first, each row weighted by its steps."""
    rows = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["stage"] == stage]
    if len(rows) < 2:
        raise SystemExit(f"{journal}: stage {stage!r} has {len(rows)} rows; give a larger --limit")
    steps = [row["step"] - before["step"] for before, row in itertools.pairwise(rows)]
    seconds = sum(n / row["images_per_second"] for n, row in zip(steps, rows[1:], strict=True))
    return float(sum(steps) / seconds)


def plain_images_per_second(args: argparse.Namespace, data: Path) -> float:
    """The loop of the plain script."""
    model = create_model(args.encoder, args.weights, classes_of(data))
    photos = Photos(data, "train", views(model, args.image_size)[0], None)
    batches = DataLoader(photos, args.batch_size, shuffle=True, drop_last=True, num_workers=args.workers)
    return after_warm_up(train_epoch(model, batches, args.lr), args.batch_size)


def bare_images_per_second(args: argparse.Namespace, data: Path, *, set_up_as_ours: bool) -> float:
    """Forward, backward and optimizer on one batch in memory, as often as the others have batches.

    Set up as ours, kernels and images are channels last and batch normalization keeps its statistics: what is left
    between the two is loading, augmenting, averaging and logging.
    """
    model: Any = create_model(args.encoder, args.weights, classes_of(data)).train()
    images = torch.randn(args.batch_size, 3, args.image_size, args.image_size)
    if set_up_as_ours:
        model, images = (x.to(memory_format=torch.channels_last) for x in (model, images))
        for part in model.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.eval()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    labels = (torch.rand(args.batch_size, classes_of(data)) < 0.1).float()
    start, ended = time.perf_counter(), []
    for _ in range(args.limit // args.batch_size):
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), labels)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        ended.append(time.perf_counter() - start)
    return after_warm_up(ended, args.batch_size)


def classes_of(data: Path) -> int:
    """How many there are."""
    return len((data / "classes.txt").read_text(encoding="utf-8").splitlines())


def main() -> None:
    """Print all speeds as they come, and the medians of the ratios."""
    parser = arguments()
    parser.description = __doc__
    parser.add_argument("--rounds", type=int, default=3, help="times that each is measured")
    parser.set_defaults(limit=1280, batch_size=32, workers=os.cpu_count() or 1)
    args = parser.parse_args()
    if args.limit < 3 * WARM_UP * args.batch_size:
        raise SystemExit(f"--limit {args.limit}: give at least {3 * WARM_UP * args.batch_size}, 30 steps")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder)
        write_subset(args.data, data, args.limit)
        rivals = {
            "probmcl": lambda: trained_images_per_second(args, data),
            "plain script": lambda: plain_images_per_second(args, data),
            "bare loop": lambda: bare_images_per_second(args, data, set_up_as_ours=False),
            "bare loop, set up as ours": lambda: bare_images_per_second(args, data, set_up_as_ours=True),
        }
        found = alternate(rivals, args.rounds, "images/s")
    for rival in list(rivals)[1:]:
        print(f"probmcl / {rival}: {median_ratio(found['probmcl'], found[rival]):.3f} (median)")


if __name__ == "__main__":
    main()
