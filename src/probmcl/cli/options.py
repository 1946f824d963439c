"""Options that several commands share: their types, groups and help texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Group, Parameter

from probmcl.data.options import DataChecks, ReadOptions

DATA = Group.create_ordered("Data")
METHOD = Group.create_ordered("Method and encoder")
TRAINING = Group.create_ordered("Training")
COMPUTE = Group.create_ordered("Computing and files")

Data = Annotated[Path | None, Parameter(help="a table, or a folder with one; MS-COCO, PASCAL VOC or ADP", group=DATA)]
Images = Annotated[
    Path | None,
    Parameter(help="folder that image paths are relative to (default: the table's folder)", group=DATA),
]
Read = Annotated[ReadOptions, Parameter(name="*", group=DATA, consume_multiple=True, negative="", show_default=False)]
Checks = Annotated[DataChecks, Parameter(name="*", group=DATA, negative="", show_default=False)]

EncoderName = Annotated[str | None, Parameter(help="any timm model; see encoders", group=METHOD)]
Weights = Annotated[
    Path | str | None,
    Parameter(help="pretrained (default), none, a safetensors file, or an earlier run", group=METHOD),
]
ImageSize = Annotated[int | None, Parameter(help="side of the square input (default: the encoder's own)", group=METHOD)]
Tune = Annotated[
    Literal["all", "last", "none"] | None,
    Parameter(help="how much of the encoder learns (default: last on a CPU, all on a GPU)", group=METHOD),
]

ProbeEpochs = Annotated[int | None, Parameter(help="epochs of the linear probes", group=TRAINING)]
BatchSize = Annotated[int | None, Parameter(help="images per step, over all processes", group=TRAINING)]
Augment = Annotated[
    Literal["light", "paper", "none"] | None, Parameter(help="how views are made (default: light)", group=TRAINING)
]

Device = Annotated[str | None, Parameter(help="auto, cpu, cuda or mps", group=COMPUTE)]
Workers = Annotated[int | None, Parameter(help="processes that decode images (default: one per core)", group=COMPUTE)]
Cache = Annotated[
    Path | None,
    Parameter(help="folder for decoded images, or auto; faster from the second time on", group=COMPUTE),
]
Out = Annotated[Path | None, Parameter(help="a new or empty folder (default: runs/DATE-NAME)", group=COMPUTE)]
SkipBad = Annotated[
    float | None, Parameter(help="largest share of unreadable images to skip; by default any is an error", group=DATA)
]
WHAT, HOW, WHERE = METHOD, TRAINING, COMPUTE
