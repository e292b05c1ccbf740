"""Checks of NumPy arguments: each names the argument, what it is and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any, cast, get_args

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import AnyArray
from octavo.ops.definition import Activation, Granularity, OutDType

FLOATS = ("float32", "float16", "bfloat16")
ACTIVATIONS, OUT_DTYPES = get_args(Activation), get_args(OutDType)


NAMES = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", **dict(zip(OUT_DTYPES, OUT_DTYPES, strict=True))}
GRANULARITIES = ("tensor", "token", "channel", "block")


def out_dtype(given: Any) -> OutDType:
    """The name of a result's type, from any of its names, or NumPy's, ml_dtypes' or torch's type.

    Raises UsageError for others.
    """
    name = given
    if not isinstance(given, str):
        try:
            name = np.dtype(given).name if given is not None else ""
        except TypeError:
            name = str(given).removeprefix("torch.")
    if name not in NAMES:
        raise UsageError(f"out_dtype {given!r} (allowed: {', '.join(NAMES)}, or these types of NumPy or torch)")
    return cast("OutDType", NAMES[name])


def granularity(given: Any) -> Granularity:
    """A granularity; NumPy's integers become Python's. Raises UsageError for what is neither a name nor a number."""
    if isinstance(given, int | np.integer) and not isinstance(given, bool):
        return int(given)
    if not isinstance(given, str) or given not in GRANULARITIES:
        raise UsageError(f"granularity {given!r} (allowed: {', '.join(map(repr, GRANULARITIES))}, or a number)")
    return cast("Granularity", given)


@cache
def name_of(dtype: np.dtype[Any]) -> str:
    """A type's name, which NumPy works out anew each time; of a foreign byte order as ">f4"."""
    return dtype.name if dtype.isnative else dtype.str


def words(x: AnyArray) -> str:
    """Type and shape, for an error."""
    return f"{name_of(x.dtype)} {list(x.shape)}"


def matrix(name: str, x: AnyArray, types: Iterable[str]) -> None:
    """Raise UsageError unless x has two dimensions and one of these types."""
    if x.ndim != 2 or name_of(x.dtype) not in types:
        raise UsageError(f"{name} is {words(x)} (allowed: {' or '.join(types)} of two dimensions)")


def factors(a: AnyArray, b: AnyArray, types: Iterable[str]) -> tuple[int, int, int]:
    """M, N and K of a [M, K] and b [N, K]. Raises UsageError for other types, or rows of different length."""
    matrix("a", a, types)
    matrix("b", b, types)
    same_k(a, *b.shape)
    return len(a), len(b), a.shape[1]


def same_k(a: AnyArray, n: int, k: int) -> None:
    """Raise UsageError unless rows of a are as long as those of the weight."""
    if a.shape[1] != k:
        raise UsageError(f"a is {words(a)}, but the weight is {[n, k]}: rows differ in length")


def packed(codes: AnyArray, channel: AnyArray, groups: AnyArray | None) -> None:
    """Raise UsageError unless these are the parts of a W4A8Weight, whatever their values."""
    if codes.ndim != 2 or name_of(codes.dtype) != "uint8" or codes.shape[1] % 64:
        raise UsageError(f"packed is {words(codes)} (allowed: uint8 [N, K / 2], K a multiple of 128)")
    n, k = len(codes), 2 * codes.shape[1]
    for name, x, dtype, shape in (
        ("channel_scale", channel, "float32", (n,)), ("group_scale", groups, "float16", (n, k // 128)),
    ):
        if x is not None and (x.shape != shape or name_of(x.dtype) != dtype):
            raise UsageError(f"{name} is {words(x)}, not {dtype} {list(shape)}")


def per_group(name: str, x: AnyArray, rows: int, groups: int, dtype: str = "float32") -> AnyArray:
    """A number for each of `rows` and groups, [rows, groups], from one for each, or from what `per_row` takes."""
    if name_of(x.dtype) == dtype and x.shape == (rows, groups):
        return x
    return np.broadcast_to(per_row(name, x, rows, dtype)[:, None], (rows, groups))


def per_row(name: str, x: AnyArray, rows: int, dtype: str = "float32") -> AnyArray:
    """A number for each of `rows`, [rows], from one for all, or one for each as [rows] or [rows, 1]."""
    if name_of(x.dtype) != dtype or x.shape not in ((), (1,), (1, 1), (rows,), (rows, 1)):
        raise UsageError(f"{name} is {words(x)} (allowed: {dtype} [], [{rows}] or [{rows}, 1])")
    return x.reshape(-1) if x.size == rows else np.full(rows, x.reshape(-1)[0])


def zero_points(name: str, x: AnyArray, rows: int, groups: int = 1) -> AnyArray:
    """Zero points of int8 codes, [rows], as `per_row` takes them, or of groups, as `per_group` does.

    Raises UsageError for one that is not a code.
    """
    found = per_row(name, x, rows, "int32") if groups == 1 else per_group(name, x, rows, groups, "int32")
    odd = found[(found < -128) | (found > 127)]
    if len(odd):
        raise UsageError(f"{name} has {odd[0]} (allowed: -128 to 127)")
    return found


def epilogue(m: int, n: int, bias: AnyArray | None, activation: Any, residual: AnyArray | None) -> None:
    """Raise UsageError for what does not fit a result [m, n]."""
    for name, x, shape in (("bias", bias, (n,)), ("residual", residual, (m, n))):
        if x is not None and (x.shape != shape or name_of(x.dtype) not in FLOATS):
            raise UsageError(f"{name} is {words(x)} (allowed: {' or '.join(FLOATS)} {list(shape)})")
    if activation is not None and activation not in ACTIVATIONS:
        raise UsageError(f"activation {activation!r} (allowed: {', '.join(ACTIVATIONS)}, or None)")
