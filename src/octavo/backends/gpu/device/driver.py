"""What the GPU's driver says, asked without torch: a machine without a GPU is told apart at no cost."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

CUDA_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")
AMD_DEVICES = Path("/dev/kfd")
CAPABILITY_MAJOR, CAPABILITY_MINOR = 75, 76  # CUdevice_attribute
PREFERRED_CARVEOUT = 9  # CUfunction_attribute


@dataclass(frozen=True)
class Card:
    """An NVIDIA GPU: its name and compute capability."""

    name: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Driver:
    """A GPU driver: "cuda" or "rocm", the latest CUDA that it can run ((0, 0): not asked), and its GPUs.

    The GPUs of ROCm are left for torch to find.
    """

    kind: str
    cuda: tuple[int, int] = (0, 0)
    cards: tuple[Card, ...] = ()


def find_driver(libraries: Iterable[str] = CUDA_LIBRARIES) -> Driver | None:
    """The driver of this machine's GPUs; None without one. GPUs that CUDA_VISIBLE_DEVICES hides are not there."""
    library = next((found for name in libraries if (found := _open(name)) is not None), None)
    if library is not None:
        return _cuda(library)
    return Driver("rocm") if AMD_DEVICES.exists() else None


def begin_context(libraries: Iterable[str] = CUDA_LIBRARIES) -> Thread | None:
    """Have CUDA make the first GPU's context, which torch then finds, in a thread; None without CUDA.

    It takes 0.1 to 0.2 s, which pass while torch is imported.
    """
    library = next((found for name in libraries if (found := _open(name)) is not None), None)
    if library is None:
        return None
    thread = Thread(target=library.cuDevicePrimaryCtxRetain, args=(ctypes.byref(ctypes.c_void_p()), 0), daemon=True)
    thread.start()
    return thread


def _open(name: str) -> Any:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def _cuda(library: Any) -> Driver:
    number = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(number))
    version = number.value // 1000, number.value % 1000 // 10
    if library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(number)):
        return Driver("cuda", version)
    return Driver("cuda", version, tuple(_card(library, i) for i in range(number.value)))


def _card(library: Any, index: int) -> Card:
    device, value, name = ctypes.c_int(0), ctypes.c_int(0), ctypes.create_string_buffer(256)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    capability = []
    for attribute in (CAPABILITY_MAJOR, CAPABILITY_MINOR):
        library.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        capability.append(value.value)
    return Card(name.value.decode(errors="replace"), (capability[0], capability[1]))


def prefer_shared_memory(kernels: Iterable[int], percent: int, libraries: Iterable[str] = CUDA_LIBRARIES) -> None:
    """Ask CUDA for so much of what is L1 or shared memory as shared memory, where these loaded kernels run; -1: as it
    likes. It gives more where a kernel needs more."""
    library = next((found for name in libraries if (found := _open(name)) is not None), None)
    if library is not None:
        for kernel in kernels:
            library.cuFuncSetAttribute(ctypes.c_void_p(kernel), PREFERRED_CARVEOUT, percent)


def driver_version() -> str | None:
    """The version of the kernel's GPU driver, where Linux tells it."""
    for module in ("nvidia", "amdgpu"):
        try:
            return Path(f"/sys/module/{module}/version").read_text(encoding="ascii").strip()
        except OSError:
            continue
    return None
