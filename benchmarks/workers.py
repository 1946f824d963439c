"""Compare images/s of our worker processes with torch's DataLoader, which needs shared memory, on the same work."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # before torch: waiting threads must not spin on busy cores

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from probmcl.data.image_files import images_below
from probmcl.data.images import Preprocessing, read_image
from probmcl.runtime.workers import worker_pool
from rounds import alternate, median_ratio


def decode(preprocessing: Preprocessing, paths: list[Path]) -> Tensor:
    """Return a batch of images."""
    return torch.stack([preprocessing(read_image(path, preprocessing.size)) for path in paths])


def constant(preprocessing: Preprocessing, paths: list[Path]) -> Tensor:
    """Return a batch without reading images, so that only the cost of sending it is measured."""
    return torch.zeros(len(paths), 3, preprocessing.size, preprocessing.size)


Work = Callable[[list[Path]], Tensor]


def ours(work: Work, batches: list[list[Path]], workers: int) -> float:
    """Return images/s of our pool."""
    start = time.perf_counter()
    with worker_pool(work, workers) as map_batches:
        images = sum(len(batch) for batch in map_batches(batches))
    return images / (time.perf_counter() - start)


def data_loader(work: Work, batches: list[list[Path]], workers: int) -> float:
    """Return images/s of a DataLoader with the same batches."""
    paths = [path for batch in batches for path in batch]
    order = iter(range(len(paths)))
    rows = [[next(order) for _ in batch] for batch in batches]
    loader: DataLoader[Tensor] = DataLoader(
        paths,  # type: ignore[arg-type]
        batch_sampler=rows,
        collate_fn=work,
        num_workers=workers,
        multiprocessing_context="fork",
    )
    start = time.perf_counter()
    images = sum(len(batch) for batch in loader)
    return images / (time.perf_counter() - start)


def main() -> None:
    """Print the speeds of both in each round, and the medians of their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of images")
    parser.add_argument("--limit", type=int, default=1500, help="images per round")
    parser.add_argument("--size", type=int, default=224, help="side of the input in pixels")
    parser.add_argument("--batch-size", type=int, default=32, help="images per batch")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="worker processes")
    parser.add_argument("--rounds", type=int, default=5, help="measurements per competitor")
    options = parser.parse_args()
    paths = sorted(images_below(options.images))[: options.limit]
    batches = [paths[start : start + options.batch_size] for start in range(0, len(paths), options.batch_size)]
    preprocessing = Preprocessing(options.size, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    for title, work in (("decoding", decode), ("sending only", constant)):
        arguments = (partial(work, preprocessing), batches, options.workers)
        competitors = {"probmcl": partial(ours, *arguments), "DataLoader": partial(data_loader, *arguments)}
        speeds = alternate(competitors, options.rounds, "images/s")
        print(f"{title}: {median_ratio(speeds['probmcl'], speeds['DataLoader']):.2f} of the speed of DataLoader")


if __name__ == "__main__":
    main()
