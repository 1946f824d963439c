"""What a user would write instead: timm, torch and binary cross-entropy, one epoch of train, then the test mAP.

DATA is a folder with labels.csv (filename, split, labels as 0-based indices, perhaps difficult), classes.txt, images/.
"""

import argparse
import csv
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: threads that wait on busy cores must not spin

import probmcl.runtime.torchvision_compat  # noqa: F401  # only so that a torchvision built for another torch can be imported

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
    """One split: image, labels, and which of them are known."""

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
    """A timm model with a new classifier, on pretrained weights, a safetensors file's, or none."""
    model: Any = timm.create_model(encoder, pretrained=weights == "pretrained")
    if weights not in ("pretrained", "none"):
        model.load_state_dict(load_file(weights))
    model.reset_classifier(classes)
    return model


def views(model: Any, size: int) -> tuple[Callable[[Image.Image], Tensor], Callable[[Image.Image], Tensor]]:
    """The usual transforms for training and for testing."""
    finish = [transforms.ToTensor(), transforms.Normalize(model.pretrained_cfg["mean"], model.pretrained_cfg["std"])]
    crop = transforms.RandomResizedCrop(size, scale=(0.5, 1.0))
    return (
        transforms.Compose([crop, transforms.RandomHorizontalFlip(), *finish]),
        transforms.Compose([transforms.Resize((size, size)), *finish]),
    )


def train_epoch(model: Any, batches: DataLoader[Any], lr: float) -> list[float]:
    """One epoch with AdamW and one cycle of the learning rate; when each step ended, in seconds from the start."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=lr, total_steps=max(len(batches), 10))
    model.train()
    start, ended = time.perf_counter(), []
    for images, labels, known in batches:
        loss = nn.functional.binary_cross_entropy_with_logits(model(images), labels, weight=known)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        ended.append(time.perf_counter() - start)
        if len(ended) % 10 == 0:
            print(f"step {len(ended)} of {len(batches)}: loss {loss.item():.4f}", flush=True)
    return ended


@torch.inference_mode()
def mean_average_precision(model: Any, batches: DataLoader[Any]) -> float:
    """Over the classes with a known positive, difficult entries left out."""
    model.eval()
    rows = [(model(images), labels, known) for images, labels, known in batches]
    scores, labels, known = (torch.cat(column).numpy() for column in zip(*rows, strict=True))
    seen = [(scores[known[:, c] == 1, c], labels[known[:, c] == 1, c]) for c in range(labels.shape[1])]
    return float(np.mean([average_precision_score(truth, score) for score, truth in seen if truth.any()]))


def arguments() -> argparse.ArgumentParser:
    """The flags."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with labels.csv, classes.txt and images/")
    parser.add_argument("--encoder", default="tf_efficientnet_lite0", help="any timm model")
    parser.add_argument("--weights", default="pretrained", help="pretrained, none, or a safetensors file")
    parser.add_argument("--image-size", type=int, default=224, help="side of the square input")
    parser.add_argument("--batch-size", type=int, default=64, help="images in a step")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate at its top")
    parser.add_argument("--workers", type=int, default=2, help="processes that decode")
    parser.add_argument("--limit", type=int, default=None, help="images of each split, to try it out")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
    return parser


def main() -> None:
    """Train, test, and print the numbers as JSON in the last line."""
    start, args = time.perf_counter(), arguments().parse_args()
    torch.manual_seed(args.seed)
    classes = len((args.data / "classes.txt").read_text(encoding="utf-8").splitlines())
    model = create_model(args.encoder, args.weights, classes)
    for_training, for_testing = views(model, args.image_size)
    train = Photos(args.data, "train", for_training, args.limit)
    test = Photos(args.data, "test", for_testing, args.limit)
    options = {"batch_size": args.batch_size, "num_workers": args.workers}
    ended = train_epoch(model, DataLoader(train, shuffle=True, drop_last=True, **options), args.lr)
    result = {
        "images_per_second": len(ended) * args.batch_size / ended[-1],
        "mAP": mean_average_precision(model, DataLoader(test, **options)),
        "seconds": time.perf_counter() - start,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
