"""The methods, one file each. Importing this package imports none of them; `find_method` does.

To add a method, create its file here and add a line to `METHODS`. The tests in tests/contracts/ then cover it.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

from probmcl.errors import SettingsError, suggestion

if TYPE_CHECKING:
    from probmcl.methods.base import Method

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


def full_name(name: str) -> str:
    """Return a method's name as stored in a run: paths to Python files become absolute, other names are unchanged.

    >>> full_name("bce")
    'bce'
    """
    file, colon, function = name.partition(":")
    if colon and file.endswith(".py"):
        return f"{Path(file).resolve()}:{function}"
    return name


def find_method(name: str) -> type[Method]:
    """Return a method's class, given its name, `my_package.my_file:MyMethod` or `my_file.py:my_loss`.

    >>> find_method("bce").__name__
    'BCE'
    """
    location = METHODS.get(name, name)  # a name that is not in the table is a location itself
    module_name, _, attribute = location.partition(":")
    if module_name.endswith(".py"):
        from probmcl.methods.custom_loss import custom_loss

        return custom_loss(full_name(name))
    if not attribute:
        raise SettingsError(f"unknown method {name!r}; {suggestion(name, METHODS)}")
    try:
        module = importlib.import_module(module_name)
        method: type[Method] = getattr(module, attribute)
    except (ImportError, AttributeError) as error:
        raise SettingsError(f"method {name!r} cannot be loaded: {error}") from error
    return method
