"""Multi-label image classification that people can trust.

The stages, in the order in which an image passes through them:

1. `probmcl.data`: images and labels
2. `probmcl.augment`: an image becomes views
3. `probmcl.encoders`: a view becomes a feature h(x)
4. `probmcl.mixture`: a feature becomes a Gaussian mixture p(z|x); how alike two mixtures are
5. `probmcl.overlap`: how much two label sets share, D(y_i, y_j)
6. `probmcl.losses`: numbers to minimize; `probmcl.methods.collapse` watches what they do to the features
7. `probmcl.methods`: encoder, heads and losses wired together, one file a method
8. `probmcl.training`: one trainer for all of them
9. `probmcl.evaluation`: how good the result is
10. `probmcl.run.train`: all of it, from records to a run folder; `probmcl.inference`: what a run is used for;
    `probmcl.experiments`: several methods side by side

The front door is `train`, `compare` and `load`. Importing this package loads none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probmcl.api import train
    from probmcl.experiments.compare import compare
    from probmcl.inference import load

__all__ = ["__version__", "compare", "load", "train"]
__version__ = "0.1.0"

_PLACES = {"compare": "probmcl.experiments.compare", "train": "probmcl.api", "load": "probmcl.inference"}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _PLACES:
        from importlib import import_module

        return getattr(import_module(_PLACES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
