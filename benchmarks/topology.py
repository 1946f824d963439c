"""Measure label agreement, alignment and uniformity of every encoder of a finished run on its test images.

The paper claims "a meaningful semantic topology" of the features that ProbMCL learns.

    python benchmarks/topology.py RUN
"""

import sys
from pathlib import Path

import numpy as np
import torch

from probmcl.console import Console
from probmcl.evaluation.embedding import Topology, topology
from probmcl.inference import Model, load
from probmcl.report.embedding import model_with_encoder
from probmcl.report.run_data import RunData, read_run_data
from probmcl.run.results import CandidateId


def measure(run: RunData, model: Model) -> Topology:
    """Return the measures of a model's features on all test images."""
    features = model.embed([Path(path) for path in run.test.paths], console=Console.quiet())
    labels = torch.from_numpy(run.test.positive.astype(np.float32))
    return topology(torch.from_numpy(features), labels, torch.from_numpy(run.test.known))


def main(folder: Path) -> None:
    """Print a table with one row per encoder."""
    model = load(folder)
    run = read_run_data(model)
    print("| encoder | label agreement | alignment | uniformity |\n|---|---:|---:|---:|")
    for entry in run.metadata.candidates:
        identity = CandidateId(entry.method, entry.head, entry.trial)
        if identity.head != "own head":  # the probe of a method has the same encoder as its own head
            agreement, alignment, uniformity = measure(run, model_with_encoder(run, model, identity))
            print(f"| {entry.name} | {agreement:.3f} | {alignment:.3f} | {uniformity:.3f} |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
