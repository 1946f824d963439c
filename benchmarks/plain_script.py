"""The script that a user would write instead: one epoch of binary cross-entropy with timm and torch, then the test mAP.

DATA is a folder with labels.csv (filename, split, labels as 0-based indices, and optionally difficult), classes.txt
and images/.
"""

import argparse
import csv
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: waiting threads must not spin on busy cores

import probmcl.runtime.torchvision_compat  # noqa: F401  # makes a torchvision built for another torch importable

# isort: split
import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import average_precision_score
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms


class Photos(Dataset[tuple[Tensor, Tensor, Tensor]]):
    """Images, labels and known masks of one split."""

    def __init__(self, data: Path, split: str, transform: Callable[[Image.Image], Tensor], limit: int | None) -> None:
        with (data / "labels.csv").open(newline="", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if row["split"] == split][:limit]
        self.files, self.transform = [data / "images" / row["filename"] for row in rows], transform
        self.labels = torch.zeros(len(rows), len((data / "classes.txt").read_text(encoding="utf-8").splitlines()))
        self.known = torch.ones_like(self.labels)
        for i, row in enumerate(rows):
            self.labels[i, [int(k) for k in row["labels"].split()]] = 1
            self.known[i, [int(k) for k in (row.get("difficult") or "").split()]] = 0

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor, Tensor]:
        return self.transform(Image.open(self.files[i]).convert("RGB")), self.labels[i], self.known[i]


def create_model(encoder: str, weights: str, classes: int) -> Any:
    """Return a timm model with a new classifier, from pretrained weights, a safetensors file, or random weights."""
    model: Any = timm.create_model(encoder, pretrained=weights == "pretrained")
    if weights not in ("pretrained", "none"):
        model.load_state_dict(load_file(weights))
    model.reset_classifier(classes)
    return model


def views(model: Any, size: int) -> tuple[Callable[[Image.Image], Tensor], Callable[[Image.Image], Tensor]]:
    """Return the usual transforms for training and for testing."""
    finish = [transforms.ToTensor(), transforms.Normalize(model.pretrained_cfg["mean"], model.pretrained_cfg["std"])]
    crop = transforms.RandomResizedCrop(size, scale=(0.5, 1.0))
    return (
        transforms.Compose([crop, transforms.RandomHorizontalFlip(), *finish]),
        transforms.Compose([transforms.Resize((size, size)), *finish]),
    )


def train_epoch(model: Any, batches: DataLoader[Any], lr: float) -> list[float]:
    """Train one epoch with AdamW and one learning rate cycle, and return the end time of each step in seconds."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=max(len(batches), 10))
    model.train()
    start, end_times = time.perf_counter(), []
    for images, labels, known in batches:
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), labels, weight=known)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        end_times.append(time.perf_counter() - start)
        if len(end_times) % 10 == 0:
            print(f"step {len(end_times)} of {len(batches)}: loss {loss.item():.4f}", flush=True)
    return end_times


@torch.inference_mode()
def mean_average_precision(model: Any, batches: DataLoader[Any]) -> float:
    """Return the mAP over classes with a known positive, without difficult entries."""
    model.eval()
    rows = [(model(images), labels, known) for images, labels, known in batches]
    scores, labels, known = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    pairs = [(scores[known[:, c] == 1, c], labels[known[:, c] == 1, c]) for c in range(labels.shape[1])]
    return float(np.mean([average_precision_score(truth, score) for score, truth in pairs if truth.any()]))


def arguments() -> argparse.ArgumentParser:
    """Return the argument parser."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with labels.csv, classes.txt and images/")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0", help="any timm model")
    parser.add_argument("--weights", default="pretrained", help="pretrained, none, or a safetensors file")
    parser.add_argument("--image-size", type=int, default=224, help="side of the square input")
    parser.add_argument("--batch-size", type=int, default=64, help="images per step")
    parser.add_argument("--lr", type=float, default=1e-3, help="maximum learning rate")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--limit", type=int, default=None, help="images per split, for a quick try")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    return parser


def main() -> None:
    """Train, test, and print the results as JSON in the last line."""
    start, args = time.perf_counter(), arguments().parse_args()
    torch.manual_seed(args.seed)
    classes = len((args.data / "classes.txt").read_text(encoding="utf-8").splitlines())
    model = create_model(args.encoder, args.weights, classes)
    train_transform, test_transform = views(model, args.image_size)
    train = Photos(args.data, "train", train_transform, args.limit)
    test = Photos(args.data, "test", test_transform, args.limit)
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    end_times = train_epoch(model, DataLoader(train, shuffle=True, drop_last=True, **options), args.lr)
    result = {
        "images_per_second": len(end_times) * args.batch_size / end_times[-1],
        "mAP": mean_average_precision(model, DataLoader(test, **options)),
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
