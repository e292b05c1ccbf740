"""The GPU backend: kernels in Triton, for CUDA and ROCm, on memory that torch manages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.lazy import names_from

if TYPE_CHECKING:
    from octavo.backends.gpu.backend import GpuBackend

__all__ = ["GpuBackend"]

__getattr__ = names_from(__name__, {"octavo.backends.gpu.backend": ["GpuBackend"]})
