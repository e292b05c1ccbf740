"""Metadata to write: the GGUF type of a Python value, and whether the value fits it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from octavo.errors import GGUFError, shown
from octavo.io.gguf.header_limits import MAX_KEY_BYTES
from octavo.io.gguf.values import DTYPES, FLOATS, INTEGERS, TypedValue, ValueType

_BY_DTYPE = {dtype: kind for kind, dtype in DTYPES.items()}
_RANGE = {kind: (int(np.iinfo(DTYPES[kind]).min), int(np.iinfo(DTYPES[kind]).max)) for kind in INTEGERS}
_LARGEST = {kind: float(np.finfo(DTYPES[kind]).max) for kind in FLOATS}
_BY_RANGE = (ValueType.U32, ValueType.I32, ValueType.U64, ValueType.I64)
_BY_RANGE_IN_ARRAY = (ValueType.I32, ValueType.U32, ValueType.I64, ValueType.U64)
_WRITABLE = "int, float, bool, str, bytes, NumPy numbers, lists or one-dimensional arrays of one of these, TypedValue"


def typed_pair(key: str, value: Any) -> TypedValue:
    """`value` as it shall be written under `key`, checked to fit its type.

    A TypedValue and NumPy's numbers and arrays say their type themselves (float16 is written as F32). An int becomes
    U32, or I32, U64, I64 where it does not fit; a float F32. In a list, ints become I32, or U32, I64, U64, as llama.cpp
    expects them. Text and bytes become STRING. Raises GGUFError for anything else.
    """
    if not 1 <= len(_utf8(key, key)) <= MAX_KEY_BYTES:
        raise _unfit(key, f"a key of {len(key)} characters", f"1 to {MAX_KEY_BYTES} bytes")
    pair = value if isinstance(value, TypedValue) else _infer(key, value)
    if pair.type is not ValueType.ARRAY:
        return TypedValue(pair.type, _fit(key, pair.type, pair.value))
    if pair.element is None or pair.element is ValueType.ARRAY:
        raise _unfit(key, "an array of arrays, which llama.cpp does not read", "numbers, bools or strings")
    return TypedValue(pair.type, [_fit(key, pair.element, v) for v in _items(pair.value)], pair.element)


def _items(values: Any) -> Iterable[Any]:
    items: Iterable[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    return items


def _infer(key: str, value: Any) -> TypedValue:
    if isinstance(value, np.ndarray):
        if value.ndim != 1:
            raise _unfit(key, f"an array of {value.ndim} dimensions", "1 dimension")
        return TypedValue(ValueType.ARRAY, value, _numpy_type(key, value.dtype))
    if isinstance(value, list | tuple):
        return TypedValue(ValueType.ARRAY, value, _element_type(key, value))
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        return TypedValue(_numpy_type(key, value.dtype), value.item())
    return TypedValue(_python_type(key, [value], _BY_RANGE), value)


def _numpy_type(key: str, dtype: np.dtype[Any]) -> ValueType:
    wanted = np.dtype("<f4") if dtype == np.float16 else dtype.newbyteorder("<")
    if wanted not in _BY_DTYPE:
        raise _unfit(key, f"NumPy type {dtype}", _WRITABLE)
    return _BY_DTYPE[wanted]


def _element_type(key: str, values: list[Any] | tuple[Any, ...]) -> ValueType:
    plain = [v.item() if isinstance(v, np.generic) and not isinstance(v, str | bytes) else v for v in values]
    return _python_type(key, plain, _BY_RANGE_IN_ARRAY) if plain else ValueType.I32


def _python_type(key: str, values: list[Any], by_range: tuple[ValueType, ...]) -> ValueType:
    """The type that holds all of `values`, which are of one kind."""
    if all(isinstance(v, bool) for v in values):
        return ValueType.BOOL
    if all(isinstance(v, str | bytes) for v in values):
        return ValueType.STRING
    if all(isinstance(v, float) for v in values):
        return ValueType.F32
    if all(isinstance(v, int) and not isinstance(v, bool) for v in values):
        low, high = min(values), max(values)
        for kind in by_range:
            if _RANGE[kind][0] <= low and high <= _RANGE[kind][1]:
                return kind
        raise _unfit(key, f"integers from {low} to {high}", "64 bits")
    kinds = sorted({type(v).__name__ for v in values})
    raise _unfit(key, f"a value of {', '.join(kinds)}", _WRITABLE)


def _fit(key: str, kind: ValueType, value: Any) -> Any:
    """`value` as gguf's writer packs it in `kind`; strings as bytes."""
    value = value.item() if isinstance(value, np.generic) and not isinstance(value, str | bytes) else value
    if kind is ValueType.STRING and isinstance(value, str | bytes):
        return _utf8(key, value)
    if kind is ValueType.BOOL and isinstance(value, bool):
        return value
    if kind in INTEGERS and isinstance(value, int) and not isinstance(value, bool):
        low, high = _RANGE[kind]
        if low <= value <= high:
            return value
        raise _unfit(key, f"{value} does not fit {kind.name}", f"{low} to {high}")
    if kind in FLOATS and isinstance(value, float | int) and not isinstance(value, bool):
        if not _LARGEST[kind] < abs(value) < float("inf"):
            return float(value)
        raise _unfit(key, f"{value} does not fit {kind.name}", f"at most {_LARGEST[kind]}")
    raise _unfit(key, f"{type(value).__name__} as {kind.name}", _WRITABLE)


def _utf8(key: str, text: str | bytes) -> bytes:
    try:
        return text.encode("utf-8") if isinstance(text, str) else text
    except UnicodeEncodeError as e:
        raise _unfit(key, f"text with a lone surrogate at {e.start}", "text that UTF-8 can hold, or bytes") from None


def _unfit(key: str, problem: str, allowed: str) -> GGUFError:
    return GGUFError(problem, field=f"key {shown(key)}", allowed=allowed)
