"""Make the picture of the README: a model's probabilities for four scenes of handwritten digits.

    python docs/figures/make_digits_predictions.py [FOLDER]

It trains a tiny encoder from random weights, which takes some minutes. FOLDER keeps the scenes and the run (default: a
temporary folder); if it holds the run already, only the picture is drawn.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

import probmcl
from probmcl.demo.digits import write_digits
from probmcl.inference import Predictions
from probmcl.readers import read

PICTURE = Path(__file__).with_name("digits_predictions.png")
PRESENT, ABSENT, INK = "#1b62a5", "#c4ccd4", "#222222"
SCENES = 4


def main(folder: Path) -> None:
    """Write the scenes, train a model and draw its predictions."""
    data, run = folder / "digits", folder / "run"
    if not run.exists():
        write_digits(data, train=3000, val=500, test=1000)
        training: dict[str, Any] = {"method": "bce", "epochs": 20, "lr": 0.01, "tune": "all"}
        probmcl.train(data, encoder="test_resnet", weights="none", image_size=48, out=run, **training)
    model, records = probmcl.load(run), read(data)
    # The first test scenes with two to four digits.
    rows = [row for row in records.rows("test") if 2 <= records.labels[row].sum() <= 4][:SCENES]
    paths = [records.paths[row] for row in rows]
    draw(paths, model.predict(paths), records.labels[rows]).savefig(PICTURE, dpi=144)


def draw(paths: list[Path], predictions: Predictions, labels: NDArray[np.float32]) -> Figure:
    """Draw each scene above a bar and a threshold per class; the bars of the digits in the scene are blue."""
    threshold, positions = np.broadcast_to(predictions.threshold, len(predictions.names)), range(len(predictions.names))
    figure = Figure(figsize=(9, 4.6), layout="constrained")
    for column, axes in enumerate(figure.subplots(2, len(paths), height_ratios=(1, 1.25)).T):
        scene, bars = axes
        scene.imshow(Image.open(paths[column]), interpolation="nearest")
        scene.axis("off")
        present = labels[column] > 0
        bars.barh(predictions.names, predictions.scores[column], color=np.where(present, PRESENT, ABSENT))
        bars.scatter(threshold, positions, marker="|", s=60, color=INK, linewidth=1.2)
        bars.set(xlim=(0, 1), xticks=(0, 0.5, 1))
        bars.tick_params(length=0, labelsize=9, labelcolor=INK, labelleft=column == 0)
        bars.invert_yaxis()
        bars.spines[["top", "right", "left"]].set_visible(False)
    figure.supxlabel("predicted probability (blue: the digit is in the scene; |: decision threshold)", fontsize=10)
    return figure


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))
