"""Hessians: the mean of x x^T over the inputs x of a product, and the triangular factor that GPTQ goes by.

Comes in: vectors, in arrays or in tensors of torch on a device. Goes out: matrices [K, K] and their factors. Begin with
`hessian.py`, which says what an error costs, and `factor.py`; `torch_hessian.py` has both for a device.
"""

from octavo.calibrate.hessian.factor import Factor, factorize
from octavo.calibrate.hessian.hessian import CrossHessian, Hessian

__all__ = ["CrossHessian", "Factor", "Hessian", "factorize"]
