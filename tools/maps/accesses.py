"""What a kernel reads and writes: it is run by Triton's interpreter, and every load and store is noted."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from triton.runtime.interpreter import interpreter_builder as builder

from maps.layouts import Place, Program

Ints = npt.NDArray[np.int64]
NOBODY = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Access:
    """A load or a store of a program.

    program  its numbers in the grid
    store    whether it is a store
    place    where it is written
    address  of the first byte of each value, 0 where a mask is false: int64 of the shape that is loaded or stored
    nbytes   of a value
    """

    program: tuple[int, ...]
    store: bool
    place: Place
    address: Ints
    nbytes: int


@contextmanager
def noted() -> Iterator[list[Access]]:
    """The accesses of kernels that run meanwhile."""
    found: list[Access] = []
    load, store = builder.create_masked_load, builder.create_masked_store

    def note(ptrs: Any, mask: Any, *, stored: bool) -> None:
        address = np.where(np.asarray(mask.data, bool), np.asarray(ptrs.data).astype(np.int64), 0)
        nbytes = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        found.append(Access(tuple(map(int, builder.grid_idx)), stored, _place(), address, nbytes))

    def noting_load(ptrs: Any, mask: Any, *others: Any) -> Any:
        note(ptrs, mask, stored=False)
        return load(ptrs, mask, *others)

    def noting_store(ptrs: Any, value: Any, mask: Any, *others: Any) -> Any:
        note(ptrs, mask, stored=True)
        return store(ptrs, value, mask, *others)

    builder.create_masked_load, builder.create_masked_store = noting_load, noting_store
    try:
        yield found
    finally:
        del builder.create_masked_load, builder.create_masked_store


def _place() -> Place:
    """Where the kernel that runs is, the innermost call first."""
    frame, lines = sys._getframe(), list[str]()
    while frame.f_back is not None:
        frame = frame.f_back
        path = Path(frame.f_code.co_filename)
        if _has_kernels(path):
            lines.append(f"{path.name}:{frame.f_lineno}")
    return tuple(lines)


@cache
def _has_kernels(path: Path) -> bool:
    """Whether a file of the GPU backend is compiled by Triton."""
    return "gpu" in path.parts and "@triton.jit" in path.read_text(encoding="utf-8")


def threads(accesses: Sequence[Access], tensor: torch.Tensor, compiled: Program) -> Ints:
    """The first and the last thread of a program that touch each byte of a tensor: int64 [bytes, 2], or -1.

    The accesses are those of one program, `compiled` says how its values are distributed.
    """
    size = tensor.numel() * tensor.element_size()
    first, last = np.full(size, NOBODY), np.full(size, -1)
    for access in accesses:
        at = access.address - tensor.data_ptr()
        inside = (access.address > 0) & (at >= 0) & (at < size)
        if at.ndim and inside.any():
            holder = compiled.holders(access.place, at.shape)[inside]
            for byte in range(access.nbytes):
                np.minimum.at(first, at[inside] + byte, holder)
                np.maximum.at(last, at[inside] + byte, holder)
    return np.stack([np.where(last < 0, -1, first), last], axis=-1)
