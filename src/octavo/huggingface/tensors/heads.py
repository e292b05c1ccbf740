"""Keys and values of heads that a checkpoint makes with one matrix: apart and stacked by head, as GGUF has them.

The matrix is [H * (N + V), K]: N rows of keys of the first head, V of its values, and so on. `attn_k_b` [H, K, N] has
each head's keys as columns, `attn_v_b` [H, V, K] its values as rows.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from octavo.formats import QTensor, by_name, dequantize
from octavo.formats.spec import AnyArray
from octavo.huggingface.tensors.experts import Part, Shape, in_groups, picked
from octavo.io.gguf import LazyTensor
from octavo.models.shared.conversion import f32_tensor

KEYS, VALUES = "attn_k_b", "attn_v_b"


def is_of_heads(name: str) -> bool:
    """Whether a tensor, by its GGUF name, is made of such a matrix or of what lies beside it."""
    return f".{KEYS}." in name or f".{VALUES}." in name


def is_no_part(name: str) -> bool:
    """Whether a tensor for both is of no use to this one: an order belongs to what both read, and neither is multiplied
    with what the matrix was."""
    return name.endswith(f"{KEYS}.order") or (is_of_heads(name) and name.endswith(".input_scale"))


def part_of_heads(both: LazyTensor, name: str, want: Shape) -> Part | None:
    """The tensor `name`, of shape `want`: a part of the matrix, or its scale for each head.

    Quantized values keep their rows. Keys are no longer rows, so quantized ones become F32, which holds all of them.
    None where `both` has another shape.
    """
    heads = want[0]
    if name.endswith(".scale"):
        if both.shape != (1,):
            return None
        return both.format, want, lambda: f32_tensor(np.repeat(dequantize(both.load()), heads))
    keys = KEYS in name
    rows, k = both.shape[0] // heads, want[1] if keys else want[2]
    if both.shape != (heads * rows, k) or rows <= (want[2] if keys else want[1]):
        return None
    if keys:
        whole = both if both.format.is_float else _as_floats(both)
        return whole.format, want, lambda: _take_by_head(whole, heads, lambda x: x[:, : want[2]].swapaxes(1, 2))
    whole = (in_groups(both) if both.format.per_row else both) or _as_floats(both)
    return whole.format, want, lambda: _take_by_head(whole, heads, lambda x: x[:, rows - want[1] :])


def _take_by_head(whole: LazyTensor, heads: int, pick: Callable[[AnyArray], AnyArray]) -> QTensor:
    """What `pick` takes of a matrix' rows by head, [H, N + V, K]."""
    return picked(whole.load(), lambda x: pick(x.reshape(heads, x.shape[0] // heads, -1)))


def _as_floats(both: LazyTensor) -> LazyTensor:
    return LazyTensor(both.name, by_name("F32"), both.shape, lambda: f32_tensor(dequantize(both.load())))
