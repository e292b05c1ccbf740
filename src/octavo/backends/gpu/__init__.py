"""The GPU backend: kernels in Triton, for CUDA and ROCm, on memory that torch manages."""

from octavo.backends.gpu.backend import GpuBackend

__all__ = ["GpuBackend"]
