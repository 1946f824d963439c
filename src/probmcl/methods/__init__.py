"""Stage 7: one file a method. `METHODS` names them all; importing this package loads none of them.

Adding a method: write its file beside these, and one line here. Every test in tests/contracts/ then runs over it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probmcl.errors import suggestion

if TYPE_CHECKING:
    from probmcl.methods.base import Classifier, Method, Step

METHODS: dict[str, str] = {
    "probe": "probmcl.methods.probe:Probe",
    "bce": "probmcl.methods.bce:BCE",
    "asl": "probmcl.methods.asl:ASL",
    "focal": "probmcl.methods.focal:Focal",
    "csra": "probmcl.methods.csra:CSRA",
    "ml_gcn": "probmcl.methods.ml_gcn:MLGCN",
    "kssnet": "probmcl.methods.kssnet:KSSNet",
    "tdrg": "probmcl.methods.tdrg:TDRG",
    "srn": "probmcl.methods.srn:SRN",
    "pla": "probmcl.methods.pla:PLA",
    "ml_decoder": "probmcl.methods.ml_decoder:MLDecoder",
    "kmcl": "probmcl.methods.kmcl:KMCL",
    "supcon": "probmcl.methods.supcon:SupCon",
    "mulsupcon": "probmcl.methods.mulsupcon:MulSupCon",
    "probmcl": "probmcl.methods.probmcl:ProbMCL",
    "joint": "probmcl.methods.joint:Joint",
}

__all__ = ["METHODS", "Classifier", "Method", "Step", "find_method", "full_name"]


def full_name(name: str) -> str:
    """A method as a run remembers it: a file of one's own by its whole path, anything else as it is.

    >>> full_name("bce")
    'bce'
    """
    file, colon, attribute = name.partition(":")
    return f"{Path(file).resolve()}:{attribute}" if colon and file.endswith(".py") else name


def find_method(name: str) -> type[Method]:
    """The class of a method, by its name here, as `my_package.my_file:MyMethod`, or as `my_file.py:my_loss`.

    >>> find_method("bce").__name__
    'BCE'
    """
    place = METHODS.get(name, name)
    module, _, attribute = place.partition(":")
    if module.endswith(".py"):
        from probmcl.methods.custom_loss import custom_loss

        return custom_loss(full_name(name))
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
