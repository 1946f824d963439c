"""`probmcl encoders`: which of timm's models there are, how large they are and under which license."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from probmcl.errors import suggestion

if TYPE_CHECKING:
    from rich.table import Table

RECOMMENDED = {
    "tf_efficientnet_lite0": "small and quick: the default on a CPU",
    "mobilenetv3_large_100": "as small; made for phones",
    "efficientnet_b0": "as small; slower, more accurate",
    "resnet50": "what most papers compare with",
    "convnext_tiny": "newer, about as large; for a GPU",
    "tresnet_m": "the paper's at 224 pixels",
    "tresnet_l": "the larger one of the same family",
    "tresnet_v2_l": "the paper's at 448 pixels",
}
"""A short list to begin with: each name and why."""

LISTED = 40
"""Rows that are shown of a longer list."""

COUNTED = 12
"""Models whose parameters are counted; each has to be built for it, which takes a tenth of a second or more."""


@dataclass(frozen=True)
class Weights:
    """A model of timm with one set of weights.

    Attributes:
        model: without a tag.
        name: with the tag of the weights, where there are any.
        image_size: of the images that it was made for.
        license: of the weights.
    """

    model: str
    name: str
    image_size: int
    license: str


def encoders(
    pattern: Annotated[str | None, Parameter(help="part of a name, or a name with * and ?; by default a few")] = None,
    /,
) -> None:
    """Show the encoders that --encoder takes: every model of timm, here those that fit a pattern.

    With the whole name of a model, every set of weights it has. The license is that of the weights, as timm says it.

    Example: probmcl encoders "convnext_*"
    """
    from probmcl.console import Console

    console = Console()
    names = matching(pattern) if pattern else list(RECOMMENDED)
    found = [described(name) for name in names[:LISTED]]
    console.rich.print(_table(found, {} if pattern else RECOMMENDED))
    if len(names) > LISTED:
        console.print(f"… and {len(names) - LISTED:,} more; a longer pattern shows fewer")
    if not pattern:
        console.print("any other model of timm: probmcl encoders PATTERN")
    console.print(f"to take one: probmcl train DATA --encoder {found[0].name}")


def matching(pattern: str) -> list[str]:
    """Names of timm's models that fit a pattern, with tags where it is a whole name or has a dot itself.

    >>> matching("resnet10t"), matching("resnet?0t"), matching("net50_clip_")
    (['resnet10t.c3_in1k'], ['resnet10t', 'resnet50t'], ['resnet50_clip_gap'])
    """
    import probmcl.runtime.torchvision_compat  # noqa: F401  # before timm, which imports torchvision

    import timm  # isort: skip

    models: list[str] = timm.list_models()
    if pattern in models:
        found: list[str] = timm.list_models(f"{pattern}.*", include_tags=True) or [pattern]
    else:
        wild = pattern if set(pattern) & set("*?[") else f"*{pattern}*"
        found = timm.list_models(wild, include_tags="." in pattern)
    if not found:
        raise ValueError(f"no encoder of timm fits {pattern!r}; {suggestion(pattern.strip('*'), models)}")
    return sorted(found, key=lambda name: not name.startswith(pattern))  # what begins so comes first


def described(name: str) -> Weights:
    """What timm says of a model, with or without a tag; without one, its default weights.

    >>> described("tresnet_m.miil_in21k")
    Weights(model='tresnet_m', name='tresnet_m.miil_in21k', image_size=224, license='apache-2.0')
    """
    import probmcl.runtime.torchvision_compat  # noqa: F401  # before timm, which imports torchvision

    import timm  # isort: skip

    cfg: Any = timm.get_pretrained_cfg(name)
    model, size = name.split(".")[0], cfg.input_size[-1]
    if not cfg.has_weights:
        return Weights(model, model, size, "(no weights)")
    return Weights(model, f"{model}.{cfg.tag}" if cfg.tag else model, size, cfg.license or "(not said)")


def _counts(models: Iterable[str]) -> dict[str, float]:
    from probmcl.encoders import millions

    different = set(models)
    return {model: millions(model) for model in different} if len(different) <= COUNTED else {}


def _table(found: Sequence[Weights], reasons: Mapping[str, str]) -> Table:
    from rich.table import Table

    table, counts = Table(), _counts(weights.model for weights in found)
    table.add_column("encoder", overflow="fold")
    if counts:
        table.add_column("params (M)", justify="right", no_wrap=True)
    table.add_column("pixels", justify="right")
    table.add_column("license", no_wrap=True)
    for weights in found:
        why = f"\n  {reasons[weights.model]}" if weights.model in reasons else ""
        count = [f"{counts[weights.model]:.1f}"] if counts else []
        table.add_row(weights.name + why, *count, str(weights.image_size), weights.license)
    return table
