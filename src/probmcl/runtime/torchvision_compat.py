"""Import torchvision even if its compiled operators do not match the installed torch.

A torchvision built for CUDA cannot load its operators with a CPU build of torch, and its import then fails. Transforms
and models do not use these operators, so it is enough to declare them.

Import torchvision from here, and import this module before timm, which also imports torchvision:

>>> from probmcl.runtime.torchvision_compat import transforms
>>> transforms.Resize(4).size
[4]
"""

import importlib
import sys

import torch

MISSING_OPERATOR = "operator torchvision::nms does not exist"
DECLARATIONS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def import_torchvision() -> torch.library.Library | None:
    """Import torchvision; if its operators are missing, declare them and import it again.

    Returns an object that keeps the declarations alive, or None if no operator is missing. Nothing is declared before
    the first import, because the declarations would conflict with the operators of a working build.
    """
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if not str(error).startswith(MISSING_OPERATOR):  # torch may append a C++ stack trace
            raise
    else:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for declaration in DECLARATIONS:
        library.define(declaration)  # type: ignore[no-untyped-call]
    forget_torchvision()
    importlib.import_module("torchvision")
    return library


def forget_torchvision() -> None:
    """Remove torchvision and its submodules from the imported modules."""
    names = [name for name in sys.modules if name.partition(".")[0] == "torchvision"]
    for name in names:
        del sys.modules[name]


DECLARED = import_torchvision()  # keeps the declarations alive

from torchvision.transforms import v2 as transforms  # noqa: E402 - needs the declarations

__all__ = ["DECLARATIONS", "DECLARED", "MISSING_OPERATOR", "import_torchvision", "transforms"]
