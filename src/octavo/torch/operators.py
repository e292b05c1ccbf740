"""`octavo.ops` as operators of torch, `torch.ops.octavo.*`: torch.compile and torch.export keep them whole.

Arguments and results are those of `octavo.ops`, as torch tensors of one device, except that

    a granularity is a string, also one that is a number of values: "128"
    without `symmetric`, numbers are quantized by `quantize_int8_zero`
    w4a8_gemm takes a W4A8Weight's parts, whose values it does not look at
    stored_gemm is `octavo.ops.matmul` with the bytes of a stored tensor; on the CPU integer codes, which are most
    formats', are multiplied with x in q8_1 (8 bits, a scale for each 32 values), as models are run

There are no derivatives: backward through one of these raises UsageError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn
from weakref import ref

import torch
from torch import Tensor

from octavo import ops
from octavo.errors import UsageError
from octavo.formats import QTensor
from octavo.formats import dequantize as decode
from octavo.formats.float8 import GROUPS, float8_format
from octavo.formats.group import row_named
from octavo.formats.spec import BlockFormat
from octavo.ops.definition import BLOCK
from octavo.ops.op_products import w4a8_parts
from octavo.ops.place import gpu_module, on_gpu, to_numpy, to_torch

_FLOAT8 = {float8_format(group).name: group for group in GROUPS}
_Key = tuple[int, torch.device, tuple[int, ...], str]
_packed: dict[_Key, tuple[ref[Tensor], int, Any]] = {}
"""What was made of tensors, by where they lie: the tensor, the version of its values, and what was made."""
OUT_TYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
FP8_TYPES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
AFTER = 'Tensor? bias=None, Tensor? residual=None, *, str? activation=None, str out_dtype="f32"'
"""Arguments of the epilogue: tensors come first, for operators with tensors by keyword alone can't be registered."""


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


def _operator(schema: str, fake: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """What registers a function as an operator, with another that makes results of the right shape for tracing."""
    name, arguments = schema.split("(", 1)

    def register(function: Callable[..., Any]) -> Any:
        made = torch.library.custom_op(f"octavo::{name}", mutates_args=(), schema=f"({arguments}")(function)
        made.register_fake(fake)
        made.register_autograd(_no_derivative)
        return made

    return register


def _no_derivative(context: Any, *gradients: Any) -> NoReturn:
    raise UsageError("backward through a quantized product (allowed: calls under torch.no_grad or inference_mode)")


def _granularity(text: str) -> Any:
    return int(text) if text.isdecimal() else text


def _scale_shape(x: Tensor, granularity: str) -> tuple[Any, ...]:
    """The shape of the scales of x [..., K]."""
    if x.ndim == 0 or (x.ndim != 2 and granularity == "block"):
        raise UsageError(f"x has the shape {list(x.shape)} (allowed: [..., K], of blocks [M, K])")
    *rows, k = x.shape
    if granularity == "tensor":
        return ()
    if granularity == "block":
        return -(-rows[0] // BLOCK), -(-k // BLOCK)
    return *rows, k // max(int(granularity), 1) if granularity.isdecimal() else 1


def _fake_int8(x: Tensor, granularity: str = "tensor") -> tuple[Tensor, Tensor]:
    scale = x.new_empty(_scale_shape(x, granularity), dtype=torch.float32)
    return torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format), scale


def _fake_int8_zero(x: Tensor, granularity: str = "tensor") -> tuple[Tensor, Tensor, Tensor]:
    codes, scale = _fake_int8(x, granularity)
    return codes, scale, torch.empty_like(scale, dtype=torch.int32)


def _fake_fp8(x: Tensor, granularity: str = "tensor", kind: str = "e4m3") -> tuple[Tensor, Tensor]:
    codes, scale = _fake_int8(x, granularity)
    if kind not in FP8_TYPES:
        raise UsageError(f"fp8 type {kind!r} (allowed: {', '.join(FP8_TYPES)})")
    return torch.empty_like(codes, dtype=FP8_TYPES[kind]), scale


def _fake_product(a: Tensor, b: Tensor, *others: Any, out_dtype: str = "f32", **more: Any) -> Tensor:
    if a.ndim == 0 or b.ndim != 2 or out_dtype not in OUT_TYPES:
        raise UsageError(
            f"a product of shapes {list(a.shape)} and {list(b.shape)}, out_dtype {out_dtype!r} (allowed: [..., K] and"
            f" [N, K], {', '.join(OUT_TYPES)})"
        )
    return a.new_empty((*a.shape[:-1], b.shape[0]), dtype=OUT_TYPES[out_dtype])


@_operator('quantize_int8(Tensor x, str granularity="tensor") -> (Tensor, Tensor)', _fake_int8)
def quantize_int8(x: Tensor, granularity: str = "tensor") -> tuple[Any, ...]:
    """Codes int8 and float32 scales of x [..., K]."""
    return ops.quantize_int8(x, _granularity(granularity))


@_operator('quantize_int8_zero(Tensor x, str granularity="tensor") -> (Tensor, Tensor, Tensor)', _fake_int8_zero)
def quantize_int8_zero(x: Tensor, granularity: str = "tensor") -> tuple[Any, ...]:
    """Codes int8, float32 scales and int32 zero points of x [..., K]."""
    return ops.quantize_int8(x, _granularity(granularity), symmetric=False)


@_operator('quantize_fp8(Tensor x, str granularity="tensor", str kind="e4m3") -> (Tensor, Tensor)', _fake_fp8)
def quantize_fp8(x: Tensor, granularity: str = "tensor", kind: Any = "e4m3") -> tuple[Any, ...]:
    """Values of float8_e4m3fn or float8_e5m2, and float32 scales, of x [..., K]."""
    return ops.quantize_fp8(x, _granularity(granularity), kind)


@_operator(
    f"int8_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? zero_a=None, {AFTER}) -> Tensor",
    _fake_product,
)
def int8_gemm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, zero_a: Tensor | None = None, bias: Tensor | None = None,
    residual: Tensor | None = None, **after: Any,
) -> Any:
    """y [..., N] of codes int8 a [..., K] and b [N, K]."""
    return ops.int8_gemm(a, b, scale_a, scale_b, zero_a=zero_a, bias=bias, residual=residual, **after)


@_operator(
    "w4a8_gemm(Tensor a, Tensor packed, Tensor scale_a, Tensor channel_scale, Tensor? group_scale=None,"
    f" {AFTER}) -> Tensor",
    _fake_product,
)
def w4a8_gemm(
    a: Tensor, packed: Tensor, scale_a: Tensor, channel_scale: Tensor, group_scale: Tensor | None = None,
    bias: Tensor | None = None, residual: Tensor | None = None, **after: Any,
) -> Any:
    """y [..., N] of codes int8 a [..., K] and the parts of a W4A8Weight [N, K]."""
    return w4a8_parts(a, packed, scale_a, channel_scale, group_scale, bias=bias, residual=residual, **after)


@_operator(f"fp8_gemm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, {AFTER}) -> Tensor", _fake_product)
def fp8_gemm(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None, residual: Tensor | None = None,
    **after: Any,
) -> Any:
    """y [..., N] of float8 a [..., K] and b [N, K]."""
    return ops.fp8_gemm(a, b, scale_a, scale_b, bias=bias, residual=residual, **after)


def _require_stored(x: Tensor, weight: Tensor, out_dtype: str) -> None:
    if x.ndim == 0 or weight.ndim != 2 or out_dtype not in OUT_TYPES:
        raise UsageError(
            f"a product of shapes {list(x.shape)} and {list(weight.shape)}, out_dtype {out_dtype!r} (allowed: [..., K]"
            f" and rows [N, bytes], {', '.join(OUT_TYPES)})"
        )


def _fake_stored(x: Tensor, weight: Tensor, format: str, *others: Any, out_dtype: str = "f32", **more: Any) -> Tensor:
    _require_stored(x, weight, out_dtype)
    return x.new_empty((*x.shape[:-1], weight.shape[0]), dtype=OUT_TYPES[out_dtype])


@_operator(
    "stored_gemm(Tensor x, Tensor weight, str format, Tensor? scale=None, Tensor? bias=None, *,"
    ' str out_dtype="f32") -> Tensor',
    _fake_stored,
)
def stored_gemm(
    x: Tensor, weight: Tensor, format: str, scale: Tensor | None = None, bias: Tensor | None = None, *,
    out_dtype: str = "f32",
) -> Tensor:
    """y [..., N] of floats x [..., K] and stored rows of a format, uint8 [N, bytes of a row].

    scale  float32 [], what values of the weight are multiplied by
    bias   [N]
    """
    _require_stored(x, weight, out_dtype)
    y = product(x.reshape(-1, x.shape[-1]), weight, format)
    y = y if scale is None else y * scale
    y = y if bias is None else y + bias
    return y.to(OUT_TYPES[out_dtype]).reshape(*x.shape[:-1], len(weight))
