"""A torchvision that can be imported even if its compiled operators do not fit the installed torch.

A torchvision built for CUDA cannot load its operators with a CPU build of torch, and its own import then fails because
one of them is missing. Transforms and models need none of them, so declaring the missing operators is enough.

Import torchvision from here, and import this module before timm, which imports torchvision itself:

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

    Returns the declarations, which last as long as the object is kept, or None if torchvision is healthy. They are made
    only after the failure: made beforehand, they would collide with the operators of a healthy build.
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
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]


DECLARED = import_torchvision()  # bound to a name for its lifetime: the declarations go when it goes

from torchvision.transforms import v2 as transforms  # noqa: E402 - works only from here on

__all__ = ["DECLARATIONS", "DECLARED", "MISSING_OPERATOR", "import_torchvision", "transforms"]
