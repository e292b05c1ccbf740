"""For each op, the kernel calls that compute it: which kernel, which arguments, how many tasks."""

from octavo.backends.cpu.binders import attention, choice, elementwise, mul_mat, quantize, routing, states, streams
from octavo.backends.cpu.binders.registry import BINDERS

__all__ = ["BINDERS", "attention", "choice", "elementwise", "mul_mat", "quantize", "routing", "states", "streams"]
