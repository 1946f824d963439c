"""The matrix of behavior.py: each case is a name and its steps, one line each.

A case runs in an empty folder, or in a copy of the folder of the case after `from`. Its steps are

    probmcl WORDS              a command, in one process
    torchrun WORDS             a command, in two processes
    SIGNAL PATTERN probmcl ... a command that gets a signal right after it writes a file with such a name; SIGNAL is
                               kill, interrupt, terminate or hangup
    page HEADING               the code of a section of the tree's docs/python.md
    python CODE                other code
    cd FOLDER                  another working directory
    set FILE KEY JSON          a change of a file; behavior_damage.py has all of these steps

INPUTS is the folder written by behavior_inputs.py, CASE the folder of the case, and SMALL, PHOTOS and TINY are below.
Exit codes, outputs, and files that are new or changed are compared after each case.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WORDS = {
    "SMALL": "TINY --epochs 2",
    "TINY": "ENCODER --weights none --batch-size 8",
    "ENCODER": "--encoder test_convnext --image-size 32 --workers 0 --probe-epochs 3",
    "KEYWORDS": 'encoder="test_convnext", weights="none", image_size=32, workers=0, probe_epochs=3, batch_size=8,'
    " report=False",
    "METHODS": "--methods bce asl --seeds 2 --epochs 2",
    "PHOTOS": "INPUTS/photos",
}
"""Words in steps and what they mean, in the order in which they are replaced."""


VARIES = (
    # A checksum of absolute paths, in a folder of the case.
    ("resume/changed photographs *", "file *run.json", r"^records = .*$", "records = VARIES"),
    ("python/page", "file *run.json", r"^records = .*$", "records = VARIES"),
    ("python/page", "file *report.json", r"data_hash = .*$", "data_hash = VARIES"),
    ("python/page", "file *report.html", r'<code class="hash">\w+$', "<code>VARIES"),
    # The size of a file with measured speeds.
    ("wrong run/log is huge", "* stderr", r"instead of \d+", "instead of N"),
    # What torchrun itself prints if a process fails: which one is noticed first is a race.
    ("two processes/*", "* stderr", r"^[WE]\d{4} [\s\S]*", "(torchrun)"),
    # Measured speeds in tables, next to the measured time.
    ("*", "* stdout", r" +N s +(?:–|[\d,]+) +(?:–|[\d,]+)(?= )", " N s SPEED SPEED"),
    ("*", "file *.md", r"\| N s \| [^|]+ \| [^|]+ \|", "| N s | SPEED | SPEED |"),
    ("*", "file *.tex", r"& N s & \S+ & \S+ &", "& N s & SPEED & SPEED &"),
    ("*", "file *.html", r"<td>N s\n</td>\n<td>.*\n</td>\n<td>.*\n</td>", "<td>N s, SPEED, SPEED</td>"),
)
"""Cases, outputs or files, a regular expression of what varies from run to run in them alone, and its replacement."""


@dataclass(frozen=True)
class Case:
    """Steps that run one after the other in the same folder.

    Attributes:
        name: GROUP/NAME.
        start: the case whose folder is copied first, if any.
    """

    name: str
    steps: tuple[str, ...]
    start: str | None = None


# Commands that need no run.

CHECKS = {
    "photographs": "PHOTOS",
    "table": "PHOTOS/labels.csv",
    "without splits": "INPUTS/grouped",
    "another seed": "INPUTS/grouped --seed 7",
    "groups": "INPUTS/grouped --group patient",
    "no groups": "INPUTS/grouped --group ''",
    "folds": "INPUTS/grouped --group patient --folds 4 --fold 2",
    "ignored column": "INPUTS/grouped --ignore patient",
    "class columns": "INPUTS/site",
    "leaks": "INPUTS/leaky",
    "allowed leaks": "INPUTS/leaky --allow-leaks",
    "problems": "INPUTS/problems",
    "skipped problems": "INPUTS/problems --skip-bad 0.2 --allow-leaks",
    "hostile images": "INPUTS/hostile --range 0,65535",
    "16 bits": "INPUTS/deep --range auto",
    "16 bits, full range": "INPUTS/deep --range full",
    "16 bits, no range": "INPUTS/deep",
    "hierarchy": "PHOTOS --hierarchy INPUTS/hierarchy.csv",
    "hierarchy of unknown classes": "PHOTOS --hierarchy INPUTS/hierarchy_unknown.csv",
    "unknown label": "PHOTOS --unknown-label sky",
    "none label": "PHOTOS --none-label sky",
    "format": "PHOTOS --format table --labels-column labels --path-column filename --split-column split",
    "no split column": "PHOTOS --split-column ''",
    "separator": "PHOTOS --separator ;",
    "two processes": "PHOTOS --workers 2",
}

DEGENERATE_TABLES = (
    *("one_class_always", "only_class_always", "own_class_each", "own_class_each_no_splits", "no_positive_in_test"),
    *("no_positive_in_val", "all_positive_in_test", "line_end_in_header", "three_images", "one_image", "no_label"),
    *("header_only", "empty_file", "no_header", "empty_split", "unknown_split", "no_image_exists"),
    *("group_in_two_splits", "contradicting_rows", "column_twice"),
)

HELP = (
    *("check", "train", "compare", "evaluate", "predict", "explain", "calibrate", "report", "methods", "encoders"),
    *("cost", "demo"),
)

LISTS = {
    "help": "--help",
    "no command": "",
    "version": "--version",
    "methods": "methods",
    "methods probmcl": "methods probmcl",
    "methods csra": "methods csra",
    "methods unknown": "methods probmlc",
    "encoders": "encoders",
    "encoders pattern": "encoders 'test_*'",
    "encoders full name": "encoders resnet50",
    "encoders unknown": "encoders resnet5000",
    "cost": "cost bce probmcl csra --encoders test_resnet --image-sizes 64 --classes 9 80 --out costs.csv",
    "cost json": "cost bce --encoders test_resnet --image-sizes 64 --classes 3 --out costs.json",
    "cost markdown": "cost probmcl:paper --encoders test_resnet --image-sizes 64 --classes 3 --out costs.md",
    "cost of the paper": "cost --paper",
    "cost of a preset": "cost probmcl --preset paper --encoders test_resnet --image-sizes 64",
}

# Training.

TRAININGS = {
    "bce": "PHOTOS SMALL --method bce",
    "auto": "PHOTOS SMALL --method auto",
    "probmcl": "PHOTOS SMALL --method probmcl --set temperature=0.2",
    "probmcl paper": "PHOTOS SMALL --method probmcl --preset paper",
    "supcon": "PHOTOS SMALL --method supcon",
    "csra": "PHOTOS SMALL --method csra",
    "ml_gcn": "PHOTOS SMALL --method ml_gcn --no-report",
    "probe": "PHOTOS TINY --method probe",
    "recipe": "PHOTOS TINY --recipe INPUTS/recipe.toml --no-report",
    "built-in recipe": "PHOTOS SMALL --recipe coco-csra-resnet101-448 --no-report",
    "loss": "PHOTOS SMALL --loss INPUTS/losses.py:good",
    "contrastive loss": "PHOTOS SMALL --loss INPUTS/losses.py:contrast --no-report",
    "isotonic": "INPUTS/many ENCODER --weights none --epochs 2 --method bce --calibration isotonic",
    "isotonic, few": "PHOTOS SMALL --method bce --calibration isotonic --no-report",
    "no calibration": "PHOTOS SMALL --method bce --calibration none",
    "thresholds f1": "PHOTOS SMALL --method bce --thresholds f1 --no-report",
    "thresholds precision": "PHOTOS SMALL --method bce --thresholds precision:0.6 --no-report",
    "thresholds recall": "PHOTOS SMALL --method bce --thresholds recall:0.9 --no-report",
    "thresholds cost": "PHOTOS SMALL --method bce --thresholds cost:10,1 --no-report",
    "thresholds number": "PHOTOS SMALL --method bce --thresholds 0.3 --no-report",
    "tune all": "PHOTOS SMALL --method bce --tune all --no-report",
    "tune none": "PHOTOS SMALL --method bce --tune none --no-report",
    "cache": "PHOTOS SMALL --method bce --tune all --cache CASE/cache --no-report",
    "automatic cache": "PHOTOS SMALL --method bce --tune all --cache auto --no-report",
    "budget": "PHOTOS TINY --method bce --budget 20s --no-report",
    "groups": "INPUTS/grouped SMALL --method bce --group patient --seed 5",
    "folds": "INPUTS/grouped SMALL --method bce --group patient --folds 3 --fold 2 --no-report",
    "problems": "INPUTS/problems SMALL --method bce --skip-bad 0.2 --allow-leaks",
    "leaks": "INPUTS/leaky SMALL --method bce",
    "16 bits": "INPUTS/deep SMALL --method bce --range auto",
    "hierarchy": "PHOTOS SMALL --method bce --hierarchy INPUTS/hierarchy.csv --no-report",
    "unknown labels": "PHOTOS SMALL --method auto --unknown-label sky --no-report",
    "augment paper": "PHOTOS SMALL --method bce --augment paper --no-report",
    "augment none": "PHOTOS SMALL --method bce --augment none --no-report",
    "no neighbors": "PHOTOS SMALL --method bce --no-neighbors",
    "learning rate": "PHOTOS SMALL --method asl --lr 0.01 --set gamma_negative=2 --no-report",
    "worker processes": "PHOTOS --encoder test_convnext --weights none --image-size 32 --workers 2 --epochs 2",
    "another encoder": "PHOTOS --encoder test_resnet --weights none --image-size 64 --workers 0 --epochs 2",
}

KILLED_AFTER = {
    "the plan": "plan*",
    "the frozen probe": "frozen*.safetensors",
    "training": "bce*trained*",
    "its own head": "bce*own?head*",
    "the outcome": "bce.outcome.json",
}

SIGNALS = ("interrupt", "terminate", "hangup")

TRAINED_LAYOUTS = ("list-space", "columns-unknown", "test-without-column")

# Commands that need a finished run. It is a copy of that of train/bce, in the folder `run`.

WITH_RUN = {
    "predict/terminal": "predict run PHOTOS/0.jpg PHOTOS/1.jpg --workers 0",
    "predict/csv": "predict run PHOTOS --workers 0 --out out.csv",
    "predict/json": "predict run PHOTOS --workers 0 --out out.json",
    "predict/short": "predict run PHOTOS --workers 0 --format short --out out.csv",
    "predict/short on the terminal": "predict run PHOTOS --workers 0 --format short",
    "predict/raw": "predict run PHOTOS --workers 0 --raw --out out.csv",
    "predict/abstain": "predict run PHOTOS --workers 0 --abstain 0.2 --out out.csv",
    "predict/abstain json": "predict run PHOTOS --workers 0 --abstain 0.2 --out out.json",
    "predict/abstain on the terminal": "predict run PHOTOS --workers 0 --abstain 0.4",
    "predict/threshold": "predict run PHOTOS --workers 0 --threshold 0.7 --out out.json",
    "predict/raw cells": "predict run PHOTOS --workers 0 --raw-cells --out out.csv",
    "predict/batches": "predict run PHOTOS --workers 0 --batch-size 5 --out out.csv",
    "predict/two workers": "predict run PHOTOS --workers 2 --out out.csv",
    "predict/pattern": "predict run 'INPUTS/photos/1*.jpg' --workers 0",
    "predict/list of paths": "predict run INPUTS/images.txt --workers 0",
    "predict/problems": "predict run INPUTS/problems --workers 0 --out out.csv",
    "predict/hostile images": "predict run INPUTS/hostile --workers 0 --out out.json",
    "predict/16 bits": "predict run INPUTS/deep --workers 0",
    "evaluate/own split": "evaluate run --workers 0 --json scores.json",
    "evaluate/validation": "evaluate run --workers 0 --split val --json scores.json",
    "evaluate/train": "evaluate run --workers 0 --split train --draws 0",
    "evaluate/raw": "evaluate run --workers 0 --raw --json scores.json",
    "evaluate/abstain": "evaluate run --workers 0 --abstain 0.3 --json scores.json",
    "evaluate/own seed": "evaluate run --workers 0 --draws 50 --seed 3 --json scores.json",
    "evaluate/other table": "evaluate run INPUTS/site --workers 0 --rename INPUTS/names.csv --json scores.json",
    "evaluate/renamed by json": "evaluate run INPUTS/site --workers 0 --rename INPUTS/names.json",
    "evaluate/other classes": "evaluate run INPUTS/site --workers 0",
    "evaluate/by scanner": "evaluate run INPUTS/site --workers 0 --rename INPUTS/names.csv --by scanner"
    " --group who --json scores.json",
    "evaluate/groups": "evaluate run INPUTS/site --workers 0 --rename INPUTS/names.csv --group who"
    " --aggregate group=max --json scores.json",
    "evaluate/problems": "evaluate run INPUTS/problems --workers 0 --skip-bad 0.9",
    "calibrate/again": "calibrate run",
    "calibrate/recall": "calibrate run --thresholds recall:0.8",
    "calibrate/f1": "calibrate run --thresholds f1",
    "calibrate/precision": "calibrate run --thresholds precision:0.99",
    "calibrate/isotonic": "calibrate run --calibration isotonic",
    "calibrate/none": "calibrate run --calibration none",
    "calibrate/other site": "calibrate run INPUTS/site --rename INPUTS/names.csv --group who --workers 0",
    "explain/decided": "explain run PHOTOS/0.jpg PHOTOS/1.jpg --workers 0 --out maps",
    "explain/all": "explain run PHOTOS/0.jpg --labels all --workers 0 --out maps",
    "explain/labels": "explain run PHOTOS/0.jpg PHOTOS/2.jpg --labels sky roof --threshold 0.3 --workers 0 --out maps",
    "explain/problems": "explain run INPUTS/problems/3.jpg INPUTS/problems/4.jpg PHOTOS/1.jpg --workers 0 --out maps",
    "train/with the split of a run": "train PHOTOS SMALL --method bce --split-file run/split.csv --no-report --out new",
    "train/with weights of a run": "train PHOTOS ENCODER --epochs 2 --method bce --weights run --no-report --out new",
    "check/with the split of a run": "check PHOTOS --split-file run/split.csv --workers 0",
    "report/again": "report run",
    "report/no images": "report run --no-images --out page.html",
}

# Wrong inputs.

WRONG_OPTIONS = {
    "unknown command": "trian PHOTOS",
    "unknown option": "train PHOTOS --epoch 3",
    "no data": "train",
    "check without data": "check",
    "data not found": "train INPUTS/nowhere SMALL",
    "check of no data": "check INPUTS/nowhere",
    "data is an image": "train PHOTOS/0.jpg SMALL",
    "empty folder": "check INPUTS/empty_folder",
    "unknown method": "train PHOTOS SMALL --method probmlc",
    "unknown preset": "train PHOTOS SMALL --method probmcl --preset papr",
    "unknown setting": "train PHOTOS SMALL --method probmcl --set temprature=1",
    "setting of a wrong type": "train PHOTOS SMALL --method probmcl --set temperature=hot",
    "setting out of range": "train PHOTOS SMALL --method probmcl --set temperature=-1",
    "setting without value": "train PHOTOS SMALL --method probmcl --set temperature",
    "unknown encoder": "train PHOTOS --encoder resnet5000 --weights none",
    "unknown weights": "train PHOTOS --encoder test_resnet --weights INPUTS/nowhere.safetensors",
    "damaged weights": "train PHOTOS --encoder test_resnet --weights INPUTS/weights.safetensors --image-size 32",
    "tiny image size": "train PHOTOS --encoder test_resnet --weights none --image-size 0",
    "epochs of a wrong type": "train PHOTOS SMALL --epochs many",
    "no epochs": "train PHOTOS TINY --epochs 0",
    "budget": "train PHOTOS TINY --budget soon",
    "budget and epochs": "train PHOTOS TINY --budget 5m --epochs 3",
    "batch size": "train PHOTOS SMALL --batch-size 0",
    "learning rate": "train PHOTOS SMALL --lr 0",
    "learning rate nan": "train PHOTOS SMALL --lr nan",
    "unknown augmentation": "train PHOTOS SMALL --augment strong",
    "unknown tune": "train PHOTOS SMALL --tune first",
    "unknown calibration": "train PHOTOS SMALL --calibration platt",
    "unknown thresholds": "train PHOTOS SMALL --thresholds best",
    "threshold rule out of range": "train PHOTOS SMALL --thresholds recall:2",
    "unknown device": "train PHOTOS SMALL --device tpu",
    "negative workers": "train PHOTOS SMALL --workers -1",
    "folder in use": "train PHOTOS SMALL --out PHOTOS",
    "out is a file": "train PHOTOS SMALL --out INPUTS/a_file",
    "cache is a file": "train PHOTOS SMALL --tune all --method bce --cache INPUTS/a_file",
    "loss and method": "train PHOTOS SMALL --method bce --loss INPUTS/losses.py:good",
    "loss without function": "train PHOTOS SMALL --loss INPUTS/losses.py",
    "loss of an unknown function": "train PHOTOS SMALL --loss INPUTS/losses.py:god",
    "loss that is no function": "train PHOTOS SMALL --loss INPUTS/losses.py:not_a_function",
    "loss with a bug": "train PHOTOS SMALL --loss INPUTS/losses.py:has_a_bug",
    "loss that is a vector": "train PHOTOS SMALL --loss INPUTS/losses.py:is_a_vector",
    "loss that is nan": "train PHOTOS SMALL --loss INPUTS/losses.py:is_nan",
    "loss of other arguments": "train PHOTOS SMALL --loss INPUTS/losses.py:of_other_arguments",
    "loss in no file": "train PHOTOS SMALL --loss INPUTS/nowhere.py:good",
    "loss with a syntax error": "train PHOTOS SMALL --loss INPUTS/syntax_error.py:loss",
    "recipe not found": "train PHOTOS SMALL --recipe coco-csra",
    "recipe with an unknown key": "train PHOTOS SMALL --recipe INPUTS/recipe_unknown_key.toml",
    "recipe of a wrong type": "train PHOTOS SMALL --recipe INPUTS/recipe_wrong_type.toml",
    "recipe with nan": "train PHOTOS SMALL --recipe INPUTS/recipe_nan.toml",
    "recipe with a syntax error": "train PHOTOS SMALL --recipe INPUTS/recipe_syntax.toml",
    "unknown format": "check PHOTOS --format excel",
    "no such path column": "check PHOTOS --path-column file",
    "no such labels column": "check PHOTOS --labels-column tags",
    "no such split column": "check PHOTOS --split-column fold",
    "no such group column": "check PHOTOS --group patient",
    "no such weight column": "check PHOTOS --weight-column weight",
    "no such ignored column": "check PHOTOS --ignore film",
    "unknown meaning of a blank": "check PHOTOS --blank maybe",
    "unknown meaning of -1": "check INPUTS/site --minus-one maybe",
    "meaning for an unknown class": "check INPUTS/site --minus-one castle=unknown",
    "unknown rows": "check PHOTOS --rows files",
    "images not found": "check PHOTOS/labels.csv --images INPUTS/nowhere",
    "images elsewhere": "check PHOTOS/labels.csv --images INPUTS/deep",
    "hierarchy not found": "check PHOTOS --hierarchy INPUTS/nowhere.csv",
    "hierarchy of other columns": "check PHOTOS --hierarchy PHOTOS/labels.csv",
    "range": "check INPUTS/deep --range 9,1",
    "range of words": "check INPUTS/deep --range low,high",
    "skip-bad out of range": "check PHOTOS --skip-bad 2",
    "fold without folds": "train INPUTS/grouped SMALL --fold 2",
    "fold out of range": "train INPUTS/grouped SMALL --folds 3 --fold 4",
    "one fold": "train INPUTS/grouped SMALL --folds 1",
    "split file of other images": "train PHOTOS SMALL --split-file INPUTS/split.csv",
    "split file not found": "train PHOTOS SMALL --split-file INPUTS/nowhere.csv",
    "broken table": "check INPUTS/table_broken.csv --images PHOTOS",
    "table with a nul": "check INPUTS/table_nul.csv --images PHOTOS",
    "table with only a header in utf-16": "check INPUTS/table_utf16.csv --images PHOTOS",
    "damaged json": "check INPUTS/coco_damaged.json --images PHOTOS",
    "check writes below a file": "check PHOTOS --workers 0 --out INPUTS/a_file/check.json",
    "predict with no run": "predict INPUTS/nowhere PHOTOS",
    "predict with data as run": "predict PHOTOS PHOTOS",
    "evaluate no run": "evaluate INPUTS/nowhere",
    "calibrate no run": "calibrate INPUTS/a_file",
    "report no run": "report PHOTOS",
    "explain no run": "explain INPUTS/nowhere PHOTOS --out maps",
    "resume no run": "train --resume INPUTS/nowhere",
    "resume data": "train --resume PHOTOS",
    "resume no comparison": "compare --resume PHOTOS",
    "compare nothing": "compare",
    "compare unknown method": "compare PHOTOS TINY --methods probmlc",
    "compare no seeds": "compare PHOTOS TINY --methods bce --seeds 0",
    "compare no trials": "compare PHOTOS TINY --methods bce --trials 0",
    "compare twice the same": "compare PHOTOS TINY --methods bce bce",
    "add no comparison": "compare PHOTOS TINY METHODS --add PHOTOS",
    "cost of an unknown method": "cost bec",
    "cost of an unknown encoder": "cost bce --encoders resnet5000",
    "cost of no classes": "cost bce --encoders test_resnet --classes 0",
    "cost in another format": "cost bce --encoders test_resnet --image-sizes 64 --out costs.txt",
    "cost into an existing file": "cost bce --encoders test_resnet --image-sizes 64 --out INPUTS/exists.csv",
    "batch size without measure": "cost bce --encoders test_resnet --image-sizes 64 --batch-size 4",
}

WRONG_WITH_RUN = {
    "predict without images": "predict run",
    "predict no images": "predict run INPUTS/nowhere.jpg",
    "predict an empty folder": "predict run INPUTS/empty_folder",
    "predict no match": "predict run 'PHOTOS/*.gif'",
    "predict in another format": "predict run PHOTOS --out out.txt",
    "predict into an existing file": "predict run PHOTOS --out INPUTS/exists.csv",
    "predict threshold in percent": "predict run PHOTOS --threshold 50",
    "predict abstain out of range": "predict run PHOTOS --abstain 1.5",
    "predict abstain and raw": "predict run PHOTOS --abstain 0.1 --raw",
    "predict abstain and short": "predict run PHOTOS --abstain 0.1 --format short",
    "predict short json": "predict run PHOTOS --format short --out out.json",
    "predict batch size": "predict run PHOTOS --batch-size 0",
    "predict only unreadable": "predict run INPUTS/problems/4.jpg",
    "evaluate unknown split": "evaluate run --split validation",
    "evaluate unknown column": "evaluate run INPUTS/site --by hospital --rename INPUTS/names.csv",
    "evaluate unknown aggregate": "evaluate run INPUTS/site --group who --aggregate group=median",
    "evaluate aggregate of another column": "evaluate run INPUTS/site --group who --aggregate scanner=max",
    "evaluate names of unknown classes": "evaluate run INPUTS/site --rename INPUTS/names_unknown.csv",
    "evaluate damaged names": "evaluate run INPUTS/site --rename INPUTS/names_damaged.json",
    "evaluate into an existing file": "evaluate run --json INPUTS/exists.csv",
    "evaluate unreadable images": "evaluate run INPUTS/problems --split train",
    "calibrate unknown rule": "calibrate run --thresholds best",
    "calibrate with data of no common class": "calibrate run INPUTS/deep --workers 0",
    "explain unknown label": "explain run PHOTOS/0.jpg --labels castle --out maps",
    "explain into a folder in use": "explain run PHOTOS/0.jpg --out PHOTOS",
    "explain without out": "explain run PHOTOS/0.jpg",
    "explain against no run": "explain run PHOTOS/0.jpg --against INPUTS/nowhere --out maps",
    "report with no run": "report run INPUTS/nowhere --out page.html",
    "report into an image": "report run --out page.png",
    "report of the same run": "report run run --out page.html",
    "resume with epochs": "train --resume run --epochs 5",
    "resume with other data": "train INPUTS/grouped --resume run",
    "resume a finished run": "train --resume run",
    "train into the run": "train PHOTOS SMALL --out run",
    "train with weights of another encoder": "train PHOTOS --encoder test_resnet --weights run --image-size 32",
}

PREDICT = "probmcl predict run PHOTOS/1.jpg --workers 0"
REPORT = "probmcl report run --no-images"
RESUME = "probmcl train --resume run --no-report"
EVALUATE = "probmcl evaluate run --workers 0 --draws 0"
CALIBRATE = "probmcl calibrate run"

DAMAGED_RUNS = {
    **{
        f"{name} is deeply nested": (f"deep run/{name}.json", "relist run", PREDICT)
        for name in ("run", "labels", "config", "preprocessing", "calibration")
    },
    **{f"{name} is cut": (f"cut run/{name}.json", PREDICT) for name in ("labels", "preprocessing")},
    **{
        f"{name} is cut and relisted": (f"cut run/{name}.json", "relist run", PREDICT)
        for name in ("labels", "preprocessing", "calibration", "config")
    },
    **{
        f"{name} has a newer schema": (f"set run/{name}.json schema 99", "relist run", PREDICT, REPORT)
        for name in ("run", "labels", "config", "preprocessing", "calibration", "evaluation")
    },
    **{
        f"{name} has an older schema": (f"set run/{name}.json schema 0", "relist run", PREDICT, REPORT)
        for name in ("run", "labels", "evaluation")
    },
    **{
        f"{name} has an unknown key": (f'set run/{name}.json kolor "red"', "relist run", PREDICT, REPORT)
        for name in ("run", "labels", "config", "preprocessing", "calibration", "evaluation")
    },
    **{
        f"{name} lacks {key}": (f"unset run/{name}.json {key}", "relist run", REPORT)
        for name, key in (("run", "data"), ("labels", "names"), ("config", "jobs"), ("evaluation", "mAP"))
    },
    "manifest has a newer schema": ("set run/manifest.json schema 99", PREDICT),
    "manifest has an unknown key": ('set run/manifest.json kolor "red"', PREDICT),
    "run.json is a list": ("write run/run.json []", "relist run", PREDICT),
    "run.json is empty": ("empty run/run.json", "relist run", PREDICT),
    "run.json is huge": ("huge run/run.json", PREDICT),
    "run.json is missing": ("delete run/run.json", PREDICT),
    "manifest.json is missing": ("delete run/manifest.json", PREDICT),
    "manifest.json is cut": ('write run/manifest.json {"schema": 1, "files": {"run.json": {"si', PREDICT),
    "manifest names a file outside": ('set run/manifest.json files {"../../x": {"size": 1, "sha256": "00"}}', PREDICT),
    "manifest lists no model": ('unset run/manifest.json ["files","model.safetensors"]', PREDICT),
    "manifest is not updated": ('set run/calibration.json kind "none"', "probmcl evaluate run --workers 0"),
    "model is missing": ("delete run/model.safetensors", PREDICT),
    "model is cut": ("cut run/model.safetensors", PREDICT),
    "model is flipped": ("flip run/model.safetensors", PREDICT),
    "model is a pipe": ("pipe run/model.safetensors", PREDICT),
    "model is a link": ("link run/model.safetensors /etc/hostname", PREDICT),
    "model has a damaged header": ('header run/model.safetensors {"a": [', "relist run", PREDICT),
    "model overflows": (
        'header run/model.safetensors {"a": {"dtype": "F32", "shape": [1099511627776, 1099511627776, 1099511627776],'
        ' "data_offsets": [0, 0]}}',
        "relist run",
        PREDICT,
    ),
    "model lacks tensors": ('header run/model.safetensors {"__metadata__": {}}', "relist run", PREDICT),
    "split.csv is cut": ("cut run/split.csv", EVALUATE),
    "split.csv is empty": ("empty run/split.csv", "relist run", EVALUATE),
    "log is damaged": ('write run/metrics.jsonl {"stage": "bce"}\\n', "relist run", REPORT),
    "log is huge": ("huge run/metrics.jsonl", REPORT),
    "scores have a wrong type": ("array run/predictions/test.npz known f4 12 3", "relist run", REPORT),
    "scores are infinite": ("array run/predictions/test.npz scores inf 12 3", "relist run", REPORT),
    "scores are nan": ("array run/predictions/val.npz scores nan 12 3", "relist run", CALIBRATE),
    "labels are sevens": ("array run/predictions/test.npz labels 7 12 3", "relist run", REPORT),
    "scores have another shape": ("array run/predictions/test.npz scores f4 12 2", "relist run", REPORT),
    "scores are no archive": ("cut run/predictions/test.npz", "relist run", REPORT),
    "neighbors have another width": ("array run/neighbors.safetensors features f2 24 5", "relist run", REPORT),
    "neighbors have a wrong shape": ("array run/neighbors.safetensors features f2 24", "relist run", REPORT),
    "neighbors have other classes": ("array run/neighbors.safetensors labels bool 24 2", "relist run", REPORT),
}
"""Changes in the folder `run`, and the command that is then refused."""

DAMAGED_KEYS = {
    "run": (
        ('status "weird"', 'kept null', 'seconds {}', "warnings true", "warnings.0 true", 'warnings.0.kind "weird"',
         "candidates.1.name [1]", "candidates.0 -1", 'candidates.1.method "../../bce"', 'test_mAP "x"',
         "duplicates.exact {}", "versions.numpy 5", "model.settings 5", 'model.method "os:system"', "data.options 5",
         'seed "zero"', "command 5"),
        (REPORT, RESUME),
    ),
    "config": (
        ("jobs.0 5", "jobs.0.method []", "jobs.0.evil 1", 'jobs.0.name "../bce"', "jobs.0.trial -1", "probe.evil 1",
         'augment "strong"', 'encoder.name "resnet5000"', 'tune "first"', "jobs []"),
        (REPORT, RESUME),
    ),
    "evaluation": (
        ('mAP "x"', "classes 0", "at {}", "mAP_interval [0.5]", "risk_coverage.risk [0.5]", "calibration {}"),
        (REPORT,),
    ),
    "labels": (
        ('names.0 "a\\u0000b"', 'names.0 "\\ud800"', 'names.1 "petal"', "policy true", "policy.labels 5", "counts [1]",
         'hierarchy {"sky": "sky"}'),
        (REPORT,),
    ),
    "calibration": (
        ("classes.sky.threshold 2.0", "classes.sky.slope 1e308", 'predictions "../../elsewhere"', 'kind "platt"',
         "classes {}", "images -1"),
        (PREDICT,),
    ),
    "preprocessing": (
        ("size 30000", "size -1", "mean [0.5]", 'interpolation "nearest-ish"', "std [0, 0, 0]", 'intensity "all"'),
        (PREDICT,),
    ),
}  # fmt: skip
"""For each JSON file of a run, values of wrong types or out of range, and the commands that are then refused."""

DAMAGED_UNFINISHED_RUNS = {
    "frozen probe without facts": (
        'header run/checkpoints/frozen.safetensors {"__metadata__": {"facts": "{}"}}', RESUME),
    "plan is changed": ('set run/checkpoints/plan.json epochs {"bce": 3}', RESUME),
    "plan is cut": ("cut run/checkpoints/plan.json", RESUME),
    "method of a job": ('set run/config.json jobs.0.method "os:system"', RESUME),
    "weights of the run": ('set run/config.json encoder.weights "/tmp/weights.safetensors"', RESUME),
    "lock of another host": (
        'write run/.lock {"host": "elsewhere", "pid": 1, "ticks": null, "since": "2026-11-18T10:00:00+00:00"}', RESUME),
    "lock is damaged": ("write run/.lock {", RESUME),
    "folder of checkpoints is missing": ("delete run/checkpoints", RESUME),
    "log is huge": ("huge run/metrics.jsonl", RESUME),
}  # fmt: skip

DAMAGED_COMPARISONS = {
    "seeds": "set comparison/spec.json spec.seeds -1",
    "unknown key": "set comparison/spec.json evil 1",
    "no methods": "set comparison/spec.json spec.methods []",
    "measurements": "set comparison/measured.json evil 1",
    "newer schema": "set comparison/spec.json schema 99",
    "spec is cut": "cut comparison/spec.json",
    "results are damaged": "append comparison/results.jsonl {\"a\": 1}\\n",
    "a seed without its run": "delete comparison/seed-0/run.json",
}  # fmt: skip

PAGE = (
    "Train",
    "Check the data first",
    "Load a model and predict",
    "Look at predictions",
    "Choose thresholds, or abstain",
    "Evaluate, overall and by group",
    "Embed",
    "Explain",
    "Use a loss in your own loop",
    "Handle errors",
)
"""Sections of docs/python.md whose code is run, in this order in one folder."""

PYTHON = {
    "names": """
import probmcl
print(*probmcl.__all__, sep="\\n")
""",
    "signatures": """
import inspect, probmcl
functions = {name: getattr(probmcl, name) for name in ("train", "compare", "check", "load")}
methods = {f"Model.{name}": method for name, method in sorted(vars(probmcl.Model).items())}
for name, function in {**functions, **methods}.items():
    if callable(function) and "._" not in name:
        print(name)
        for parameter in inspect.signature(function).parameters.values():
            print("   ", parameter.kind.description, parameter.name, parameter.default)
""",
    "train": """
import probmcl
run = probmcl.train("PHOTOS", KEYWORDS, method="probmcl", settings={"temperature": 0.2}, epochs=2, out="run")
print(run, *run.candidates.values(), run.warnings, sep="\\n")
""",
    "compare": """
import probmcl
print(probmcl.compare("PHOTOS", KEYWORDS, methods=["bce", "asl"], seeds=1, epochs=2, out="comparison"))
""",
    "check": """
import probmcl
audit = probmcl.check("INPUTS/problems", workers=0)
print(audit, audit.per_class, *audit.findings, sep="\\n")
""",
    "check a table": """
import probmcl
audit = probmcl.check("INPUTS/site/labels.csv", workers=0, read=probmcl.ReadOptions(group="who"))
audit.to_json("check.json")
""",
}
"""Other calls, each in a process of its own."""

TRY = """
try:
    print({call})
except Exception as error:
    print(type(error).__name__, error)
"""

WRONG_CALLS = (
    "train('PHOTOS', epochs='many')",
    "train('PHOTOS', epoch=3)",
    "train('PHOTOS', method=3)",
    "train('PHOTOS', method='bce', settings=['a'])",
    "train('PHOTOS', method='bce', settings={'hue': 1})",
    "train('PHOTOS', image_size=-1)",
    "train('PHOTOS', tune='first')",
    "train('PHOTOS', thresholds='best')",
    "train('PHOTOS', calibration=3)",
    "train('PHOTOS', lr=float('nan'))",
    "train('PHOTOS', budget='soon')",
    "train('PHOTOS', read='table')",
    "train('PHOTOS', read=probmcl.ReadOptions(group='patient'))",
    "train('PHOTOS', checks=probmcl.DataChecks(skip_bad=2))",
    "train(None)",
    "train()",
    "train(3)",
    "train('PHOTOS', resume='INPUTS/photos')",
    "compare('PHOTOS', methods='bec')",
    "compare('PHOTOS', methods=[])",
    "compare('PHOTOS', seeds=0)",
    "check(None)",
    "check('INPUTS/nowhere')",
    "check('PHOTOS', read=probmcl.ReadOptions(format='excel'))",
    "load('INPUTS/nowhere')",
    "load(None)",
)
"""Python calls that are refused."""

WRONG_MODEL_CALLS = (
    "predict(None)",
    "predict([])",
    "predict('INPUTS/nowhere.jpg')",
    "predict('PHOTOS', threshold=50)",
    "predict('PHOTOS', threshold='high')",
    "predict('PHOTOS', abstain=2)",
    "predict('PHOTOS', abstain=0.1, raw=True)",
    "predict('PHOTOS', batch_size=0)",
    "predict('PHOTOS', workers=-1)",
    "evaluate(split='validation')",
    "evaluate('INPUTS/site', by='hospital')",
    "evaluate('INPUTS/site', aggregate='median')",
    "evaluate('INPUTS/site', rename={'Roof': 'castle'})",
    "evaluate(draws=-1)",
    "calibrate(thresholds='best')",
    "calibrate(calibration='platt')",
    "explain('PHOTOS', labels=['castle'])",
    "explain(None)",
    "embed(None)",
)
"""Calls of a loaded model that are refused."""


# The cases.


def commands(group: str, lines: Mapping[str, str], prefix: str = "", start: str | None = None) -> Iterator[Case]:
    """Yield a case with one command for each line."""
    for name, words in lines.items():
        yield Case(f"{group}/{name}" if group else name, (f"probmcl {prefix}{words}",), start)


def check_cases(layouts: Mapping[str, Sequence[str]]) -> Iterator[Case]:
    """Yield `check` on all data; a layout that asks is also trained, which prints its question."""
    for name, words in layouts.items():
        folder = f"cd INPUTS/layouts/{name}"
        checks = [f"probmcl check {line} --workers 0 --out CASE/check{n}.json" for n, line in enumerate(words)]
        questions = [f"probmcl train {words[0]} --out CASE/run"] if len(words) > 1 else []
        yield Case(f"check/layout {name}", (folder, *checks, *questions))
    for name, line in CHECKS.items():
        workers = "" if "--workers" in line else " --workers 0"
        yield Case(f"check/{name}", (f"probmcl check {line}{workers}",))
    yield Case("check/again", ("probmcl check INPUTS/problems --workers 0",) * 2)
    for name in DEGENERATE_TABLES:
        yield Case(
            f"check/table {name}", (f"probmcl check INPUTS/tables/{name}.csv --images INPUTS/photos --workers 0",)
        )


def train_cases() -> Iterator[Case]:
    """Yield trainings, trainings that are killed, and their resumption."""
    yield from commands("train", {name: f"{words} --out run" for name, words in TRAININGS.items()}, "train ")
    for name in DEGENERATE_TABLES:
        words = f"train INPUTS/tables/{name}.csv --images PHOTOS SMALL --method bce --no-report --out run"
        yield Case(f"train/table {name}", (f"probmcl {words}",))
    for name, pattern in KILLED_AFTER.items():
        train = "probmcl train PHOTOS SMALL --method bce --out run"
        yield Case(f"resume/killed after {name}", (f"kill {pattern} {train}",))
        yield Case(f"resume/resumed after {name}", ("probmcl train --resume run",), f"resume/killed after {name}")
    killed = "resume/killed after the frozen probe"
    yield Case("resume/with data", ("probmcl train PHOTOS --resume run --workers 2 --no-report",), killed)
    yield Case("resume/with other options", ("probmcl train --resume run --epochs 3",), killed)
    yield Case("resume/predict before", (PREDICT,), killed)
    for signal in SIGNALS:
        words = "probmcl train PHOTOS SMALL --method bce --no-report --out run"
        yield Case(f"resume/{signal}", (f"{signal} plan.json {words}", RESUME))
    for name in TRAINED_LAYOUTS:
        words = "probmcl train photos/ SMALL --method bce --no-report --out CASE/run"
        yield Case(f"train/layout {name}", (f"cd INPUTS/layouts/{name}", words))
    for name, option in {"refused": "", "accepted": " --accept-data-change"}.items():
        steps = (
            "copy INPUTS/photos photos",
            "kill frozen*.safetensors probmcl train photos SMALL --method bce --out run",
            "copy INPUTS/photos/7.jpg photos/3.jpg",
            f"probmcl train --resume run --no-report{option}",
        )
        yield Case(f"resume/changed photographs {name}", steps)


def compare_cases() -> Iterator[Case]:
    """Yield comparisons, killed and resumed ones, and commands that need a finished comparison."""
    compare = "probmcl compare PHOTOS TINY METHODS --out comparison"
    yield Case("compare/two methods", (compare,))
    others = "--methods probmcl INPUTS/losses.py:good --seeds 1 --epochs 2 --trials 2 --no-report --out comparison"
    yield Case("compare/trials and a loss", (f"probmcl compare PHOTOS TINY {others}",))
    yield Case("compare/killed", (f"kill bce.outcome.json {compare}",))
    yield Case("compare/resumed", ("probmcl compare --resume comparison",), "compare/killed")
    yield Case("compare/resumed when finished", ("probmcl compare --resume comparison",), "compare/two methods")
    resume = "probmcl compare --resume comparison --add added --no-report"
    second = "probmcl compare PHOTOS TINY --methods csra --seeds 2 --epochs 2 --no-report --out added"
    yield Case("compare/added", (second, resume), "compare/two methods")
    yield Case("compare/report of a seed", ("probmcl report comparison/seed-0",), "compare/two methods")
    yield Case("compare/report of a comparison", ("probmcl report comparison",), "compare/two methods")
    for name, damage in DAMAGED_COMPARISONS.items():
        steps = (damage, "probmcl compare --resume comparison --no-report")
        yield Case(f"wrong comparison/{name}", steps, "compare/two methods")


def wrong_cases() -> Iterator[Case]:
    """Yield commands with wrong options, and with damaged or hostile folders."""
    yield from commands("wrong option", {name: with_out(words) for name, words in WRONG_OPTIONS.items()})
    yield from commands("wrong use of a run", WRONG_WITH_RUN, start="train/bce")
    for name, steps in DAMAGED_RUNS.items():
        yield Case(f"wrong run/{name}", steps, "train/bce")
    for file, (changes, then) in DAMAGED_KEYS.items():
        for change in changes:
            steps = (f"set run/{file}.json {change}", "relist run", *then)
            yield Case(f"wrong run/{file} {named(change)}", steps, "train/bce")
    for name, steps in DAMAGED_UNFINISHED_RUNS.items():
        yield Case(f"wrong unfinished run/{name}", steps, "resume/killed after training")


def with_out(words: str) -> str:
    """Return a command that writes a run or comparison, if it is accepted, to a known folder."""
    writes = words.startswith(("train ", "compare ")) and "--out" not in words and "--resume" not in words
    return f"{words} --no-report --out new" if writes else words


def other_cases() -> Iterator[Case]:
    """Yield help, lists, commands with a finished run, two processes, and the code of a page."""
    for name in HELP:
        yield Case(f"help/{name}", (f"probmcl {name} --help",))
    yield from commands("list", LISTS)
    yield from commands("", WITH_RUN, start="train/bce")
    second = "probmcl train PHOTOS SMALL --method asl --seed 1 --no-report --out other"
    yield Case("train/second run", (second,), "train/bce")
    yield Case("report/two runs", ("probmcl report run other --out page.html",), "train/second run")
    against = "probmcl explain run PHOTOS/0.jpg PHOTOS/1.jpg --against other --workers 0 --out maps"
    yield Case("explain/against", (against,), "train/second run")
    yield Case("predict/after calibrate", ("probmcl calibrate run --thresholds f1", PREDICT), "train/bce")
    yield Case("two processes/train", ("torchrun train PHOTOS SMALL --method auto --out run",))
    yield Case("two processes/compare", ("torchrun compare PHOTOS TINY METHODS --no-report --out comparison",))
    yield Case("two processes/refused", ("torchrun train INPUTS/leaky SMALL --out run",))
    yield Case("python/page", tuple(f"page {heading}" for heading in PAGE))


def python_cases() -> Iterator[Case]:
    """Yield Python calls. Refused ones print the type of the error and its message."""
    for name, code in PYTHON.items():
        yield Case(f"python/{name}", (f"python {code}",))
    for call in WRONG_CALLS:
        code = f"import probmcl\n{TRY.format(call=f'probmcl.{call}')}"
        yield Case(f"wrong call/{named(call)}", (f"python {code}",))
    for call in WRONG_MODEL_CALLS:
        code = f"import probmcl\nmodel = probmcl.load('run')\n{TRY.format(call=f'model.{call}')}"
        yield Case(f"wrong call/model.{named(call)}", (f"python {code}",), "train/bce")


def named(step: str) -> str:
    """Return a step in a form that can be the name of a case, whose groups are separated by slashes."""
    return step.replace("INPUTS/", "").replace("/", "_")


def all_cases(inputs: Path) -> dict[str, Case]:
    """Return the cases by name, with the words in capitals replaced; the layouts are those among the inputs."""
    layouts = json.loads((inputs / "layouts" / "commands.json").read_text())
    found: dict[str, Case] = {}
    for case in (
        *check_cases(layouts),
        *train_cases(),
        *compare_cases(),
        *other_cases(),
        *python_cases(),
        *wrong_cases(),
    ):
        if case.name in found:
            raise ValueError(f"two cases have the name {case.name}")
        found[case.name] = Case(case.name, tuple(map(spelled_out, case.steps)), case.start)
    return found


def spelled_out(step: str) -> str:
    """Replace the words in capitals, except INPUTS and CASE, whose places are known when the step is run."""
    for word, meaning in WORDS.items():
        step = re.sub(rf"\b{word}\b", meaning, step)
    return step
