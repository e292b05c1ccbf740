"""Adapters that tokens choose: their factors as `lora_kernel` reads them, and its launches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from triton import next_power_of_2

from octavo.backends.gpu.attention.attention_tiles import exact_products
from octavo.backends.gpu.launch.arguments import matrix
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.matmul.lora_kernel import lora_down_kernel, lora_up_kernel
from octavo.backends.gpu.pointwise import kernel as pointwise
from octavo.formats import QTensor, dequantize
from octavo.formats.spec import F32
from octavo.graph.factors import LowRank
from octavo.graph.protocol import Call

LEAST_RANK, FEW_TOKENS, SPLITS = 16, 64, 8
"""Ranks of a product of tensor cores, tokens of small tiles, and programs that share K of these."""


class AdapterTable:
    """Factors of up to S adapters for products [N, K] of one activation, in float16, at addresses that stay.

    a       [S, products * R, K], R ranks for each product; `ranks` int32 [S] of these are there
    b       [S, sum of N, R]
    scales  float32 [S, products]: what numbers were divided by so that float16 holds them
    """

    def __init__(self, shape: tuple[int, ...], device: str) -> None:
        self.slots, rank, self.k, *sizes = shape
        self.sizes, self.rank = tuple(sizes), next_power_of_2(max(rank, LEAST_RANK))
        parts = len(sizes)
        self.a = torch.zeros((self.slots, parts * self.rank, self.k), dtype=torch.float16, device=device)
        self.b = torch.zeros((self.slots, sum(sizes), self.rank), dtype=torch.float16, device=device)
        self.scales = torch.zeros((self.slots, parts), dtype=torch.float32, device=device)
        self.ranks = torch.zeros(self.slots, dtype=torch.int32, device=device)

    def put(self, slot: int, pairs: Sequence[LowRank | None]) -> None:
        a, b = np.zeros(self.a.shape[1:], np.float16), np.zeros(self.b.shape[1:], np.float16)
        scales, ranks, column = np.zeros(len(pairs), np.float32), [0], 0
        for part, (pair, size) in enumerate(zip(pairs, self.sizes, strict=True)):
            if pair is not None:
                (down, one), (up, other), rank = _halves(pair.a), _halves(pair.b), pair.a.shape[0]
                a[part * self.rank :][:rank], b[column : column + size, :rank] = down, up
                scales[part] = one * other
                ranks.append(rank)
            column += size
        for target, values in ((self.a, a), (self.b, b), (self.scales, scales)):
            target[slot].copy_(torch.from_numpy(values))
        self.ranks[slot] = max(ranks)


def _halves(tensor: QTensor) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.float16]], F32]:
    """A matrix as float16 with a largest value from 1 to 2, and the power of two that it was divided by."""
    values = dequantize(tensor)
    scale = np.ldexp(np.float32(1), np.frexp(np.abs(values).max(initial=0))[1] - 1)
    return (values / scale).astype(np.float16), scale


def block_k(arch: str) -> int:
    """Values of x that a step of the first product takes: gfx1100, which has no float32 matrices, keeps them apart."""
    return 32 if arch == "gfx1100" else 64


def lora_launches(
    c: Context, table: AdapterTable, x: torch.Tensor, rows: torch.Tensor, starts: torch.Tensor, y: torch.Tensor,
    out: torch.Tensor, part: int | None,
) -> list[Call]:
    """The launches for out [T, N] = y + B A x; y may be `out`."""
    tokens, k, width, rank = len(x), table.k, table.a.shape[1], table.rank
    first = 0 if part is None else part
    sizes = table.sizes if part is None else (table.sizes[part],)
    begin = sum(table.sizes[:first])
    a, b, scales = table.a[:, first * rank :], table.b[:, begin:], table.scales[:, first:]
    few = tokens <= FEW_TOKENS
    block_m, split = (16, SPLITS) if few else (64, 1)
    split = min(split, -(-k // 128))
    block_r, tiles = min(rank, 64), -(-tokens // block_m)
    h = c.shared("adapters", split * tokens * len(sizes) * rank, torch.float32)
    how = {"SPLIT": split, "BLOCK_M": block_m, "R": rank, "PRECISION": exact_products(c.target.arch)}
    calls: list[Call] = []
    if out.data_ptr() != y.data_ptr():
        n, same = out.shape[1], torch.arange(tokens, dtype=torch.int32, device=out.device)
        calls.append(c.launch(pointwise.copy_rows_kernel, (tokens, -(-n // 1024)), y, same, out, y.stride(0),
                              out.stride(0), tokens, n, B=1024))
    return [
        *calls,
        c.launch(lora_down_kernel, (tiles * split, len(sizes) * (rank // block_r), table.slots), matrix(x), rows,
                 starts, a, table.ranks, h, tokens, k, width, len(sizes) * rank, BLOCK_R=block_r,
                 BLOCK_K=block_k(c.target.arch), **how),
        c.launch(lora_up_kernel, (sum(-(-n // 64) for n in sizes), tiles, table.slots), h, rows, starts, b, table.ranks,
                 scales, matrix(out), sizes, tokens, len(sizes) * rank, table.b.shape[1], table.scales.shape[1],
                 BLOCK_N=64, **how),
    ]
