"""Attention: one launch for prompts, two where each sequence has one token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton

from octavo.backends.gpu import dispatch
from octavo.backends.gpu.context import Context
from octavo.backends.gpu.kernels.attention import prefill_kernel
from octavo.backends.gpu.kernels.attention_decode import combine_kernel, decode_kernel
from octavo.backends.gpu.launch import Launch
from octavo.backends.gpu.values import Activation, parts

LOG2E = 1.4426950408889634


def quantizes(q: torch.Tensor, pages: torch.Tensor, out: Activation) -> bool:
    """Whether `attend` can give its result as q8_1 itself: one token a sequence, and no padding to write."""
    return len(q) == len(pages) and out.tokens <= dispatch.INT8_MAX_TOKENS and out.k == out.kp and q.shape[2] % 32 == 0


def attend(c: Context, inputs: Sequence[Any], scale: float, out: torch.Tensor | Activation) -> list[Launch]:
    """out [T, H * D] from the inputs of op `attention`."""
    q, keys, values, positions, starts, pages = inputs
    caches = (keys.data, values.data, keys.scales_or_any, values.scales_or_any, positions)
    heads = q.shape[1], keys.shape[1], keys.scales is not None
    if len(q) == len(pages):
        return _decode(c, q, caches, pages, *heads, scale * LOG2E, out)
    assert not isinstance(out, Activation)
    return [_prefill(c, q, caches, starts, pages, *heads, scale * LOG2E, out)]


def _prefill(
    c: Context, q: torch.Tensor, caches: Sequence[torch.Tensor], starts: torch.Tensor, pages: torch.Tensor,
    heads: int, kv_heads: int, q8: bool, scale: float, out: torch.Tensor,
) -> Launch:  # fmt: skip
    dim, block = q.shape[2], triton.next_power_of_2(q.shape[2])
    shape = dispatch.prefill(block, c.target.arch)
    return c.launch(
        prefill_kernel, (-(-len(q) // shape.rows), heads, len(pages)), q, *caches, starts, pages, out,
        q.stride(0), out.stride(0), pages.shape[1], kv_heads, heads // kv_heads, scale, BM=shape.rows, dim=dim,
        BD=block, Q8=q8, warps=shape.warps, stages=2,
    )  # fmt: skip


def _decode(
    c: Context, q: torch.Tensor, caches: Sequence[torch.Tensor], pages: torch.Tensor, heads: int, kv_heads: int,
    q8: bool, scale: float, out: torch.Tensor | Activation,
) -> list[Launch]:  # fmt: skip
    """`caches` end with the positions."""
    (tokens, _, dim), width, group = q.shape, pages.shape[1], heads // kv_heads
    block = triton.next_power_of_2(dim)
    splits = dispatch.splits(tokens, kv_heads, width, c.target.arch)
    sums = tokens * heads * splits
    shares = parts(c.shared("partial", sums * (block + 2), torch.float32), (sums * block, sums, sums))
    early = c.target.pdl or c.target.arch == "interpreter"
    first = c.launch(
        decode_kernel, (tokens, kv_heads, splits), q, *caches, pages, *shares, q.stride(0), width, kv_heads,
        scale, splits=splits, group=group, BG=max(16, triton.next_power_of_2(group)), dim=dim, BD=block,
        AHEAD=int(early), Q8=q8, warps=8 if c.target.arch.startswith("gfx11") else 4, stages=2,
    )  # fmt: skip
    quantized = isinstance(out, Activation)
    if isinstance(out, Activation):
        places: tuple[Any, ...] = (out.q8_1[1], *out.q8_1, out.kp, heads, out.tp)
    else:
        places = (*(out,) * 5, out.stride(0), heads, 1)
    last = c.launch(
        combine_kernel, (tokens, heads), *shares, caches[-1], *places, splits=splits,
        BS=triton.next_power_of_2(splits), dim=dim, BD=block, QUANTIZE=quantized, warps=4,
    )  # fmt: skip
    return [first, last]
