"""Heat maps that show which parts of an image a label was predicted from."""

from probmcl.explain.explanations import Explanation, Explanations
from probmcl.explain.grad_cam import ForwardPass, forward_pass

__all__ = ["Explanation", "Explanations", "ForwardPass", "forward_pass"]
