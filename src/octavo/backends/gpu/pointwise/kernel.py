# mypy: ignore-errors
"""Ops on values without weights of their own: norms, sums and products, rows of a soft-max, the choice of experts.

Algorithm: one pass over a row that a program holds in registers; top-k by taking the largest again and again.
Tile:
    program (row)          B >= k values, in registers: load -> reduce -> reduce again -> store
    program (row, part)    B values of a row, where nothing is reduced
Bound: latency with few tokens, bytes with many; not measured by themselves.
Tried: docs/log.md: "AltUp's steps need no kernels of their own"; "Several programs to a norm take as long as one".
Twin: `octavo.backends.reference.ops.rms_norm`, `octavo.backends.reference.ops.layer_norm`,
    `octavo.backends.reference.ops.soft_max`, `octavo.backends.reference.ops.top_k`,
    `octavo.backends.reference.ops.keep_groups`, `octavo.backends.reference.ops.sum_experts`,
    `octavo.backends.reference.ops.largest_magnitude`
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def begin(PDL: tl.constexpr):
    """With PDL, let the next kernel be launched, and wait for what the one before has written."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def whole_row(k, B: tl.constexpr, PDL: tl.constexpr):
    """For program (row): the row, the places [B] of its k values, and which of them there are."""
    begin(PDL)
    row, at = tl.program_id(0).to(tl.int64), tl.arange(0, B)
    return row, at, at < k


@triton.jit
def part_of_row(k, B: tl.constexpr, PDL: tl.constexpr):
    """For program (row, part), as `whole_row` for B of a row's values."""
    begin(PDL)
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * B + tl.arange(0, B)
    return row, at, at < k


@triton.jit
def rms_norm_kernel(
    x, weight, out, x_stride, out_stride, heads, k, eps, B: tl.constexpr, PDL: tl.constexpr
):
    """A program norms one head of a token: rows [T, heads, k], heads one after the other."""
    begin(PDL)
    token, head = tl.program_id(0) // heads, tl.program_id(0) % heads
    at = tl.arange(0, B)
    inside = at < k
    value = tl.load(x + token.to(tl.int64) * x_stride + head * k + at, mask=inside, other=0.0)  # [B]
    value = value / tl.sqrt_rn(tl.sum(value * value) / k + eps) * tl.load(weight + at, mask=inside, other=0.0)
    tl.store(out + token.to(tl.int64) * out_stride + head * k + at, value, mask=inside)


@triton.jit
def layer_norm_kernel(x, weight, bias, out, x_stride, out_stride, k, eps, B: tl.constexpr, PDL: tl.constexpr):
    """A program norms a row of [T, k] around its mean; `bias` [k] is None where there is none."""
    token, at, inside = whole_row(k, B, PDL)
    value = tl.load(x + token * x_stride + at, mask=inside, other=0.0)  # [B]
    value = tl.where(inside, value - tl.sum(value) / k, 0.0)
    value = value / tl.sqrt_rn(tl.sum(value * value) / k + eps) * tl.load(weight + at, mask=inside, other=0.0)
    if bias is not None:
        value += tl.load(bias + at, mask=inside, other=0.0)  # [B]
    tl.store(out + token * out_stride + at, value, mask=inside)


@triton.jit
def add_rows_kernel(x, table, ids, out, k, B: tl.constexpr, PDL: tl.constexpr):
    """Row t of out [T, k] = that of x plus row ids[t] of a table [E, k]."""
    row, at, inside = part_of_row(k, B, PDL)
    chosen = tl.load(ids + row).to(tl.int64)
    value = tl.load(x + row * k + at, mask=inside, other=0.0)  # [B]
    tl.store(out + row * k + at, value + tl.load(table + chosen * k + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def soft_max(value, inside):
    """exp(value) / sum(exp(value)) of the values [B] that are `inside`, elsewhere 0."""
    value = tl.where(inside, tl.exp(value - tl.max(tl.where(inside, value, float("-inf")))), 0.0)
    return value / tl.sum(value)


@triton.jit
def row_kernel(x, out, x_stride, out_stride, k, spread, OP: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr):
    """soft_max, normalize or keep_largest of whole rows; the latter has a `spread`."""
    token, at, inside = whole_row(k, B, PDL)
    value = tl.load(x + token * x_stride + at, mask=inside, other=0.0)  # [B]
    if OP == "soft_max":
        value = soft_max(value, inside)
    elif OP == "normalize":
        value = value / tl.sum(value)
    else:
        around = tl.where(inside, value - tl.sum(value) / k, 0.0)
        over = around - spread * tl.sqrt_rn(tl.sum(around * around) / k)
        value = tl.where(over < 0, 0.0, over)
    tl.store(out + token * out_stride + at, value, mask=inside)


@triton.jit
def as_large_as_kernel(
    x, like, out, x_stride, like_stride, out_stride, k, least, S: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr
):
    """Each stream with the mean square of `like`. A program has a whole token."""
    token, at, inside = whole_row(k, B, PDL)
    wanted = tl.load(like + token * like_stride + at, mask=inside, other=0.0)  # [B]
    square = tl.sum(wanted * wanted)
    for s in range(S):
        value = tl.load(x + token * x_stride + s * k + at, mask=inside, other=0.0)  # [B]
        value *= tl.sqrt_rn(square / tl.maximum(tl.sum(value * value), least * k))
        tl.store(out + token * out_stride + s * k + at, value, mask=inside)


@triton.jit
def top_k_kernel(x, out, x_stride, k, used, SOFT_MAX: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr):
    """The places of the `used` largest of k values or of their soft-max, largest first, of equals the lower place."""
    token, at, inside = whole_row(k, B, PDL)
    value = tl.load(x + token * x_stride + at, mask=inside, other=float("-inf"))  # [B]
    if SOFT_MAX:
        value = soft_max(value, inside)
    left = inside
    for i in range(used):
        largest = tl.max(tl.where(left, value, float("-inf")))
        place = tl.min(tl.where(left & (value == largest), at, B))
        tl.store(out + token * used + i, tl.minimum(place, k - 1))
        left = left & (at != place)


@triton.jit
def keep_groups_kernel(
    x, out, x_stride, groups, size, used,
    BEST: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, PDL: tl.constexpr,
):
    """out [T, groups * size] = x in the `used` groups whose BEST values, one or two, sum highest; elsewhere -inf."""
    begin(PDL)
    token, group, place = tl.program_id(0).to(tl.int64), tl.arange(0, GROUPS), tl.arange(0, SIZE)
    at = group[:, None] * size + place[None, :]
    inside = (group < groups)[:, None] & (place < size)[None, :]
    value = tl.load(x + token * x_stride + at, mask=inside, other=float("-inf"))  # [GROUPS, SIZE]
    best = tl.max(value, 1)
    if BEST == 2:
        where = tl.min(tl.where(value == best[:, None], place[None, :], SIZE), 1)
        best += tl.max(tl.where(place[None, :] == where[:, None], float("-inf"), value), 1)
    mine, its = best[:, None], best[None, :]
    ahead = (its > mine) | ((its == mine) & (group[None, :] < group[:, None]))
    kept = tl.sum((ahead & (group < groups)[None, :]).to(tl.int32), 1) < used
    row = out + token * groups * size
    tl.store(row + at, tl.where(kept[:, None], value, float("-inf")), mask=inside)


@triton.jit
def numbers_kernel(out, count, B: tl.constexpr, PDL: tl.constexpr):
    """out int32 [T, count] = 0 to count - 1."""
    begin(PDL)
    at = tl.arange(0, B)
    tl.store(out + tl.program_id(0).to(tl.int64) * count + at, at, mask=at < count)


@triton.jit
def copy_heads_kernel(
    x, out, x_stride, x_head_stride, out_stride, out_head_stride, k, B: tl.constexpr, PDL: tl.constexpr
):
    """k values of each head of a token, program (token, head)."""
    begin(PDL)
    token, head, at = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, B)
    value = tl.load(x + token * x_stride + head * x_head_stride + at, mask=at < k)
    tl.store(out + token * out_stride + head * out_head_stride + at, value, mask=at < k)


@triton.jit
def largest_magnitude_kernel(x, out, x_stride, k, B: tl.constexpr, PDL: tl.constexpr):
    """Program (row): the largest |x| of k values, NaN if one is."""
    row, at, inside = whole_row(k, B, PDL)
    value = tl.load(x + row * x_stride + at, mask=inside, other=0.0)  # [B]
    odd = tl.max((value != value).to(tl.int32))  # noqa: PLR0124 - NaN
    tl.store(out + row, tl.where(odd > 0, float("nan"), tl.max(tl.abs(value))))


@triton.jit
def gather_kernel(x, ids, out, x_stride, used, B: tl.constexpr, PDL: tl.constexpr):
    """out [T, used] = x[t, ids[t, j]]."""
    token, at, inside = whole_row(used, B, PDL)
    place = tl.load(ids + token * used + at, mask=inside, other=0)  # [B]
    tl.store(out + token * used + at, tl.load(x + token * x_stride + place, mask=inside, other=0.0), mask=inside)


@triton.jit
def sparse_shares_kernel(x, ids, out, x_stride, k, used, tolerance, B: tl.constexpr, PDL: tl.constexpr):
    """out [T, used] = 1 / the sum of exp(x[j] - x[i]) over those of k values that are near x[i], for each i of ids."""
    token, at, inside = whole_row(k, B, PDL)
    value = tl.load(x + token * x_stride + at, mask=inside, other=0.0)  # [B]
    left = inside
    for j in range(used):
        place = tl.load(ids + token * used + j)
        top = tl.sum(tl.where(at == place, value, 0.0))
        near = left & (top - value <= tolerance * tl.maximum(tl.abs(value), top))
        total = tl.sum(tl.where(near, tl.exp(tl.where(near, value - top, 0.0)), 0.0))
        tl.store(out + token * used + j, 1.0 / total)
        left = left & (at != place)


@triton.jit
def take_columns_kernel(x, order, ids, out, x_stride, out_stride, sharing, k, B: tl.constexpr, PDL: tl.constexpr):
    """out [R, k] = x[r // sharing, order[j]]; with `ids` [R] the order of row r is number ids[r] of `order`."""
    row, at, inside = part_of_row(k, B, PDL)
    if ids is not None:
        order += tl.load(ids + row).to(tl.int64) * k
    place = tl.load(order + at, mask=inside, other=0)  # [B]
    value = tl.load(x + row // sharing * x_stride + place, mask=inside, other=0.0)  # [B]
    tl.store(out + row * out_stride + at, value, mask=inside)


@triton.jit
def weighted_sum_kernel(x, weights, out, sums, used, n, B: tl.constexpr, PDL: tl.constexpr):
    """out [T * sums, n] = the sum over j of x[t // sums, j] * weights[t, j]."""
    row, at, inside = part_of_row(n, B, PDL)
    first = row // sums * used
    acc = tl.zeros((B,), tl.float32)
    for j in range(used):
        value = tl.load(x + (first + j) * n + at, mask=inside, other=0.0)  # [B]
        acc += tl.load(weights + row * used + j) * value
    tl.store(out + row * n + at, acc, mask=inside)


@triton.jit
def of_experts(
    x, rows, logits, ids, term, token, at, n, experts, used,
    NORMALIZED: tl.constexpr, EXPERTS: tl.constexpr, USED: tl.constexpr,
):
    """Values `at` of what `sum_experts_kernel` gives for a token, 0 from n on."""
    inside = at < n
    expert, choice = tl.arange(0, EXPERTS), tl.arange(0, USED)
    logit = tl.load(
        logits.data + token * logits.stride + expert, mask=expert < experts, other=float("-inf")
    )  # [EXPERTS]
    chosen = tl.load(ids + token * used + choice, mask=choice < used, other=0)  # [USED]
    largest = tl.max(logit)
    of_chosen = tl.load(logits.data + token * logits.stride + chosen, mask=choice < used, other=float("-inf"))
    share = tl.exp(of_chosen - largest) / tl.sum(tl.exp(logit - largest))  # [USED]
    if NORMALIZED:
        share = share / tl.sum(share)
    acc = tl.zeros(at.shape, tl.float32)
    for j in tl.static_range(USED):  # all loads at once
        value = tl.load(x + (token * used + j) * n + at, mask=inside & (j < used), other=0.0)  # [B]
        if rows is not None:
            row = tl.sum(tl.where(choice == j, chosen, 0)).to(tl.int64)
            value += tl.load(rows + row * n + at, mask=inside & (j < used), other=0.0)  # [B]
        acc += tl.sum(tl.where(choice == j, share, 0.0)) * value
    if term is not None:
        acc += tl.load(term.data + token * term.stride + at, mask=inside, other=0.0)  # [B]
    return acc


@triton.jit
def sum_experts_kernel(
    x, rows, logits, ids, term, out, experts, used,
    NORMALIZED: tl.constexpr, EXPERTS: tl.constexpr, USED: tl.constexpr, B: tl.constexpr, PDL: tl.constexpr,
):
    """out [T, n] = term + the sum over j of x[t, j] * shares[t, j]: soft_max(logits)[ids], or these normalized.

    `rows` [experts, n] are added to x by ids, `term` to the sum; None for nothing. EXPERTS and USED are powers of two,
    `experts` and `used` or more.
    """
    n = out.stride
    token, at, inside = part_of_row(n, B, PDL)
    acc = of_experts(x, rows, logits, ids, term, token, at, n, experts, used, NORMALIZED, EXPERTS, USED)
    tl.store(out.data + token * n + at, acc, mask=inside)


@triton.jit
def copy_rows_kernel(table, rows, out, table_stride, out_stride, n, k, B: tl.constexpr, PDL: tl.constexpr):
    """out [T, k] = rows of a float table of n rows; a number out of range stands for the nearest row."""
    token, at, inside = part_of_row(k, B, PDL)
    row = tl.minimum(tl.maximum(tl.load(rows + token), 0), n - 1).to(tl.int64)
    value = tl.load(table + row * table_stride + at, mask=inside, other=0.0)  # [B]
    tl.store(out + token * out_stride + at, value.to(tl.float32), mask=inside)
