"""What kernels take, by name: records of pointers and numbers, and constants that a kernel is compiled for.

An argument of a kernel may be a NamedTuple of

    tensors     the kernel sees pointers
    numbers     int or float
    None        there is nothing: the kernel asks `is None` when it is compiled, and has no such argument
    constants   instances of `Constant`
    tuples      of these, named or not

No field may be called `values` or `type`, which Triton's own tuples have. Descriptors of tiles are arguments of their
own: Triton 3.6 looks for them nowhere else. `Launch` makes of all this what Triton takes; a kernel that is launched
without it has to be given `for_triton(argument)`.
"""

from __future__ import annotations

from collections import namedtuple
from functools import cache
from typing import Any, NamedTuple

Pointer = Any
"""A tensor on the host, a pointer in a kernel."""


class Constant:
    """A frozen dataclass that kernels are compiled for: its fields and properties are constants in a kernel.

    It is a field of a NamedTuple, or a parameter annotated `tl.constexpr`.
    """


class Matrix(NamedTuple):
    """Rows of numbers, each row's side by side.

    data    the first number
    stride  elements from a row to the next; 0 for one row that stands for all
    """

    data: Pointer
    stride: int


class Results(NamedTuple):
    """Rows of float32 results.

    data     the first number
    stride   elements from a row to the next
    factors  float32, what sums of a column are multiplied with, or None
    """

    data: Pointer
    stride: int
    factors: Pointer | None


class PackedWeight(NamedTuple):
    """Quantized weights [N, kp] as `layout` describes them; a plane that a layout does not have is None.

    codes8, codes4, codes2, codes1  planes of codes, int32 (four bytes each); int8 for `mmq_dot`
    scale     scales of groups, or of super-blocks: int32 (a pair of float16), int16 (a pair of exponents), float32,
              or float16 without minima; zero points with them
    minimum   minima of groups, like `scale`
    small     int16 (a pair of bytes): scales of groups below a super-block
    rest      int8: upper bits of their minima
    table     four int32: what codes stand for, 16 signed bytes
    layout    a `RowLayout`
    factors   float32, what sums of a row are multiplied by, or None
    """

    codes8: Pointer | None
    codes4: Pointer | None
    codes2: Pointer | None
    codes1: Pointer | None
    scale: Pointer
    minimum: Pointer | None
    small: Pointer | None
    rest: Pointer | None
    table: tuple[int, int, int, int] | None
    layout: Constant
    factors: Pointer | None = None


class Q8Activation(NamedTuple):
    """Activations [T, kp] quantized to q8_1.

    codes   int8 [T, kp], or int32 of four neighbours
    scale   float32 [kp / 32, stride]
    sums    float32 [kp / 32, stride]: the sum of the 32 values of a group
    sums16  float32 [kp / 16, stride]: the sums of its halves
    stride  T, or more: tokens from a group to the next
    """

    codes: Pointer
    scale: Pointer
    sums: Pointer
    sums16: Pointer
    stride: int

    def as_words(self) -> Q8Activation:
        """The same with codes as int32."""
        import torch

        return self._replace(codes=self.codes.view(torch.int32))


class Q8Token(NamedTuple):
    """One token's activations [kp] as `matvec_persistent` takes them: q8_1, or with a scale for each 16 values.

    codes    int32, four neighbours each
    scale    float32: for each 32 values, `stride` apart, or for each 16
    sums     float32: the sum of the 32 values of a group, of q8_1
    sums16   float32: the sums of 16 values
    stride   that of q8_1
    squares  float32 [kp / 16], sums of 16 squares: products are divided by the root of their mean; None where not
    eps      that is added to the mean
    """

    codes: Pointer
    scale: Pointer
    sums: Pointer | None
    sums16: Pointer
    stride: int
    squares: Pointer | None = None
    eps: float = 0.0


class FusedEpilogue(NamedTuple):
    """What a product of one token makes of its results beside storing them.

    codes    int8 [n]
    scale    float32 [n / 16], of 16 values each
    sums16   float32 [n / 16]: their sums
    squares  float32 [n / 16], sums of squares of 16 results; None for SwiGLU
    weight   float32 [n], what results are multiplied with before they are quantized; None for SwiGLU
    """

    codes: Pointer
    scale: Pointer
    sums16: Pointer
    squares: Pointer | None
    weight: Pointer | None


class ExpertIds(NamedTuple):
    """Which expert each row of the result is of.

    ids      int32, one for each row of the result
    sharing  neighbouring rows of the result that share a row of the activations
    """

    ids: Pointer
    sharing: int


class Biases(NamedTuple):
    """Rows that are added to the two halves of a gated linear unit, a row [k] an expert.

    x, other  float32 [experts, k]
    ids       int32: the expert of each row
    """

    x: Pointer
    other: Pointer
    ids: Pointer


class Source(NamedTuple):
    """Values on their way into a product; what is made of them is a constant of the kernel.

    x        float32 [T, k]
    other    a norm's weight [k], or what an activation of x is multiplied with [T, k]; None for x as it is
    eps      of a norm
    biases   of x and other, where they are halves of a gated linear unit; or None
    numbers  that what is made of x and other takes besides
    """

    x: Matrix
    other: Matrix | None = None
    eps: float = 0.0
    biases: Biases | None = None
    numbers: tuple[float, ...] = ()


class SplitK(NamedTuple):
    """Memory for programs that compute one tile, each from a part of K; the last to finish adds up the partial sums.

    partial  for each tile, a tile of sums for each program
    counter  int32, a zero for each tile, and zeros again afterwards
    """

    partial: Pointer
    counter: Pointer


def matrix(x: Any) -> Matrix:
    """A tensor [rows, columns] as a kernel takes it, or one row [columns] that stands for all."""
    return Matrix(x, x.stride(0) if x.ndim > 1 else 0)


def for_triton(argument: Any) -> Any:
    """An argument with its constants marked as such; interpreted kernels take them as they are."""
    from octavo.backends.gpu.device.torch_device import interpreted

    return argument if interpreted() else marked(argument)


def marked(argument: Any) -> Any:
    """An argument as kernels are compiled for it."""
    if not isinstance(argument, tuple):
        return _constexpr(argument) if isinstance(argument, Constant) else argument
    parts = [marked(part) if isinstance(part, tuple | Constant) else part for part in argument]
    if not hasattr(argument, "_make"):
        return tuple(parts)
    if any(isinstance(part, tuple) for part in argument):
        return ended(type(argument))(*parts, None)
    return argument._make(parts)


@cache
def ended(record: Any) -> Any:
    """A record that has records in it with nothing as its last field.

    An integer that is 1 is a constant to Triton. Triton 3.6 forgets constants of a record within a record at the first
    branch or loop, unless a constant of the outer record comes after them.
    """
    made = namedtuple(record.__name__, (*record._fields, "nothing"))  # type: ignore[misc]
    _records[made] = record
    return made


_records: dict[Any, Any] = {}


def unended(record: Any) -> Any:
    """The record that `ended` has made this one of; None for others."""
    return _records.get(record)


@cache
def _constexpr(constant: Constant) -> Any:
    """One object for equal constants: Triton finds a compiled kernel faster."""
    from triton.language import constexpr

    return constexpr(_Marked(constant))


def marked_constant(constant: Constant) -> Constant:
    """A constant as kernels are compiled for it."""
    return _Marked(constant)


def unmarked_constant(value: Any) -> Constant | None:
    """The constant that `marked_constant` has made this of; None for others."""
    return value._constant if type(value) is _Marked else None


class _Marked(Constant):
    """A constant whose fields and properties are `constexpr`, as Triton's compiler does not mark them itself."""

    def __init__(self, constant: Constant) -> None:
        self._constant = constant
        self._hash = hash(constant)  # Triton asks for it at each launch

    def __getattr__(self, name: str) -> Any:
        from triton.language import constexpr

        value = getattr(self._constant, name)
        return constexpr(_Marked(value) if isinstance(value, Constant) else value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Marked) and self._constant == other._constant

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return repr(self._constant)
