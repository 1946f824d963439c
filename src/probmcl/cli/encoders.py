"""`probmcl encoders`: timm models with their sizes and licenses."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from probmcl.cli.options import command_console
from probmcl.errors import counted, suggestion
from probmcl.tables import Column, Table, to_rich

RECOMMENDED = {
    "tf_efficientnet_lite0": "small and fast; default on a CPU",
    "mobilenetv3_large_100": "small; designed for phones",
    "efficientnet_b0": "small; slower but more accurate",
    "resnet50": "the usual baseline in papers",
    "convnext_tiny": "newer than resnet50; for a GPU",
    "tresnet_m": "ProbMCL paper, 224 pixels",
    "tresnet_l": "larger version of tresnet_m",
    "tresnet_v2_l": "ProbMCL paper, 448 pixels",
}
"""Encoders that are listed if no pattern is given, and the reason for each."""

MAX_ROWS = 40  # maximum number of rows shown
MAX_COUNTED = 12  # parameters are counted for at most this many models: building one takes 0.1 s or more


class Weights(NamedTuple):
    """A timm model with one set of weights. `name` includes the tag of the weights; `model` does not."""

    model: str
    name: str
    image_size: int
    license: str


def command(
    pattern: Annotated[str | None, Parameter(help="part of a name, or a pattern with * and ?")] = None, /
) -> None:
    """List encoders with their number of parameters, input size and license.

    Any timm model can be used as an encoder. If PATTERN is the full name of a model, all its pretrained weights are
    listed. Licenses are those that timm states for the weights.

    Example: probmcl encoders "convnext_*"
    """
    console = command_console()
    names = matching(pattern) if pattern else list(RECOMMENDED)
    reasons = {} if pattern else RECOMMENDED
    weights = [describe_weights(name) for name in names[:MAX_ROWS]]
    console.rich.print(to_rich(_table(weights, reasons)))
    if len(names) > MAX_ROWS:
        more = counted(len(names) - MAX_ROWS, "more is", "more are")
        console.print(f"{more} not shown; use a more specific pattern")
    if not pattern:
        console.print("search all timm models: probmcl encoders PATTERN")
    console.print(f"use one: probmcl train DATA --encoder {weights[0].name}")


def matching(pattern: str) -> list[str]:
    """Return the timm models that match a pattern, with tags if the pattern is a full name or contains a dot.

    >>> matching("resnet10t"), matching("resnet?0t"), matching("net50_clip_")
    (['resnet10t.c3_in1k'], ['resnet10t', 'resnet50t'], ['resnet50_clip_gap'])
    """
    timm = _import_timm()
    models: list[str] = timm.list_models()
    if pattern in models:
        names: list[str] = timm.list_models(f"{pattern}.*", include_tags=True) or [pattern]
    else:
        is_wildcard = any(character in pattern for character in "*?[")
        wildcard = pattern if is_wildcard else f"*{pattern}*"
        names = timm.list_models(wildcard, include_tags="." in pattern)
    if not names:
        raise ValueError(f"no timm model matches {pattern!r}; {suggestion(pattern.strip('*'), models)}")
    return sorted(names, key=lambda name: not name.startswith(pattern))  # names that start with the pattern come first


def describe_weights(name: str) -> Weights:
    """Return the input size and license of a model's weights (the default weights if the name has no tag).

    >>> describe_weights("tresnet_m.miil_in21k")
    Weights(model='tresnet_m', name='tresnet_m.miil_in21k', image_size=224, license='apache-2.0')
    """
    cfg = _import_timm().get_pretrained_cfg(name)
    model, _, _ = name.partition(".")
    width = cfg.input_size[-1]
    if not cfg.has_weights:
        return Weights(model, model, width, "(no weights)")
    name_with_tag = f"{model}.{cfg.tag}" if cfg.tag else model
    return Weights(model, name_with_tag, width, cfg.license or "(not given)")


def _import_timm() -> Any:
    """Import timm, even if the installed torchvision cannot be imported by itself."""
    import probmcl.runtime.torchvision_compat  # noqa: F401  # before timm, which imports torchvision

    import timm  # isort: skip

    return timm


def _table(listed: Sequence[Weights], reasons: Mapping[str, str]) -> Table:
    """Return a table with a row per set of weights. The parameters are left out if there are many models.

    `reasons` are shown below the names of the models that have one.
    """
    from probmcl.encoders import parameters_in_millions

    models = {weights.model for weights in listed}
    parameters = {}
    if len(models) <= MAX_COUNTED:
        parameters = {model: f"{parameters_in_millions(model):.1f}" for model in models}

    columns = [Column.of_names("encoder"), Column("pixels"), Column.of_names("license")]
    rows = []
    for weights in listed:
        reason = f"\n  {reasons[weights.model]}" if weights.model in reasons else ""
        rows.append([weights.name + reason, str(weights.image_size), weights.license])
    if parameters:  # they are the second column
        columns.insert(1, Column("parameters (M)"))
        for row, weights in zip(rows, listed, strict=True):
            row.insert(1, parameters[weights.model])
    return Table("", columns, rows, framed=True)
