"""Where arguments lie: NumPy arrays, torch tensors in the host's memory, or torch tensors on a GPU."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import AnyArray

BYTE_TYPES = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Types that NumPy has from ml_dtypes, and a type of their width through which torch hands them over."""


PLAIN = frozenset((np.ndarray, type(None)))
"""Types of arguments that need no further look: most products have no others."""


def on_gpu(*arguments: Any) -> bool:
    """Whether the arguments (None left out) are torch tensors on a GPU.

    Raises UsageError where some are NumPy's and some torch's, or some are in the host's memory and some are not.
    """
    if PLAIN.issuperset(map(type, arguments)):
        return False
    given = [x for x in arguments if x is not None]
    if not any(is_torch(x) for x in given):
        odd = next((x for x in given if not isinstance(x, np.ndarray | np.generic)), None)
        if odd is not None:
            raise UsageError(f"an argument is {type(odd).__name__} (allowed: NumPy arrays or torch tensors)")
        return False
    for x in given:
        _require_plain(x)
    kinds = {f"torch on {x.device.type}" if is_torch(x) else "NumPy" for x in given}
    if len(kinds) > 1:
        raise UsageError(
            f"arguments are {' and '.join(sorted(kinds))} (allowed: all NumPy, or all torch on one device)"
        )
    return kinds != {"torch on cpu"}


def _require_plain(x: Any) -> None:
    """Raise UsageError for a tensor whose memory does not hold its values one by one as they are."""
    if not is_torch(x):
        return
    odd = "nested" if x.is_nested else "quantized" if x.is_quantized else None
    if odd is None and str(x.layout) != "torch.strided":
        odd = str(x.layout)
    if odd is not None:
        raise UsageError(f"a tensor is {odd}, not torch.strided")
    if x.is_neg() or x.is_conj():
        raise UsageError("a tensor is a negated or conjugated view; call resolve_neg() or resolve_conj() first")


def is_torch(x: Any) -> bool:
    """Whether it is a torch tensor; torch is not imported to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def to_numpy(x: Any) -> Any:
    """A NumPy array that shares memory with an argument; None stays None."""
    if type(x) in PLAIN:
        return x
    if not is_torch(x):
        return np.asarray(x)
    _require_plain(x)
    name = str(x.dtype).removeprefix("torch.")
    if name not in BYTE_TYPES:
        return x.detach().numpy()
    import ml_dtypes
    import torch

    return x.detach().view(getattr(torch, BYTE_TYPES[name])).numpy().view(getattr(ml_dtypes, name))


def like(given: Any, result: Any) -> Any:
    """A result, of NumPy or torch, as a torch tensor where the argument `given` is one."""
    return to_torch(result) if is_torch(given) and isinstance(result, np.ndarray) else result


def to_torch(array: AnyArray) -> Any:
    """A torch tensor that shares memory with an array."""
    import torch

    name = array.dtype.name
    if name not in BYTE_TYPES:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(BYTE_TYPES[name])).view(getattr(torch, name))


def gpu_module(name: str) -> Any:
    """A module of the GPU backend. Raises BackendError where torch, Triton or a GPU is missing."""
    from importlib import import_module

    from octavo.backends.gpu.device.torch_device import target

    target()
    return import_module(f"octavo.backends.gpu.{name}")
