"""Flags that several commands share: what each is called on the command line, what it may be, and its help."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from probmcl.data.options import DataChecks, ReadOptions

DATA = Group.create_ordered("Data")
WHAT = Group.create_ordered("What is trained")
HOW = Group.create_ordered("How")
WHERE = Group.create_ordered("Where")

Data = Annotated[
    Path | str | None, Parameter(help="a table, or a folder with one; MS-COCO, PASCAL VOC or ADP", group=DATA)
]
Images = Annotated[
    Path | str | None, Parameter(help="where the table's paths begin; by default at the table", group=DATA)
]
Format = Annotated[
    str | None, Parameter(help="table, folders, coco, voc or adp, where DATA could be two of them", group=DATA)
]
PathColumn = Annotated[str | None, Parameter(help="the column of paths", group=DATA)]
LabelsColumn = Annotated[str | None, Parameter(help="the column of label lists", group=DATA)]
SplitColumn = Annotated[str | None, Parameter(help="the column of train, val and test", group=DATA)]
GroupColumn = Annotated[
    str | None, Parameter(help="a column (patient, slide) whose images stay in one split", group=DATA)
]
WeightColumn = Annotated[str | None, Parameter(help="a column: how often an image is trained on", group=DATA)]
Rows = Annotated[
    Literal["images", "labels"] | None,
    Parameter(help="what a row of the table is: a whole image, or one label of an image", group=DATA),
]
Blank = Annotated[
    Sequence[str] | None,
    Parameter(
        help="what a blank cell means, negative or unknown; CLASS=… for one class",
        consume_multiple=True,
        negative="",
        group=DATA,
    ),
]
MinusOne = Annotated[
    Sequence[str] | None,
    Parameter(
        help="what -1 means: unknown (default), negative, positive or soft:P; CLASS=… for one class",
        consume_multiple=True,
        negative="",
        group=DATA,
    ),
]
NoneLabel = Annotated[
    str | None, Parameter(help="the label that means none of the others; '' where all are classes", group=DATA)
]
Ignore = Annotated[
    Sequence[str] | None,
    Parameter(help="columns of the table that are no classes", consume_multiple=True, negative="", group=DATA),
]
HierarchyFile = Annotated[
    Path | str | None, Parameter(help="a CSV with the columns child and parent, both names of classes", group=DATA)
]
Range = Annotated[
    str | None,
    Parameter(help="gray levels of 16-bit and float images: auto (default), full or LOW,HIGH", group=DATA),
]
SplitFile = Annotated[
    Path | str | None, Parameter(help="split.csv of an earlier run, or folds.csv with --fold, used again", group=DATA)
]
Folds = Annotated[
    int | None, Parameter(help="divide the images into so many folds, of which --fold is test", group=DATA)
]
Fold = Annotated[int | None, Parameter(help="which fold is test, from 1 on", group=DATA)]
SkipBad = Annotated[
    float | None, Parameter(help="go on without unreadable images, up to this share of them all", group=DATA)
]
AllowLeaks = Annotated[
    bool | None,
    Parameter(help="go on where images or groups of train are also in val or test", negative="", group=DATA),
]
Read = Annotated[ReadOptions, Parameter(name="*", group=DATA, consume_multiple=True, negative="", show_default=False)]
Checks = Annotated[DataChecks, Parameter(name="*", group=DATA, negative="", show_default=False)]
Cache = Annotated[
    Path | str | None,
    Parameter(help="a folder for decoded images, or auto; quicker from the second time on", group=WHERE),
]

EncoderName = Annotated[str | None, Parameter(help="any timm model; see encoders", group=WHAT)]
Weights = Annotated[
    Path | str | None,
    Parameter(help="pretrained (default), none, a safetensors file, or an earlier run", group=WHAT),
]
ImageSize = Annotated[int | None, Parameter(help="side of the square input; by default the encoder's", group=WHAT)]

TuneFlag = Annotated[
    Literal["all", "last", "none"] | None,
    Parameter(help="how much of the encoder learns: by default last on a CPU, all on a GPU", group=HOW),
]
ProbeEpochs = Annotated[int | None, Parameter(help="of the linear probes", group=HOW)]
BatchSize = Annotated[int | None, Parameter(help="images in a step, of all processes", group=HOW)]
Augment = Annotated[
    Literal["light", "paper", "none"] | None, Parameter(help="how views are made; light by default", group=HOW)
]

Device = Annotated[str | None, Parameter(help="auto, cpu, cuda or mps", group=WHERE)]
Workers = Annotated[int | None, Parameter(help="processes that decode; one a core by default", group=WHERE)]
Out = Annotated[Path | str | None, Parameter(help="a new or empty folder; by default runs/DATE-NAME", group=WHERE)]
