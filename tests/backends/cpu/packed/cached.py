"""Weights loaded through the cache, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from octavo.backends.cpu import CpuBackend
from octavo.backends.cpu.device.large_pages import Arena
from octavo.backends.cpu.device.memory import packed_bytes
from octavo.backends.cpu.packed.store import Store, open_store
from octavo.formats import QTensor, by_name, quantize_reference
from octavo.graph.protocol import WeightSource
from octavo.io.gguf import GGUFFile, write_gguf


def matrix(fmt: str, *shape: int, name: str = "w") -> QTensor:
    """A random tensor of a format."""
    values = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    return quantize_reference(values, by_name(fmt), name)


def write(path: Path, tensors: Sequence[QTensor]) -> Path:
    """A GGUF file of tensors."""
    write_gguf(path, "llama", {}, tensors)
    return path


def source(file: GGUFFile, *, keep: bool = True, code: bytes = b"code") -> WeightSource:
    return WeightSource(file.files, file.tensors, (code,), file.path, keep)


def load(
    path: Path, tensors: Sequence[QTensor] | None = None, *, code: bytes = b"code", keep: bool = True
) -> tuple[Store | None, list[Any]]:
    """The weights of a file, or some tensors of it, through the store that there is for them."""
    backend, memory = CpuBackend(threads=2), Arena()
    with GGUFFile.open(path) as file:
        wanted = [file.tensor(name) for name in file.tensors] if tensors is None else list(tensors)
        store = open_store(source(file, code=code, keep=keep), wanted, packed_bytes)
        found = [
            backend.load(tensor) if store is None else store.load(tensor, backend._pack, memory) for tensor in wanted
        ]
        if store is not None:
            store.close()
    return store, found


def require_equal(found: Any, want: Any) -> None:
    """Raise AssertionError unless two packed weights are the same to the bit."""
    assert type(found) is type(want)
    if is_dataclass(want):
        for field in fields(want):
            require_equal(getattr(found, field.name), getattr(want, field.name))
    elif isinstance(want, np.ndarray):
        assert found.dtype == want.dtype
        np.testing.assert_array_equal(found, want)
    else:
        assert found == want


def require_all_equal(found: Sequence[Any], want: Sequence[Any]) -> None:
    for one, other in zip(found, want, strict=True):
        require_equal(one, other)
