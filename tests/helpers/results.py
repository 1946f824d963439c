"""Results of a comparison with made-up scores, and their files of predictions."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from helpers.evaluations import split_metrics
from probmcl.evaluation.scores import ScoredRows, write_scores
from probmcl.experiments.results import Result
from probmcl.store.evaluation import Retrieval
from probmcl.store.run_metadata import ProtocolFingerprint

IMAGES, CLASSES = 300, 4
FINGERPRINT = ProtocolFingerprint(data="d", split="s", encoder="e", augmentation="a", budget="b", all="0123456789ab")


def labels() -> torch.Tensor:
    """Draw the labels of all images, the same in every call."""
    return (torch.rand(IMAGES, CLASSES, generator=torch.Generator().manual_seed(0)) < 0.4).float()


def made_result(folder: Path, name: str, head: Any, *, noise: float, seed: int = 0, validation: float = 0.5) -> Result:
    """Make the result of a classifier that scores labels with this much noise, and write its predictions."""
    truth = labels()
    identity = f"{name} {head} {seed}"
    generator = torch.Generator().manual_seed(zlib.crc32(identity.encode()))  # the noise differs between classifiers
    scores = torch.sigmoid(truth + noise * torch.randn(truth.shape, generator=generator))
    predictions = folder / f"{identity}.npz"
    images = [f"{row}.jpg" for row in range(IMAGES)]
    write_scores(predictions, images, ScoredRows(scores.numpy(), truth.numpy(), np.ones(truth.shape, dtype=bool)))
    is_trained = head != "frozen"
    return Result(
        name=name,
        head=head,
        method=name if is_trained else None,
        seed=seed,
        validation=validation,
        test=split_metrics(scores, truth, split="test"),
        macro_F1=0.5,
        by_embedding=Retrieval(jaccard_at_10=0.2, mAP=0.1),
        by_probabilities=Retrieval(jaccard_at_10=0.3, mAP=None),
        learning_rate=1e-3 if is_trained else None,
        weight_decay=1e-4 if is_trained else None,
        trials=1,
        images_seen=1000,
        seconds=10.0 + seed,
        parameters=5,
        gmac=1.0,
        training_speed=None,
        prediction_speed=2.0,
        peak_memory=None,
        fidelity="standard",
        reference="",
        fingerprint=FINGERPRINT,
        predictions=predictions.name,
        folder=folder,
    )


def made_results(folder: Path) -> list[Result]:
    """Make two seeds of the probe, a good method with two heads, one as good as the probe, and one that is worse."""
    results = []
    for seed in (0, 1):
        results += [
            made_result(folder, "frozen probe", "frozen", noise=1.5, seed=seed),
            made_result(folder, "good", "own head", noise=0.5, seed=seed, validation=0.8),
            made_result(folder, "good", "re-probed", noise=0.6, seed=seed, validation=0.7),
            made_result(folder, "same", "re-probed", noise=1.5, seed=seed, validation=0.6),
            made_result(folder, "bad", "own head", noise=4.0, seed=seed, validation=0.3),
        ]
    return results
