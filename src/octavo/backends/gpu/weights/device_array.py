"""What unpacking and packing ask of an array of NumPy, computed by torch where the values lie.

The functions of `formats.unpackers` and of `pack` define where bits lie. NumPy hands each of its functions that takes
a `DeviceArray` to it (NEP 13 and NEP 18), so that the same lines run on a card.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, reduce
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

TORCH = {
    np.dtype(name): getattr(torch, name)
    for name in ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float16", "float32")
}
NUMPY = {kind: dtype for dtype, kind in TORCH.items()}
WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64}
"""Types that torch computes nothing with, and those that hold their numbers."""
UFUNCS: dict[Any, Callable[..., torch.Tensor]] = {
    np.bitwise_and: torch.bitwise_and, np.bitwise_or: torch.bitwise_or, np.bitwise_xor: torch.bitwise_xor,
    np.left_shift: torch.bitwise_left_shift, np.right_shift: torch.bitwise_right_shift,
    np.add: torch.add, np.subtract: torch.sub, np.multiply: torch.mul, np.negative: torch.neg,
}
TESTS: dict[Any, Callable[..., torch.Tensor]] = {
    np.equal: torch.eq, np.less: torch.lt, np.greater_equal: torch.ge, np.isnan: torch.isnan,
    np.isfinite: torch.isfinite,
}
"""Functions that say true or false."""
FUNCTIONS: dict[Any, Callable[..., Any]] = {}


def _does(function: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def enter(do: Callable[..., Any]) -> Callable[..., Any]:
        FUNCTIONS[function] = do
        return do

    return enter


class DeviceArray(NDArrayOperatorsMixin):
    """A tensor of torch that NumPy's functions take. Operands have one type, or are numbers."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @property
    def dtype(self) -> np.dtype[Any]:
        return NUMPY[self.tensor.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def flags(self) -> DeviceArray:
        return self

    @property
    def c_contiguous(self) -> bool:
        return self.tensor.is_contiguous()

    def __len__(self) -> int:
        return len(self.tensor)

    def __getitem__(self, at: Any) -> DeviceArray:
        return DeviceArray(self.tensor[at])

    def reshape(self, *shape: int) -> DeviceArray:
        return DeviceArray(self.tensor.reshape(shape))

    def transpose(self, *axes: int) -> DeviceArray:
        return DeviceArray(self.tensor.permute(axes))

    def copy(self) -> DeviceArray:
        return DeviceArray(self.tensor.clone(memory_format=torch.contiguous_format))

    def view(self, dtype: npt.DTypeLike) -> DeviceArray:
        tensor, wanted = self.tensor, np.dtype(dtype)
        starts = (tensor.storage_offset(), *tensor.stride()[:-1])  # one row of several may be anywhere
        if any(start * tensor.element_size() % wanted.itemsize for start in starts):
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        return DeviceArray(tensor.view(TORCH[wanted]))

    def astype(self, dtype: npt.DTypeLike) -> DeviceArray:
        return DeviceArray(self.tensor.to(TORCH[np.dtype(dtype)]))

    def entries_of(self, table: npt.NDArray[Any]) -> DeviceArray:
        return DeviceArray(on_device(table, self.tensor.device).tensor[self.tensor.to(torch.int32)])

    def all(self) -> bool:
        return bool(self.tensor.all())

    def any(self, axis: int | None = None) -> Any:
        return bool(self.tensor.any()) if axis is None else DeviceArray(self.tensor.any(axis))

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, axis: int = 0) -> Any:
        if method == "reduce" and ufunc is np.bitwise_or:
            return DeviceArray(reduce(torch.bitwise_or, _computable(self.tensor).unbind(axis)).to(self.tensor.dtype))
        known = UFUNCS.get(ufunc) or TESTS.get(ufunc)
        if method != "__call__" or known is None:
            return NotImplemented
        kind = next(x.tensor.dtype for x in inputs if isinstance(x, DeviceArray))
        found = known(*(self._operand(x, kind) for x in inputs))
        result = DeviceArray(found if ufunc in TESTS else found.to(kind))
        if out is None:
            return result
        out[0].tensor.copy_(result.tensor)
        return out[0]

    def _operand(self, x: Any, kind: torch.dtype) -> Any:
        """An operand of values of type `kind`, as torch takes it."""
        if isinstance(x, np.ndarray) and x.ndim:
            x = on_device(x, self.tensor.device)
        if not isinstance(x, DeviceArray):
            return x if isinstance(x, int) else x.item()
        if x.tensor.dtype != kind:
            raise TypeError(f"operands of {kind} and {x.tensor.dtype}")
        return _computable(x.tensor)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return FUNCTIONS[function](*args, **kwargs) if function in FUNCTIONS else NotImplemented


def _computable(x: torch.Tensor) -> torch.Tensor:
    """The numbers in a type that torch computes with."""
    return x.to(WIDER.get(x.dtype, x.dtype))


def on_device(x: npt.NDArray[Any], device: torch.device) -> DeviceArray:
    """A constant of a few values; it is kept."""
    return _constant(x.tobytes(), x.dtype, x.shape, device)


@cache
def _constant(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...], device: torch.device) -> DeviceArray:
    values = torch.frombuffer(bytearray(data), dtype=TORCH[dtype.newbyteorder("=")]).view(shape)
    return DeviceArray(values.to(device))


def _tensors(arrays: Sequence[DeviceArray]) -> list[torch.Tensor]:
    return [a.tensor for a in arrays]


@_does(np.concatenate)
def _concatenate(arrays: Sequence[DeviceArray], axis: int = 0) -> DeviceArray:
    return DeviceArray(torch.cat(_tensors(arrays), axis))


@_does(np.stack)
def _stack(arrays: Sequence[DeviceArray], axis: int = 0) -> DeviceArray:
    return DeviceArray(torch.stack(_tensors(arrays), axis))


@_does(np.repeat)
def _repeat(x: DeviceArray, repeats: int, axis: int) -> DeviceArray:
    return DeviceArray(x.tensor.repeat_interleave(repeats, axis))


@_does(np.pad)
def _pad(x: DeviceArray, width: tuple[tuple[int, int], ...]) -> DeviceArray:
    return DeviceArray(torch.nn.functional.pad(x.tensor, width[-1]))


@_does(np.where)
def _where(of: DeviceArray, x: Any, y: DeviceArray) -> DeviceArray:
    return DeviceArray(torch.where(of.tensor, torch.as_tensor(x, device=y.tensor.device), y.tensor))


@_does(np.array_equal)
def _array_equal(x: DeviceArray, y: DeviceArray, equal_nan: bool = False) -> bool:
    same = x.tensor == y.tensor
    return bool((same | (x.tensor.isnan() & y.tensor.isnan()) if equal_nan else same).all())


@_does(np.unpackbits)
def _unpackbits(x: DeviceArray, axis: int, bitorder: str) -> DeviceArray:
    assert (axis, bitorder) == (-1, "little")
    bits = (x[..., None] >> np.arange(8, dtype=np.uint8)) & np.uint8(1)
    return cast(DeviceArray, bits).reshape(*x.shape[:-1], -1)
