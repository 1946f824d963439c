"""Multi-label image classification.

The packages follow the data flow of a run. Each imports only from the packages above it:

1. `probmcl.readers`: files become records; `probmcl.data`: records become batches
2. `probmcl.augment`: an image becomes views
3. `probmcl.encoders`: a view becomes a feature h(x)
4. `probmcl.mixture`: a feature becomes a Gaussian mixture p(z|x); similarities between mixtures
5. `probmcl.overlap`: overlap of label sets, D(y_i, y_j)
6. `probmcl.heads`: modules applied to feature maps; `probmcl.losses`: functions of matrices
7. `probmcl.methods`: encoder, heads and losses wired together, one file per method
8. `probmcl.training`: one trainer for all methods
9. `probmcl.evaluation`: metrics and their confidence intervals
10. `probmcl.inference`: a trained model in use
11. `probmcl.run`: one resumable training run; `probmcl.experiments`: comparisons of methods
12. `probmcl.report`: tables and plots of results

Public names are imported on first use, so importing this package does not load torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from probmcl.version import __version__

if TYPE_CHECKING:
    from probmcl.api import check, compare, train
    from probmcl.audit.result import DataAudit
    from probmcl.inference import Model, load
    from probmcl.readers.options import DataChecks, ReadOptions
    from probmcl.run.results import Run

__all__ = ["DataAudit", "DataChecks", "Model", "ReadOptions", "Run", "__version__", "check", "compare", "load", "train"]

_MODULES = {
    "train": "probmcl.api",
    "compare": "probmcl.api",
    "check": "probmcl.api",
    "load": "probmcl.inference",
    "Model": "probmcl.inference",
    "Run": "probmcl.run.results",
    "DataAudit": "probmcl.audit.result",
    "ReadOptions": "probmcl.readers.options",
    "DataChecks": "probmcl.readers.options",
}


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
