"""Quantized modules as compressed-tensors stores them: the inverse of `layouts.compressed_weights`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from octavo.formats.rows import GROUP
from octavo.formats.scalars import f32_to_e8m0_half, f32_to_ue4m3_half
from octavo.formats.spec import U8, AnyArray
from octavo.huggingface.coded import Coded
from octavo.huggingface.layouts.compressed_weights import PACKED, SCALE, SHAPE
from octavo.huggingface.schemes import CheckpointScheme
from octavo.io.safetensors import TensorHead

CODES = {"int": "I8", "float": "F8_E4M3"}
"""Dtypes of codes of a byte each, by the kind of a scheme."""
GLOBAL = "weight_global_scale"


def module_heads(name: str, scheme: CheckpointScheme, shape: tuple[int, ...]) -> list[TensorHead]:
    """The tensors of a linear layer whose weight [N, K] would be called `name`, "m.weight"."""
    n, k = shape
    module = name.removesuffix(".weight")
    rows = -(-n // GROUP) if scheme.square else n
    scale = TensorHead(f"{module}.{SCALE}", scheme.scale, (rows, scheme.groups(k)))
    if scheme.packs:
        packed = TensorHead(f"{module}.{PACKED}", "I32", (n, k * scheme.bits // 32))
        return [packed, scale, TensorHead(f"{module}.{SHAPE}", "I64", (2,))]
    if scheme.bits == 8:
        return [TensorHead(name, CODES[scheme.kind], shape), scale]
    pairs = [TensorHead(f"{module}.{PACKED}", "U8", (n, k // 2)), scale]
    return [*pairs, TensorHead(f"{module}.{GLOBAL}", "F32", (1,))] if scheme.strategy == "tensor_group" else pairs


def module_arrays(scheme: CheckpointScheme, coded: Coded) -> Iterator[AnyArray]:
    """The values of `module_heads`."""
    q = coded.q
    if scheme.packs:
        yield packed_words(q) if scheme.bits == 4 else q.view("<i4")
    elif scheme.bits == 4:
        yield _pairs(q)
    else:
        yield q if scheme.kind == "float" else q ^ np.uint8(0x80)
    yield _scales(scheme, coded)
    if scheme.packs:
        yield np.array(q.shape, dtype="<i8")
    if scheme.strategy == "tensor_group":
        yield np.array([coded.factor], "<f4")


def _scales(scheme: CheckpointScheme, coded: Coded) -> AnyArray:
    """As the file has them; planes of e2m1 numbers have half of that."""
    if scheme.scale == "U8":
        return f32_to_e8m0_half(coded.scales)
    if scheme.scale == "F8_E4M3":
        return f32_to_ue4m3_half(coded.scales)
    return np.ascontiguousarray(coded.scales, dtype="<f2" if scheme.scale == "F16" else "<f4")


def packed_words(q: U8) -> npt.NDArray[np.int32]:
    """Codes 0 to 15, uint8 [N, K], as int32 [N, K / 8]: eight neighbours in a word, the first lowest."""
    return _pairs(q).view("<i4")


def _pairs(q: U8) -> U8:
    """Codes 0 to 15, uint8 [N, K], as bytes [N, K / 2], the first of two in the low half."""
    pairs: U8 = q[:, 0::2] | (q[:, 1::2] << np.uint8(4))
    return pairs
