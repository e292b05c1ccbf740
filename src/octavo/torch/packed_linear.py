"""Products with weights that lie in rows of a block format, on the CPU and on a GPU.

A weight is packed for the kernels by the first product with it. What is packed is kept as long as the tensor lives, and
made anew where its values have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from octavo.errors import UsageError
from octavo.formats import QTensor
from octavo.formats import dequantize as decode
from octavo.formats.float8 import GROUPS, float8_format
from octavo.formats.group import row_named
from octavo.formats.spec import BlockFormat
from octavo.ops.place import gpu_module, on_gpu, to_numpy, to_torch

_FLOAT8 = {float8_format(group).name: group for group in GROUPS}


def row_format(name: str) -> BlockFormat:
    """The format of rows of a name: of the table, of groups, or of e4m3 numbers. Raises QuantFormatError."""
    return float8_format(_FLOAT8[name]) if name in _FLOAT8 else row_named(name)


def stored(weight: Tensor, format: str) -> QTensor:
    """Bytes uint8 [N, bytes of a row] as a tensor [N, K]. Raises UsageError for others than a format's rows."""
    return QTensor(row_format(format), _shape(weight, format), weight.detach().cpu().contiguous().numpy())


def _shape(weight: Tensor, format: str) -> tuple[int, int]:
    """[N, K] of stored rows."""
    fmt = row_format(format)
    if weight.dtype != torch.uint8 or weight.ndim != 2 or weight.shape[1] % fmt.block_bytes:
        allowed = f"uint8 [N, bytes], {fmt.block_bytes} bytes for each {fmt.block} values"
        raise UsageError(f"rows of {format} are {weight.dtype} {list(weight.shape)} (allowed: {allowed})")
    return len(weight), weight.shape[1] // fmt.block_bytes * fmt.block


def dequantize(weight: Tensor, format: str) -> Tensor:
    """float32 values [N, K] of stored rows, on their device."""
    values: Tensor = to_torch(decode(stored(weight, format))).to(weight.device)
    return values


def product(x: Tensor, weight: Tensor, format: str) -> Tensor:
    """y float32 [M, N] of x [M, K] and stored rows uint8 [N, bytes of a row], on their device.

    Raises UsageError for rows that are of no format and x that does not fit, and, on the CPU, NonFiniteError.
    """
    k, gpu = _shape(weight, format)[1], on_gpu(x, weight)
    if x.shape[1] != k or not x.is_floating_point():
        raise UsageError(f"x is {x.dtype} {list(x.shape)} (allowed: floats [..., {k}])")
    if gpu:
        y: Tensor = gpu_module("matmul.w4a16.weight_only").matmul_stored(
            x, _kept(weight, format, lambda tensor: tensor)
        )
        return y
    from octavo.backends.cpu.matmul.stored_weight import StoredWeight

    made: Tensor = to_torch(_kept(weight, format, StoredWeight).product(to_numpy(x.detach().float())))
    return made


_Key = tuple[int, torch.device, tuple[int, ...], str]
_packed: dict[_Key, tuple[ref[Tensor], int, Any]] = {}
"""What was made of tensors, by where they lie: the tensor, the version of its values, and what was made."""


def _kept(weight: Tensor, format: str, make: Callable[[QTensor], Any]) -> Any:
    """What `make` makes of a weight, kept with it."""
    if weight.is_inference():  # torch does not count writes to inference tensors
        return make(stored(weight, format))
    key: _Key = weight.data_ptr(), weight.device, tuple(weight.shape), format
    found = _packed.get(key)
    if found is not None:
        tensor = found[0]()
        if tensor is not None and tensor.data_ptr() == key[0] and found[1] == weight._version:
            return found[2]
    made = make(stored(weight, format))
    _packed[key] = ref(weight, lambda dead: _forget(key, dead)), weight._version, made
    return made


def _forget(key: _Key, dead: ref[Tensor]) -> None:
    """Let go of what was made of a tensor that is gone, unless another one lies there by now."""
    found = _packed.get(key)
    if found is not None and found[0] is dead:
        del _packed[key]
