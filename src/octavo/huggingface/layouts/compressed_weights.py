"""Weights as compressed-tensors stores them, a function for each format.

A linear layer called m is stored as

    m.weight             codes of a byte each: I8 or F8_E4M3 [N, K], or
    m.weight_packed      I32 [N, K * bits / 32], a stream of code + 2^(bits - 1) along a row (see `words_of`), or U8 of
                         E2M1 pairs
    m.weight_shape       N and K
    m.weight_scale       floats [N, 1] or [N], [N, K / G], [1], [N / 128, K / 128]; F8_E4M3 or U8 for E2M1
    m.weight_zero_point  zero points: I8 like the scales, or a stream along N, I32 [N * bits / 32, K / G]
    m.weight_g_idx       the group of each value of a row, or -1 where they lie in order
    m.input_scale        [1], the scale of activations where it is static

It has one level of scales. For 4-bit weights beside 8-bit activations two are derived from them, as
`ops.quantize_w4a8` would derive them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from octavo.errors import ModelError, QuantFormatError, shown
from octavo.formats import Planes, channel_format
from octavo.formats.rows import GROUP
from octavo.formats.spec import F32, U8, AnyArray
from octavo.huggingface.layouts import float4, float8
from octavo.huggingface.layouts.bits import codes_of
from octavo.huggingface.layouts.gptq import order_of
from octavo.huggingface.layouts.module import HALVES, Kind, Module, Part
from octavo.huggingface.scheme_weight import row_planes
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor

Tokens = Literal["floats", "codes", "static", "unused"]
SCALE, PACKED, SHAPE, ZERO = "weight_scale", "weight_packed", "weight_shape", "weight_zero_point"
GROUP_INDEX = "weight_g_idx"


@dataclass(frozen=True)
class Arguments:
    """How the modules of a group are quantized.

    kind         "int" or "float"
    bits         of a code
    symmetric    there are no zero points
    strategy     what a scale belongs to
    group        values of a row that share a scale, None where the strategy says it
    tokens       what activations are quantized to: "floats", nothing; "codes", with a scale for each token; "static",
                 with one in the file; "unused", what products with these weights do without here
    format       how weights lie in the file
    """

    kind: str
    bits: int
    symmetric: bool
    strategy: str
    group: int | None
    tokens: Tokens
    format: str

    @property
    def coded(self) -> bool:
        """Whether products take activations as codes of 8 bits."""
        return self.tokens in ("codes", "static")

    @property
    def rows(self) -> str | None:
        """The rows of `formats.channel` for products of integers with 8-bit tokens; None for rows of groups."""
        if not (self.coded and self.symmetric and self.kind == "int"):
            return None
        if self.group is not None:
            return "INT4_G128" if (self.bits, self.group) == (4, GROUP) else None
        return {8: "INT8", 4: "INT4"}.get(self.bits)


def packed_integers(module: Module, a: Arguments) -> list[LazyTensor]:
    """`pack-quantized`."""
    codes = module.take(PACKED, ("I32",), (None, None))
    shape = module.take(SHAPE, ("I64", "I32"), (2,))
    n, k = codes.shape[0], codes.shape[1] * 32 // a.bits
    if 32 % a.bits:  # codes do not fill words, so their number is stored
        k = _columns_told(shape, n, codes.shape[1], a.bits)

    def load() -> Part:
        said = shape.array().reshape(-1).tolist()
        if said != [n, k]:
            raise _says(shape, f"says {said}", f"{[n, k]}, as its words have it")
        words = codes.array()
        return lambda part: Planes(words_of(words[part], a.bits, k))

    return _integers(module, a, n, k, codes.name, load)


def plain_integers(module: Module, a: Arguments) -> list[LazyTensor]:
    """`int-quantized`: a byte for each code, of fewer bits too."""
    codes = module.take("weight", ("I8",), (None, None))
    n, k = codes.shape
    middle = 1 << (a.bits - 1)

    def load() -> Part:
        raw = codes.array()
        if a.bits < 8 and (raw.min() < -middle or raw.max() >= middle):
            raise _says(codes, f"has codes from {raw.min()} to {raw.max()}", f"{-middle} to {middle - 1}")
        return lambda part: Planes(raw[part].view(np.uint8) + np.uint8(middle))

    return _integers(module, a, n, k, codes.name, load)


def naive(module: Module, a: Arguments) -> list[LazyTensor]:
    """`naive-quantized`: `int-quantized` or `float-quantized`."""
    return plain_integers(module, a) if a.kind == "int" else floats(module, a)


def floats(module: Module, a: Arguments) -> list[LazyTensor]:
    """`float-quantized`."""
    block = 128 if a.strategy == "block" else a.group
    weight = float8.weight(module, SCALE, block, square=a.strategy == "block", token_codes=a.coded)
    return _with_input_scale(module, a, weight)


def mxfp8(module: Module, a: Arguments) -> list[LazyTensor]:
    """`mxfp8-quantized`."""
    _drop_scale(module, a, "input_scale")
    return [float8.microscaled(module, SCALE)]


def nvfp4(module: Module, a: Arguments) -> list[LazyTensor]:
    """`nvfp4-pack-quantized`: w = e2m1 * scale / global scale."""
    _drop_scale(module, a, "input_global_scale")
    return float4.nvfp4(module, PACKED, SCALE, "weight_global_scale", divides=True)


def mxfp4(module: Module, a: Arguments) -> list[LazyTensor]:
    """`mxfp4-pack-quantized`."""
    return [float4.mxfp4(module, PACKED, SCALE)]


def _rows(module: Module, a: Arguments, n: int, k: int, name: str, load: Callable[[], Part]) -> list[LazyTensor]:
    """Rows for products of integers with 8-bit tokens, and the static scale of these."""
    assert a.rows is not None
    try:
        fmt = channel_format(a.rows, k)
    except QuantFormatError as error:
        raise module.error(name.rpartition(".")[2], str(error)) from None
    scale = _scale(module, a, n, k)

    def made() -> Part:
        planes, d = load(), _per_row(scale, n)
        return lambda part: row_planes(fmt, planes(part).q, d[part])

    return _with_input_scale(module, a, module.weight(fmt, n, k, made))


def _scale(module: Module, a: Arguments, n: int, k: int) -> StoredTensor:
    """The scales, in a shape that the strategy allows."""
    tensor = module.take(SCALE, HALVES)
    shapes = [(n, k // a.group)] if a.group else [(n, 1), (n,)]
    if a.strategy == "tensor":
        shapes = [(1,), (), (1, 1)]
    if tensor.shape not in shapes or (a.group and k % a.group):
        allowed = " or ".join(str(list(s)) for s in shapes)
        raise module.error(SCALE, f"is {tensor.dtype} {list(tensor.shape)}", f"floats {allowed}")
    return tensor


def _per_row(scale: StoredTensor, n: int) -> F32:
    """Scales [n, groups]; one for a tensor is one for each row."""
    values = scale.floats()
    return np.full((n, 1), values.reshape(()), np.float32) if values.size == 1 else values.reshape(n, -1)


def _order(module: Module, a: Arguments, k: int) -> AnyArray | None:
    """The columns sorted by group, see `order_of`; None where they lie so."""
    if GROUP_INDEX not in module:
        return None
    index = module.take(GROUP_INDEX, ("I32", "I64"), (k,))
    if a.group is None or k % a.group or (index.array() == -1).any():  # compressed-tensors takes -1 for no order
        return None
    return order_of(module, GROUP_INDEX, k, a.group)


def _integers(module: Module, a: Arguments, n: int, k: int, name: str, load: Callable[[], Part]) -> list[LazyTensor]:
    """Rows for 8-bit tokens where the arguments want those, else rows of groups, for activations of any kind."""
    order, group = _order(module, a, k), a.group or k
    if a.rows is not None and order is None:
        return _rows(module, a, n, k, name, load)
    scale = _scale(module, a, n, k)
    zero = None if a.symmetric else _zero(module, a, n, k // group)
    _drop_scale(module, a, "input_scale")

    def made() -> Part:
        planes, d = load(), _per_row(scale, n)
        m = None if zero is None else _zero_points(zero, a.bits, n)

        def of(part: slice) -> Planes:
            q = planes(part).q
            return Planes(q if order is None else q[:, order], d=d[part], m=None if m is None else m[part])

        return of

    found = [module.rows(n, k, Kind(a.bits, group, scale.dtype, "offset" if a.symmetric else "zero"), made)]
    if order is not None:
        found.append(module.vector("order", lambda: order.astype(np.float32), k))
    return found


def _zero(module: Module, a: Arguments, n: int, groups: int) -> StoredTensor:
    tensor = module.take(ZERO, ("I8", "I32"))
    packed = [(words, groups) for words in _word_counts(n, a.bits)]
    if tensor.shape not in ([(n, groups)] if tensor.dtype == "I8" else packed):
        allowed = f"I8 {[n, groups]} or I32 {list(packed[0])}"
        raise module.error(ZERO, f"is {tensor.dtype} {list(tensor.shape)}", allowed)
    return tensor


def _word_counts(codes: int, bits: int) -> tuple[int, int]:
    """Words of this many codes: as a stream, and with whole codes in each word, as releases before 0.13 pack them."""
    return -(-codes * bits // 32), -(-codes // (32 // bits))


def _columns_told(shape: StoredTensor, n: int, words: int, bits: int) -> int:
    """The values of a row that `weight_shape` tells. Raises ModelError where they take another number of words."""
    said = shape.array().reshape(-1).tolist()
    if said[0] != n or not 0 < said[1] <= 32 * words or words not in _word_counts(said[1], bits):
        raise _says(shape, f"says {said}", f"{n} rows of codes of {bits} bits in {words} words")
    return int(said[1])


def words_of(words: AnyArray, bits: int, count: int) -> U8:
    """The first `count` codes of words I32 [..., W]: a stream, or, where there are more words, whole codes in each."""
    if words.shape[-1] == _word_counts(count, bits)[0]:
        return codes_of(words, bits)[..., :count]
    shifts = np.arange(32 // bits, dtype=np.uint32) * np.uint32(bits)
    codes = words.view(np.uint32)[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return codes.astype(np.uint8).reshape(*words.shape[:-1], -1)[..., :count]


def _zero_points(zero: StoredTensor, bits: int, n: int) -> U8:
    """Zero points of codes that begin at 0, uint8 [n, groups]."""
    raw, middle = zero.array(), 1 << (bits - 1)
    if zero.dtype == "I32":
        return np.ascontiguousarray(words_of(np.ascontiguousarray(raw.T), bits, n).T)
    if raw.min() < -middle or raw.max() >= middle:
        raise _says(zero, f"has zero points from {raw.min()} to {raw.max()}", f"{-middle} to {middle - 1}")
    return raw.view(np.uint8) + np.uint8(middle)


def _with_input_scale(module: Module, a: Arguments, weight: LazyTensor) -> list[LazyTensor]:
    """A weight, with the static scale of its activations if these become codes of 8 bits."""
    if a.tokens == "static" and weight.format.per_row:
        return [weight, module.input_scale()]
    _drop_scale(module, a, "input_scale")
    return [weight]


def _drop_scale(module: Module, a: Arguments, end: str) -> None:
    """Take the static scale of activations that stay as they are beside these weights."""
    if end in module and a.tokens in ("static", "unused"):
        module.take(end, HALVES)


def _says(tensor: StoredTensor, problem: str, allowed: str) -> ModelError:
    return ModelError(problem, file=tensor.file, field=f"tensor {shown(tensor.name)}", allowed=allowed)
