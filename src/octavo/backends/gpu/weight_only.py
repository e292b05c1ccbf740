"""Products of quantized weights with activations that are not quantized: `matmul`, on torch tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from octavo.backends.gpu import choose
from octavo.backends.gpu.kernels import weight_only
from octavo.backends.gpu.products import library_product, unpacked
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.backends.gpu.binders import Context
    from octavo.backends.gpu.weights import QuantWeight

MOST = 8
"""Up to so many tokens weights are dequantized where they are multiplied; beyond, in memory for the library."""


def matmul(c: Context, x: torch.Tensor, w: QuantWeight) -> torch.Tensor:
    """float32 [T, n] = x [T, k] @ w.T, of weights on the device of `c`.

    x is any float type and is rounded to float16, all sums are float32. Up to `MOST` tokens weights become float32 in
    registers; for more they become float16 in memory that all products share. Raises UsageError where x does not fit.
    """
    if x.ndim != 2 or x.shape[1] != w.k or not x.is_floating_point():
        raise UsageError(f"x is {x.dtype} {list(x.shape)} (allowed: floats [tokens, {w.k}])")
    if x.device.type != c.target.device:
        raise UsageError(f"x is on {x.device.type}, the weights on {c.target.device} (allowed: the same)")
    y = torch.empty((len(x), w.n), dtype=torch.float32, device=x.device)
    if not len(x):
        return y
    halves = torch.zeros((len(x), w.kp), dtype=torch.float16, device=x.device)
    halves[:, : w.k] = x
    if len(x) > MOST:
        _many(c, w, halves, y)
    else:
        _few(c, w, halves, y)
    return y


def _few(c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor) -> None:
    shape = choose.matvec(w.layout, w.n, w.kp, len(x), c.target.arch)
    c.launch(
        weight_only.weight_only_kernel, (-(-w.n // shape.rows),), *w.arguments, x.view(torch.int32), y, w.n, w.kp // 2,
        w.n, **w.constants, T=len(x), BN=shape.rows, BC=shape.chunks, ASM=c.target.asm, warps=shape.warps,
    )()  # fmt: skip


def _many(c: Context, w: QuantWeight, x: torch.Tensor, y: torch.Tensor) -> None:
    halves, unpack = unpacked(c, w)
    unpack()
    library_product(x, halves, y)
