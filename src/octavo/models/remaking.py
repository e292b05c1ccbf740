"""Tensors of checkpoints as GGUF has them, where their values lie otherwise."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.errors import ModelError
from octavo.formats import QTensor
from octavo.formats.spec import AnyArray
from octavo.io.gguf import LazyTensor


def columns_as_rows(tensor: LazyTensor) -> LazyTensor:
    """A matrix of floats [K, N] as [N, K]. Raises ModelError for one that is quantized."""
    fmt, (k, n) = tensor.format, tensor.shape
    if not fmt.is_float:
        raise ModelError(f"is {fmt.name}", field=f"tensor {tensor.name}", allowed="floats, as its outputs are columns")

    def load() -> QTensor:
        values = tensor.load().data.view(f"u{fmt.row_bytes(1)}").reshape(k, n).T
        return QTensor(fmt, (n, k), np.ascontiguousarray(values).view(np.uint8), tensor.name)

    return LazyTensor(tensor.name, fmt, (n, k), load)


def rows_moved(tensor: LazyTensor, move: Callable[[AnyArray], AnyArray]) -> LazyTensor:
    """A matrix [N, K] or a bias [N] with its rows where `move` puts them, which is given rows of bytes, [N, B]."""

    def load() -> QTensor:
        found = tensor.load()
        rows = move(found.data.reshape(tensor.shape[0], -1))
        return QTensor(found.format, found.shape, np.ascontiguousarray(rows).reshape(found.data.shape), tensor.name)

    return LazyTensor(tensor.name, tensor.format, tensor.shape, load)
