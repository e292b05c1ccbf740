"""For each op, the calls that compute it: which kernel, which arguments, how many programs.

In: a node of the graph and where its values lie. Out: calls of `launch`. Begin with `registry`, in which each family
of ops enters its functions.
"""

from octavo.backends.gpu.ops import attention, collectives, matmul, pointwise, quantize, recurrent, routing, sampling
from octavo.backends.gpu.ops.registry import BINDERS, binder_of

__all__ = [
    "BINDERS", "attention", "binder_of", "collectives", "matmul", "pointwise", "quantize", "recurrent", "routing",
    "sampling",
]
