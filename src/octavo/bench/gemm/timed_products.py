"""Products of `octavo.ops` as `octavo bench gemm` measures them: how operands are quantized, and where they lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from octavo import ops
from octavo.bench.gemm.gemm_subject import Calls, GemmSubject, How
from octavo.errors import UsageError
from octavo.formats.spec import F32, AnyArray
from octavo.ops import definition
from octavo.ops.place import to_torch
from octavo.ops.w4a8 import W4A8Weight

Operand = AnyArray | W4A8Weight


@dataclass(frozen=True)
class BenchProduct:
    """A product of `octavo.ops`: how both operands are quantized, and what multiplies them.

    bound     of the error against the product of the floats (rel_L2)
    product   name of the function, in `octavo.ops` and in its definition
    quantize  how, activations and weights, to its arguments: codes of both, scales of tokens before those of channels
    multiple  what K has to be a multiple of
    """

    bound: float
    product: str
    quantize: Callable[[How, F32, F32], tuple[Operand, ...]]
    multiple: int = 1


def _int8(how: How, x: F32, w: F32) -> tuple[Operand, ...]:
    by = how.scale_a
    return _joined(ops.quantize_int8(x, by), ops.quantize_int8(w, by if isinstance(by, int) else "channel"))


def _w4a8(group: Any, how: How, x: F32, w: F32) -> tuple[Operand, ...]:
    a, scale_a = ops.quantize_int8(x, how.scale_a)
    return a, ops.quantize_w4a8(w, group), scale_a


def _fp8(how: How, x: F32, w: F32) -> tuple[Operand, ...]:
    left, right = how.kinds
    return _joined(ops.quantize_fp8(x, how.scale_a, left), ops.quantize_fp8(w, "channel", right))


def _fp8_blocks(how: How, x: F32, w: F32) -> tuple[Operand, ...]:
    left, right = how.kinds
    return _joined(ops.quantize_fp8(x, 128, left), ops.quantize_fp8(w, "block", right))


def _joined(a: tuple[AnyArray, AnyArray], b: tuple[AnyArray, AnyArray]) -> tuple[Operand, ...]:
    return a[0], b[0], a[1], b[1]


PRODUCTS = {
    "int8": BenchProduct(0.03, "int8_gemm", _int8),
    "w4a8": BenchProduct(0.2, "w4a8_gemm", partial(_w4a8, None), 128),
    "w4a8-g128": BenchProduct(0.15, "w4a8_gemm", partial(_w4a8, 128), 128),
    "fp8": BenchProduct(0.05, "fp8_gemm", _fp8),
    "fp8-blocks": BenchProduct(0.05, "fp8_gemm", _fp8_blocks, 128),
}
E5M2_BOUND = 0.1
"""Of products of which a factor is e5m2, with two bits behind the point."""


def require(scheme: str, k: int, how: How) -> None:
    """Raise UsageError for what a scheme of PRODUCTS lacks."""
    if not scheme.startswith("fp8") and how.kinds != ("e4m3", "e4m3"):
        raise UsageError(f"--fp8 {'-'.join(how.kinds)} with scheme {scheme} (allowed with it: fp8 and fp8-blocks)")
    if isinstance(how.scale_a, int) and (scheme != "int8" or how.scale_a < 32 or how.scale_a % 32 or k % how.scale_a):
        raise UsageError(
            f"--scale-a {how.scale_a} with scheme {scheme} and K = {k} (allowed: token or tensor; with int8 a multiple"
            " of 32 that divides K)"
        )
    if scheme == "fp8-blocks" and how.scale_a == "tensor":
        raise UsageError("--scale-a tensor with scheme fp8-blocks, whose activations have a scale for 128 values")


def subject(scheme: str, x: F32, w: F32, device: str, how: How) -> GemmSubject:
    """A product of `octavo.ops`, on "cpu" or "gpu"."""
    product = PRODUCTS[scheme]
    operands, after = product.quantize(how, x, w), _after(how, len(x), len(w))
    place, function = (_on_gpu if device == "gpu" else _on_cpu), _function(product.product, device)
    define = getattr(definition, product.product)
    placed = tuple(place(o) for o in operands)
    given = {name: place(value) if isinstance(value, np.ndarray) else value for name, value in after.items()}
    a, weight, scale_a, *rest = operands
    assert not isinstance(a, W4A8Weight)
    assert not isinstance(scale_a, W4A8Weight)

    def calls(copies: int) -> Calls:
        weights = [placed[1], *(place(weight, copy=True) for _ in range(copies - 1))]
        return [partial(function, placed[0], each, *placed[2:], **given) for each in weights]

    def exact(rows: Any) -> F32:
        scales = scale_a[rows] if scale_a.ndim else scale_a
        return np.asarray(define(a[rows], weight, scales, *rest, **rows_of(after, rows)))

    nbytes = sum(int(o.nbytes) for o in operands) + sum(int(np.size(v)) * 4 for v in after.values())
    return GemmSubject(
        E5M2_BOUND if "e5m2" in how.kinds else product.bound, lambda: np.asarray(_host(function(*placed, **given))),
        exact, calls, placed, int(weight.nbytes), nbytes + 4 * len(x) * len(w), after,
    )


def _after(how: How, m: int, n: int) -> dict[str, Any]:
    """What follows the sums, drawn; nothing where nothing is asked for."""
    rng = np.random.default_rng((how.seed, 1))
    made: dict[str, Any] = {}
    if how.bias:
        made["bias"] = rng.standard_normal(n, np.float32)
    if how.activation:
        made["activation"] = how.activation
    if how.residual:
        made["residual"] = rng.standard_normal((m, n), np.float32)
    return made


def rows_of(after: dict[str, Any], rows: Any) -> dict[str, Any]:
    """What follows the sums of some rows."""
    return {name: value[rows] if name == "residual" else value for name, value in after.items()}


def _function(name: str, device: str) -> Any:
    """A product of `octavo.ops`; on "gpu" that of its kernels, whichever device these run on."""
    if device == "cpu":
        return getattr(ops, name)
    from octavo.backends.gpu.matmul.w8a8 import gemm

    product = getattr(gemm, name)
    if name != "w4a8_gemm":
        return product
    return lambda a, w, scale_a, **after: product(a, w.packed, scale_a, w.channel_scale, w.group_scale, **after)


def _on_cpu(operand: Operand, copy: bool = False) -> Operand:
    if not copy:
        return operand
    if isinstance(operand, W4A8Weight):
        groups = operand.group_scale
        return W4A8Weight(operand.packed.copy(), operand.channel_scale, None if groups is None else groups.copy())
    return operand.copy()


def _on_gpu(operand: Operand, copy: bool = False) -> Any:
    from octavo.backends.gpu.device.torch_device import target

    where = target().device
    return operand.to(where) if isinstance(operand, W4A8Weight) else to_torch(operand).to(where, copy=copy)


def _host(y: Any) -> Any:
    return y if isinstance(y, np.ndarray) else y.cpu().numpy()
