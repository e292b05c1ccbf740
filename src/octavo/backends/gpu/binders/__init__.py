"""For each op, the calls that compute it: which kernel, which arguments, how many programs."""

from octavo.backends.gpu.binders import attention, choice, elementwise, mul_mat, quantize, routing, states, streams
from octavo.backends.gpu.binders.registry import BINDERS

__all__ = ["BINDERS", "attention", "choice", "elementwise", "mul_mat", "quantize", "routing", "states", "streams"]
