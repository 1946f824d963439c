"""Every method on one encoder, one set of views and one budget, each with its learning rate chosen on validation.

    python benchmarks/compare_methods.py DATA --weights FILE --image-size 160 --views 12 --out FOLDER

All contenders run in one run folder, from the same stored activations. The table has, for each method and preset, the
learning rate that was best on validation (by the re-probed features), and validation and test mAP of its own head and
of the probe. Test decides nothing.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from rich.console import Console
from rich.table import Table

from probmcl.data import describe, read
from probmcl.files import write_json
from probmcl.methods import find_method
from probmcl.pipeline import train
from probmcl.results import Run
from probmcl.settings import Contender, EncoderSettings, Settings, method_settings, usual_training
from probmcl.training import Training
from probmcl.training.progress import Display

METHODS = (("bce", "default"), ("asl", "default"), ("probmcl", "default"), ("probmcl", "paper"))


def contender(method: str, preset: str, learning_rate: float, views: int) -> Contender:
    """A method with a preset and a learning rate, on so many views of each image."""
    usual = usual_training(method, "last") | {"learning_rate": learning_rate}
    training = Training(**usual | {"epochs": views // find_method(method).n_views})
    return Contender(method, method_settings(method, preset), training, f"{method} {preset} {learning_rate:g}")


def rows(run: Run, rates: list[float]) -> list[dict[str, object]]:
    """The best learning rate of each method, and what it reached."""
    found = [row("frozen", None, run, {"probe": "frozen probe"})]
    for method, preset in METHODS:
        names = {rate: f"{method} {preset} {rate:g}" for rate in rates}
        best = max(rates, key=lambda rate: run.candidates[f"{names[rate]}, re-probed"].validation_map)
        kinds = {"own": f"{names[best]}, own head", "probe": f"{names[best]}, re-probed"}
        found.append(row(f"{method} {preset}", best, run, kinds))
    return found


def row(name: str, rate: float | None, run: Run, kinds: dict[str, str]) -> dict[str, object]:
    """What one method reached, by its own head and by the probe."""
    there = {kind: run.candidates[c] for kind, c in kinds.items() if c in run.candidates}
    scores = {f"{kind} validation": c.validation["mAP"] for kind, c in there.items()}
    scores |= {f"{kind} test": c.test["mAP"] for kind, c in there.items() if c.test}
    return {"method": name, "learning rate": rate, **scores, "seconds": there["probe"].seconds}


def table(found: list[dict[str, object]]) -> Table:
    """The same for people, in percent."""
    columns = ("method", "learning rate", "own validation", "own test", "probe validation", "probe test", "seconds")
    shown = Table(*columns)
    for entry in found:
        shown.add_row(*(written(column, entry.get(column)) for column in columns))
    return shown


def written(column: str, value: object) -> str:
    """One cell."""
    if not isinstance(value, float):
        return "–" if value is None else str(value)
    return f"{100 * value:.2f}" if column.endswith(("validation", "test")) else f"{value:g}"


def main() -> None:
    """Train everything, then show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--encoder", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", default="pretrained")
    parser.add_argument("--image-size", type=int, default=160)
    parser.add_argument("--views", type=int, default=12, help="times that each method sees each image")
    parser.add_argument("--rates", type=float, nargs="+", default=[3e-4, 1e-3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    records = read(asked.data, seed=asked.seed)
    display = Display(Console())
    display.say(describe(records))
    settings = Settings(
        method="comparison",
        contenders=tuple(contender(*m, rate, asked.views) for m, rate in product(METHODS, asked.rates)),
        encoder=EncoderSettings(asked.encoder, asked.weights, asked.image_size),
        tune="last",
        seed=asked.seed,
    )
    run = train(records, settings, asked.out, display, tested="all")
    found = rows(run, asked.rates)
    write_json(asked.out / "comparison.json", found)
    display.console.print(table(found))


if __name__ == "__main__":
    main()
