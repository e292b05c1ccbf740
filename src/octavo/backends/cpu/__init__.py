"""The CPU backend: kernels in Numba, with SIMD values that LLVM turns into the host's instructions."""

from octavo.backends.cpu.backend import CpuBackend

__all__ = ["CpuBackend"]
