"""Stage 7: one file a method. `METHODS` names them all; importing this package loads none of them.

Adding a method: write its file beside these, and one line here. Every test in tests/contracts/ then runs over it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from probmcl.nearest import suggestion

if TYPE_CHECKING:
    from probmcl.methods.base import Classifier, Method, Step

METHODS: dict[str, str] = {
    "probe": "probmcl.methods.probe:Probe",
    "bce": "probmcl.methods.bce:BCE",
    "asl": "probmcl.methods.asl:ASL",
    "probmcl": "probmcl.methods.probmcl:ProbMCL",
}

__all__ = ["METHODS", "Classifier", "Method", "Step", "find_method"]


def find_method(name: str) -> type[Method]:
    """The class of a method, by its name here or as `my_package.my_file:MyMethod`.

    >>> find_method("bce").__name__
    'BCE'
    """
    place = METHODS.get(name, name)
    module, _, attribute = place.partition(":")
    if not attribute:
        raise ValueError(f"no method {name!r}; {suggestion(name, METHODS)}")
    try:
        found: type[Method] = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"method {name!r} cannot be loaded: {error}") from error
    return found


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("probmcl.methods.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
