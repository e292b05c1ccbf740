"""Modules as AutoGPTQ, GPTQModel and QQQ write them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.huggingface.writers.codes import Parts, Tensors, affine, stream, symmetric, values

PLANES = {
    2: [(2, 0)], 3: [(2, 0), (1, 2)], 4: [(4, 0)], 5: [(4, 0), (1, 4)], 6: [(4, 0), (2, 4)],
    7: [(4, 0), (2, 4), (1, 6)], 8: [(8, 0)],
}
"""Width of each plane of codes and the bit that it begins at."""


def planar(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [N, K] as int32 [N, K * bits / 32]: of each 32 of a row, word after word, a plane after another."""
    words = []
    for start in range(0, codes.shape[1], 32):
        for width, first in PLANES[bits]:
            for i in range(width):
                word, count = np.zeros(len(codes), np.uint32), 32 // width
                for j in range(count):
                    part = codes[:, start + i * count + j] >> first & (1 << width) - 1
                    word |= part.astype(np.uint32) << np.uint32(width * j)
                words.append(word)
    return np.stack(words, axis=1).view(np.int32)


def gptq(
    bits: int, group: int, *, sym: bool, v2: bool, ordered: bool = False, word: int = 32, seed: int = 0,
    dtype: Any = np.float16,
) -> Tensors:
    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        k = w.shape[1]
        size = k if group < 0 else group
        perm = np.random.default_rng(k + seed).permutation(k) if ordered else np.arange(k)
        sorted_w = w[:, perm]
        if sym:
            codes, scale = symmetric(sorted_w, bits, size, dtype)
            zero = np.full(scale.shape, 1 << (bits - 1))
        else:
            codes, scale, zero = affine(sorted_w, bits, size, dtype)
        want = values(codes, scale, zero)
        natural, there = np.empty_like(codes), np.empty_like(want)
        natural[:, perm], there[:, perm] = codes, want
        index = np.empty(k, np.int32)
        index[perm] = np.arange(k) // size
        stored = stream(zero.T, bits).view(f"u{word // 8}")
        if not v2 and bits != 3:
            stored = stored - stored.dtype.type(sum(1 << i for i in range(0, word, bits)))  # of whole words, borrowing
        elif not v2:
            stored = stream((zero.T - 1) % (1 << bits), bits)
        parts = {
            "qweight": np.ascontiguousarray(stream(natural, bits).view(f"i{word // 8}").T),
            "qzeros": stored.view(f"i{word // 8}"),
            "scales": np.ascontiguousarray(scale.T), "g_idx": index,
        }
        return parts, there

    return tensors


def gptq_p(bits: int, group: int, *, sym: bool) -> Tensors:
    """GPTQModel's planes of bits, with true zero points."""

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        if sym:
            codes, scale = symmetric(w, bits, group)
            zero = np.full(scale.shape, 1 << (bits - 1))
        else:
            codes, scale, zero = affine(w, bits, group)
        parts = {
            "qweight": np.ascontiguousarray(planar(codes, bits).T), "qzeros": planar(zero.T, bits),
            "scales": np.ascontiguousarray(scale.T), "g_idx": np.arange(w.shape[1], dtype=np.int32) // group,
        }
        return parts, values(codes, scale, zero)

    return tensors


def qqq(group: int, *, empty: bool = True) -> Tensors:
    """QQQ's own packing: its permutation of 1024 codes of a tile of 16 x 64, and the loops that fill words with it.

    empty  rows have scales of no groups
    """

    def tensors(w: np.ndarray) -> tuple[Parts, np.ndarray]:
        n, k = w.shape
        per_row = group < 0
        codes, scale = symmetric(w, 4, k if per_row else group, np.float32)
        signed = codes - 8
        perm = []
        for i in range(32):
            for block in range(4):
                for column in (i // 4, i // 4 + 8):
                    lane = [(4 * (i % 4) + j) * 16 + column + 256 * block for j in range(4)]
                    perm += lane
        order = (
            np.array(perm).reshape(-1, 8)[:, [4, 0, 5, 1, 6, 2, 7, 3] if per_row else [0, 2, 4, 6, 1, 3, 5, 7]].ravel()
        )
        tiles = (signed if per_row else codes).T.reshape(k // 16, 16, n // 16, 16).transpose(0, 2, 1, 3)
        tiles = tiles.reshape(k // 16, n * 16).reshape(-1, 1024)[:, order].reshape(k // 16, -1)
        words = np.zeros((k // 16, n * 2), np.uint32)
        for i in range(8):
            words |= (tiles[:, i::8].astype(np.int64) & 15).astype(np.uint32) << np.uint32(4 * i)
        single = [2 * i + j for i in range(4) for j in (0, 1, 8, 9, 16, 17, 24, 25)]
        of_groups = [i + 8 * j for i in range(8) for j in range(8)]
        if per_row:
            channel = scale.T
            stored = (channel / 16).reshape(-1, 32)[:, single].reshape(1, n).astype(np.float32)
            none = {"s_group": np.zeros(0, np.float16)} if empty else {}
            return {"B": words.view(np.int32), "s_channel": stored, **none}, values(codes, scale, 8)
        want = signed * np.repeat(scale, group, axis=1)
        channel = (np.abs(want).max(axis=1) / 127).astype(np.float32)
        relative = (scale / channel[:, None]).astype(np.float16)
        stored = channel[None].reshape(-1, 32)[:, single].reshape(1, n)
        grouped = relative.T.reshape(-1, 64)[:, of_groups].reshape(k // group, n)
        whole = np.round(signed * np.repeat(relative.astype(np.float32), group, axis=1))
        return {"B": words.view(np.int32), "s_channel": stored, "s_group": grouped}, whole.astype(np.float32) * channel[
            :, None
        ]

    return tensors
