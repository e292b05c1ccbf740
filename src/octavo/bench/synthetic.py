"""Models with the shapes of real ones and random weights: for speed, not sense."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.errors import UsageError
from octavo.formats import BlockFormat, QTensor, by_name, quantize_reference
from octavo.io.gguf import LazyTensor, write_gguf
from octavo.text.bytelevel import BYTE_TO_CHAR

ROWS_DRAWN = 64  # rows of a tensor that are drawn; the others repeat them


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model; `tied` models have no output matrix of their own."""

    arch: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    tied: bool
    freq_base: float = 1e6


SHAPES = {
    "qwen3-0.6b": ModelShape("qwen3", 28, 1024, 3072, 16, 8, 128, 151936, True),
    "qwen3-1.7b": ModelShape("qwen3", 28, 2048, 6144, 16, 8, 128, 151936, True),
    "qwen3-8b": ModelShape("qwen3", 36, 4096, 12288, 32, 8, 128, 151936, False),
    "llama3-8b": ModelShape("llama", 32, 4096, 14336, 32, 8, 128, 128256, False, 5e5),
}

BETTER = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K")}
"""Mixed presets: the type of most matrices, and that of half of attn_v and ffn_down."""


Progress = Callable[[int, int], None]
"""Bytes of tensors made so far, and of all."""


def make(
    name: str, preset: str, path: str | os.PathLike[str], *, seed: int = 0, progress: Progress | None = None
) -> None:
    """Write a model of the shape called `name` with its matrices in `preset` (a format, Q4_K_M or Q5_K_M).

    Raises UsageError for a shape that is not known, QuantFormatError for a preset that is none.
    """
    if name not in SHAPES:
        raise UsageError(f"unknown shape {name!r} (allowed: {', '.join(SHAPES)})")
    shape = SHAPES[name]
    parts = list(tensors(shape, preset, seed))
    if progress is not None:
        parts = list(_reported(parts, progress))
    write_gguf(path, shape.arch, _metadata(name, shape), parts)


def _reported(parts: list[LazyTensor], progress: Progress) -> Iterator[LazyTensor]:
    """The same tensors, each of which tells `progress` when it is made."""
    done, total = 0, sum(part.nbytes for part in parts)
    for part in parts:
        done += part.nbytes

        def load(part: LazyTensor = part, done: int = done) -> QTensor:
            tensor = part.load()
            progress(done, total)
            return tensor

        yield LazyTensor(part.name, part.format, part.shape, load)


def tensors(shape: ModelShape, preset: str, seed: int = 0) -> Iterator[LazyTensor]:
    """The tensors in file order, each made when it is written."""
    base, better = (by_name(n) for n in BETTER.get(preset.upper(), (preset, preset)))
    outer = base if base.is_float or base.bits == 8 else by_name("Q6_K")
    rng = np.random.default_rng(seed)
    q, kv = shape.n_head * shape.head_dim, shape.n_head_kv * shape.head_dim

    def matrix(name: str, n: int, k: int, fmt: BlockFormat) -> LazyTensor:
        return LazyTensor(f"{name}.weight", fmt, (n, k), lambda: random_matrix(f"{name}.weight", fmt, (n, k), rng))

    def norm(name: str, n: int) -> LazyTensor:
        plain = by_name("F32")
        return LazyTensor(f"{name}.weight", plain, (n,), lambda: quantize_reference(_near_one(n, rng), plain))

    yield matrix("token_embd", shape.n_vocab, shape.n_embd, outer)
    yield norm("output_norm", shape.n_embd)
    if not shape.tied:
        yield matrix("output", shape.n_vocab, shape.n_embd, outer)
    for i in range(shape.n_layer):
        eighth = shape.n_layer // 8
        more = better if i < eighth or i >= 7 * shape.n_layer // 8 or (i - eighth) % 3 == 2 else base
        yield norm(f"blk.{i}.attn_norm", shape.n_embd)
        yield norm(f"blk.{i}.ffn_norm", shape.n_embd)
        if shape.arch == "qwen3":
            yield norm(f"blk.{i}.attn_q_norm", shape.head_dim)
            yield norm(f"blk.{i}.attn_k_norm", shape.head_dim)
        yield matrix(f"blk.{i}.attn_q", q, shape.n_embd, base)
        yield matrix(f"blk.{i}.attn_k", kv, shape.n_embd, base)
        yield matrix(f"blk.{i}.attn_v", kv, shape.n_embd, more)
        yield matrix(f"blk.{i}.attn_output", shape.n_embd, q, base)
        yield matrix(f"blk.{i}.ffn_gate", shape.n_ff, shape.n_embd, base)
        yield matrix(f"blk.{i}.ffn_up", shape.n_ff, shape.n_embd, base)
        yield matrix(f"blk.{i}.ffn_down", shape.n_embd, shape.n_ff, more)


def random_matrix(name: str, fmt: BlockFormat, shape: tuple[int, ...], rng: np.random.Generator) -> QTensor:
    """A tensor [..., N, K] of normal numbers of deviation K^-0.5; of many rows, each is one of ROWS_DRAWN at random."""
    *outer, k = shape
    n = math.prod(outer)
    drawn = rng.standard_normal((min(n, ROWS_DRAWN), k), dtype=np.float32) / np.float32(k**0.5)
    rows = quantize_reference(drawn, fmt).data
    if n > ROWS_DRAWN:
        rows = rows[rng.integers(0, ROWS_DRAWN, n)]
    return QTensor(fmt, shape, rows.reshape(*outer, rows.shape[-1]), name)


def _near_one(n: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    values: np.ndarray[tuple[int], np.dtype[np.float32]] = 1 + np.float32(0.01) * rng.standard_normal(n, np.float32)
    return values


def _metadata(name: str, shape: ModelShape) -> dict[str, Any]:
    tokens = [*BYTE_TO_CHAR, *(f"t{i}" for i in range(shape.n_vocab))][: shape.n_vocab]
    sizes = {
        "context_length": 32768, "embedding_length": shape.n_embd, "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff, "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": shape.freq_base, "vocab_size": shape.n_vocab,
    }  # fmt: skip
    return {
        "general.name": f"synthetic {name}",
        **{f"{shape.arch}.{key}": value for key, value in sizes.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens),
        "tokenizer.ggml.merges": ["t 1"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
