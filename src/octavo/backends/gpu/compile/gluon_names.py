# mypy: ignore-errors
"""What kernels in Gluon call by one name, though Triton's versions from 3.6 to 3.9 do not: chosen once, at import."""

from __future__ import annotations

from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import tma

copy_tile = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
"""Has the bulk copy engine fill a tile of shared memory; `async_copy_global_to_shared` before Triton 3.8."""

copy_async = async_copy.async_load if hasattr(async_copy, "async_load") else async_copy.async_copy_global_to_shared
"""Has each thread copy to shared memory meanwhile; `async_copy_global_to_shared` before Triton 3.8."""

barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
"""All threads of a program, or of a group of its warps, wait for each other; `thread_barrier` before Triton 3.7."""

_shared = gl.shared_memory_descriptor
reinterpret = _shared.reinterpret if hasattr(_shared, "reinterpret") else _shared._reinterpret
"""The same shared memory as another type, shape and layout; `_reinterpret` before Triton 3.9."""
