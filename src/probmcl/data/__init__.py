"""Images and labels in memory: records, label states and splits, and turning images into tensors.

Importing this package loads no other library: names that need numpy are imported on first access.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from probmcl.data.images import Preprocessing, read_image
    from probmcl.data.records import LabelSpace, Records, describe

__all__ = ["LabelSpace", "Preprocessing", "Records", "describe", "read_image"]

_MODULES = {"images": ("Preprocessing", "read_image"), "records": ("LabelSpace", "Records", "describe")}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"probmcl.data.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
