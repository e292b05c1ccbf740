# mypy: ignore-errors
"""The combine step of split-KV decoding in Gluon: the last program of a head to finish does it, so there is one launch.

    split 0, 1, ... n - 1 -> outputs, maxima, totals in memory -> atomic counter -> last one: sum of exp2(m_i - m) o_i

What is computed is what `decode_kernel.combine_kernel` says. Sums are in the order of splits, whoever is last, so
results do not depend on timing.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo.backends.gpu.attention.kernel import LOG2E
from octavo.backends.gpu.matmul.w8a8.quantize_kernel import ROUND


@gluon.jit
def store_quantized(value, quantized, token, head, heads, shape: gl.constexpr):
    """`store_q8_1` of [rows, dim], of which those of the group count."""
    ROWS: gl.constexpr = value.shape[0]
    COUNT: gl.constexpr = shape.dim // 32
    groups = value.reshape([ROWS, COUNT, 32])
    largest = gl.max(gl.abs(groups), 2)  # [ROWS, COUNT]
    inverse = gl.where(largest > 0, 127.0 / gl.where(largest > 0, largest, 1.0), 0.0)
    code = groups * inverse.expand_dims(2) + ROUND - ROUND
    scale = ((largest / 127.0).to(gl.int32, bitcast=True) & -4).to(gl.float32, bitcast=True)
    L: gl.constexpr = groups.type.layout
    member = gl.arange(0, ROWS, gl.SliceLayout(1, gl.SliceLayout(2, L))).expand_dims(1).expand_dims(2)
    group = gl.arange(0, COUNT, gl.SliceLayout(0, gl.SliceLayout(2, L))).expand_dims(0).expand_dims(2)
    at = gl.arange(0, 32, gl.SliceLayout(0, gl.SliceLayout(1, L))).expand_dims(0).expand_dims(1)
    row = head * shape.group + member
    place = token * (heads * shape.group * shape.dim) + row * shape.dim + group * 32 + at
    gl.store(quantized.codes + place, code.to(gl.int8), mask=(member < shape.group) & (at >= 0) & (group >= 0))
    both = gl.sum(code.reshape([ROWS, COUNT, 2, 16]), 3)  # [ROWS, COUNT, 2]
    B: gl.constexpr = both.type.layout
    H: gl.constexpr = gl.SliceLayout(2, B)
    scale = gl.convert_layout(scale, H)
    both *= scale.expand_dims(2)
    member = gl.arange(0, ROWS, gl.SliceLayout(1, H)).expand_dims(1)
    group = gl.arange(0, COUNT, gl.SliceLayout(0, H)).expand_dims(0)
    second = gl.arange(0, 2, gl.SliceLayout(0, gl.SliceLayout(1, B))).expand_dims(0).expand_dims(1)
    line, mask = (head * shape.group + member) * COUNT + group, (member < shape.group) & (group >= 0)
    gl.store(quantized.scale + line * quantized.stride + token, scale, mask=mask)
    gl.store(quantized.sums + line * quantized.stride + token, gl.sum(both, 2), mask=mask)
    place = (line.expand_dims(2) * 2 + second) * quantized.stride + token
    gl.store(quantized.sums16 + place, both, mask=mask.expand_dims(2) & (second >= 0))


@gluon.jit
def split_number(data, line, first, used, COUNT: gl.constexpr, other, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """A number of each of COUNT splits and of each row from `line` on, [COUNT, rows]; `other` from split `used` on."""
    split = first + gl.arange(0, COUNT, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT))).expand_dims(1)
    row = gl.arange(0, shape.members, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))).expand_dims(0)
    mask = (row < shape.group) & (split < shape.splits)  # not `used`, with which neighbours are not read together
    value = gl.load(data + (line + row) * shape.splits + split, mask=mask, other=other, cache_modifier=".cg")
    return gl.where(split < used, value, other)


@gluon.jit
def split_outputs(data, line, first, used, COUNT: gl.constexpr, shape: gl.constexpr, LAYOUT: gl.constexpr):
    """Results of COUNT splits for each row from `line` on, [COUNT, rows, dim]; zeros from split `used` on."""
    split = first + gl.arange(0, COUNT, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT))).expand_dims(1)
    row = gl.arange(0, shape.members, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT))).expand_dims(0)
    at = gl.arange(0, shape.dim, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT))).expand_dims(0).expand_dims(1)
    mask = ((row < shape.group) & (split < used)).expand_dims(2)
    place = (((line + row) * shape.splits + split) * shape.dim).expand_dims(2)
    return gl.load(data + place + at, mask=mask, other=0.0, cache_modifier=".cg")


@gluon.jit
def store_result(value, out, quantized, ordered, place, heads, shape: gl.constexpr):
    """Results [rows, dim] of a head of keys, of whose rows those of the group count, as `combine` says."""
    sequence, head = place
    LAYOUT: gl.constexpr = value.type.layout
    row = gl.arange(0, value.shape[0], gl.SliceLayout(1, LAYOUT)).expand_dims(1)
    at = gl.arange(0, shape.dim, gl.SliceLayout(0, LAYOUT)).expand_dims(0)
    mask = (row < shape.group) & (at >= 0)
    if quantized is not None:
        store_quantized(value, quantized, sequence, head, heads, shape)
    if ordered is not None:
        within = at // 16 * 16 + at % 2 * 8 + at % 16 // 4 * 2 + at // 2 % 2
        target = ordered + ((sequence * heads + head) * shape.group + row) * shape.dim + within
        gl.store(target, value.to(gl.float16), mask=mask)
    if out is not None:
        gl.store(out.data + sequence * out.stride + (head * shape.group + row) * shape.dim + at, value, mask=mask)


@gluon.jit
def combine(partial, sinks, out, quantized, ordered, place, used, heads, shape: gl.constexpr):
    """Results of the queries of a head of keys from the first `used` splits, float32 in `out`, or q8_1 in `quantized`
    and, unless it is None, in `ordered` float16 [sequences, heads * dim] as `activations.reordered` gives it.

    `place` is the sequence and the head of keys.
    """
    sequence, head = place
    DIM: gl.constexpr = shape.dim
    ROWS: gl.constexpr = shape.members
    SOME: gl.constexpr = min(shape.power, 4096 * shape.warps // (ROWS * DIM))  # splits whose results registers hold
    WARPS: gl.constexpr = min(shape.warps, ROWS)
    LAYOUT: gl.constexpr = gl.BlockedLayout([1, 1, 4], [1, 1, 32], [shape.warps // WARPS, WARPS, 1], [2, 1, 0])
    VALUES: gl.constexpr = gl.SliceLayout(0, LAYOUT)
    line = (sequence * heads + head) * shape.group
    outputs = split_outputs(partial.outputs, line, 0, used, SOME, shape, LAYOUT)  # [SOME, ROWS, DIM], on its way
    m = split_number(partial.maxima, line, 0, used, shape.power, float("-inf"), shape, LAYOUT)  # [power, ROWS]
    total = split_number(partial.totals, line, 0, used, shape.power, 0.0, shape, LAYOUT)  # [power, ROWS]
    most = gl.max(m, 0)  # [ROWS]
    shift = gl.where(most == float("-inf"), 0.0, most)
    whole = gl.sum(gl.exp2(m - shift.expand_dims(0)) * total, 0)  # [ROWS]
    if sinks is not None:
        row = gl.arange(0, ROWS, most.type.layout)
        sink = gl.load(sinks + head * shape.group + row, mask=row < shape.group, other=0.0)  # [ROWS]
        whole += gl.exp2(sink * LOG2E - shift)
    value = gl.full([ROWS, DIM], 0.0, gl.float32, VALUES)
    for first in gl.static_range(0, shape.splits, SOME):
        if first > 0:
            outputs = split_outputs(partial.outputs, line, first, used, SOME, shape, LAYOUT)
        of_some = split_number(partial.maxima, line, first, used, SOME, float("-inf"), shape, LAYOUT)  # [SOME, ROWS]
        weight = gl.exp2(of_some - shift.expand_dims(0)).expand_dims(2)
        value += gl.sum(outputs * weight, 0)
    value /= gl.convert_layout(whole, gl.SliceLayout(1, VALUES)).expand_dims(1)
    store_result(value, out, quantized, ordered, place, heads, shape)
