"""`probmcl encoders`: the timm models, their sizes and licenses."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from cyclopts import Parameter

from probmcl.cli import command_console
from probmcl.errors import suggestion
from probmcl.tables import Column, Table, to_rich

RECOMMENDED = {
    "tf_efficientnet_lite0": "small and fast: the default on a CPU",
    "mobilenetv3_large_100": "as small; made for phones",
    "efficientnet_b0": "as small; slower, more accurate",
    "resnet50": "what most papers compare with",
    "convnext_tiny": "newer, about as large; for a GPU",
    "tresnet_m": "the paper's at 224 pixels",
    "tresnet_l": "the larger one of the same family",
    "tresnet_v2_l": "the paper's at 448 pixels",
}
"""A short list to begin with: each name and why."""

MAX_ROWS = 40  # shown of a longer list
MAX_COUNTED = 12  # models whose parameters are counted: each has to be built, which takes a tenth of a second or more


class Weights(NamedTuple):
    """A timm model with one set of weights; `name` has the tag of the weights, `model` has none."""

    model: str
    name: str
    image_size: int
    license: str


def encoders(
    pattern: Annotated[str | None, Parameter(help="part of a name, or a name with * and ? (default: a few)")] = None, /
) -> None:
    """Show the encoders that --encoder takes: all timm models that match a pattern.

    The full name of a model shows every set of weights that it has. The license is that of the weights, as timm
    reports it.

    Example: probmcl encoders "convnext_*"
    """
    console = command_console()
    names = matching(pattern) if pattern else list(RECOMMENDED)
    weights = [describe_weights(name) for name in names[:MAX_ROWS]]
    console.rich.print(to_rich(_table(weights, {} if pattern else RECOMMENDED)))
    if len(names) > MAX_ROWS:
        console.print(f"… and {len(names) - MAX_ROWS:,} more; a longer pattern shows fewer")
    if not pattern:
        console.print("any other model of timm: probmcl encoders PATTERN")
    console.print(f"to use one: probmcl train DATA --encoder {weights[0].name}")


def matching(pattern: str) -> list[str]:
    """Return the timm models that match a pattern, with tags if it is a full name or contains a dot.

    >>> matching("resnet10t"), matching("resnet?0t"), matching("net50_clip_")
    (['resnet10t.c3_in1k'], ['resnet10t', 'resnet50t'], ['resnet50_clip_gap'])
    """
    timm = _import_timm()
    models: list[str] = timm.list_models()
    if pattern in models:
        names: list[str] = timm.list_models(f"{pattern}.*", include_tags=True) or [pattern]
    else:
        wildcard = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        names = timm.list_models(wildcard, include_tags="." in pattern)
    if not names:
        raise ValueError(f"no encoder of timm fits {pattern!r}; {suggestion(pattern.strip('*'), models)}")
    return sorted(names, key=lambda name: not name.startswith(pattern))


def describe_weights(name: str) -> Weights:
    """Return what timm knows about a model; without a tag, about its default weights.

    >>> describe_weights("tresnet_m.miil_in21k")
    Weights(model='tresnet_m', name='tresnet_m.miil_in21k', image_size=224, license='apache-2.0')
    """
    cfg = _import_timm().get_pretrained_cfg(name)
    model, size = name.split(".")[0], cfg.input_size[-1]
    if not cfg.has_weights:
        return Weights(model, model, size, "(no weights)")
    return Weights(model, f"{model}.{cfg.tag}" if cfg.tag else model, size, cfg.license or "(not given)")


def _import_timm() -> Any:
    import probmcl.runtime.torchvision_compat  # noqa: F401  # before timm, which imports torchvision

    import timm  # isort: skip

    return timm


def _table(found: Sequence[Weights], reasons: Mapping[str, str]) -> Table:
    from probmcl.encoders import parameters_in_millions

    models = {weights.model for weights in found}
    counts = {model: f"{parameters_in_millions(model):.1f}" for model in models} if len(models) <= MAX_COUNTED else {}
    columns = [Column.of_names("encoder"), Column("params (M)"), Column("pixels"), Column.of_names("license")]
    rows = []
    for model, name, size, license_name in found:
        reason = f"\n  {reasons[model]}" if model in reasons else ""
        rows.append([name + reason, counts.get(model, ""), str(size), license_name])
    if not counts:
        columns, rows = [columns[0], *columns[2:]], [[row[0], *row[2:]] for row in rows]
    return Table("", columns, rows, framed=True)
