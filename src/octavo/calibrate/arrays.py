"""One array type for all methods: arrays of NumPy on the host, tensors of torch on a device.

NumPy and torch agree on most names, so an algorithm asks `of` its arrays for the module that computes with them; what
they do not agree on is here. Torch is imported where there are tensors, never for arrays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo.formats import Planes
from octavo.formats.spec import AnyArray

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import TypeIs

VALUES = 1 << 27
"""Values of rows that are worked on together on a device, at most, or those of a row: counted in float32."""


def is_tensor(x: object) -> TypeIs[Tensor]:
    """Whether x is a tensor of torch, which is not imported for that."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def of(x: object) -> Any:
    """The module whose functions take x: torch for a tensor, else NumPy."""
    return sys.modules["torch"] if is_tensor(x) else np


def on_host(x: Any) -> AnyArray:
    """An array of the host with the numbers of x."""
    found: AnyArray = x.cpu().numpy() if is_tensor(x) else x
    return found


def on_device(x: AnyArray, device: Any) -> Any:
    """An array of the host on a device, where there is one (None: the host); of a mapped file that is a copy."""
    if device is None:
        return x
    import torch

    writable = x if x.flags.writeable else x.copy()
    return torch.from_numpy(np.ascontiguousarray(writable)).to(device)


def like(x: AnyArray, other: Any) -> Any:
    """An array of the host where `other` lies."""
    return on_device(x, other.device if is_tensor(other) else None)


def zeros(shape: Sequence[int], double: bool, device: str | None) -> Any:
    """Zeros of float64, or of float32, on a device; None: on the host."""
    kind = "float64" if double else "float32"
    if device is None:
        return np.zeros(tuple(shape), kind)
    import torch

    return torch.zeros(tuple(shape), dtype=getattr(torch, kind), device=device)


def single(x: Any) -> Any:
    """x in float32."""
    return x.float() if is_tensor(x) else np.asarray(x, np.float32)


def double(x: Any) -> Any:
    """x in float64."""
    return x.double() if is_tensor(x) else np.asarray(x, np.float64)


def cast(x: Any, other: Any) -> Any:
    """x in the type that `other` has."""
    return x.to(other.dtype) if is_tensor(x) else x.astype(other.dtype)


def gather(table: AnyArray, at: Any) -> Any:
    """What a table of the host has at each of some places, which lie where `at` does."""
    return like(table, at)[at.long() if is_tensor(at) else at.astype(np.intp)]


def repeat(x: Any, times: int) -> Any:
    """Each number of the last dimension so often."""
    return x.repeat_interleave(times, -1) if is_tensor(x) else np.repeat(x, times, axis=-1)


def taken(x: Any, index: Any) -> Any:
    """What an array of the host picks of the first dimensions: numbers of rows, or a mask."""
    return x[like(index, x)] if isinstance(index, np.ndarray) else x[index]


def put(x: Any, part: slice, values: Any) -> None:
    """Write values, of the host or of a device, to rows of x."""
    x[part] = like(np.ascontiguousarray(values), x) if isinstance(values, np.ndarray) and is_tensor(x) else values


def each_plane(change: Callable[..., Any], *planes: Planes) -> Planes:
    """Planes of which each is made of those of that name."""
    names = [name for name, x in vars(planes[0]).items() if x is not None]
    return Planes(**{name: change(*(getattr(p, name) for p in planes)) for name in names})


@contextmanager
def rounded_factors(on: bool = True) -> Iterator[None]:
    """If `on`, products of float32 take the first 11 bits of factors (TF32) where a GPU can; sums are float32."""
    if not on:
        yield
        return
    library = sys.modules["torch"].backends.cuda.matmul
    before, library.allow_tf32 = library.allow_tf32, True
    try:
        yield
    finally:
        library.allow_tf32 = before
