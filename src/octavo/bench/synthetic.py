"""Models with the shapes of real ones and random weights: for speed, not sense."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import islice, product
from string import ascii_lowercase
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.errors import UsageError
from octavo.formats import BlockFormat, QTensor, by_name, quantize_reference
from octavo.formats.spec import AnyArray
from octavo.graph.names import split_layer
from octavo.io.atomic import require_room, require_target
from octavo.io.gguf import LazyTensor, PlainMetadata, write_gguf
from octavo.models import ARCHITECTURES
from octavo.models.shared.weights import Tensors
from octavo.quantizers.encoding.encoder import ENCODABLE
from octavo.quantizers.mix.mixing import Choices, fallback, is_kept
from octavo.text.bytelevel import BYTE_TO_CHAR

CHAT_TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
ROWS_DRAWN = 64  # rows of a tensor that are drawn; the others repeat them
Rows = dict[tuple[str, int, int], AnyArray]
"""Rows of random numbers by the name of their format, how many there are, and their values."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model; `tied` models have no output matrix of their own, and `keys` are of its architecture alone."""

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
    keys: Mapping[str, Any] = field(default_factory=dict)


SHAPES = {
    name: ModelShape(**sizes)
    for name, sizes in json.loads((files("octavo.bench") / "shapes.json").read_text("utf-8")).items()
}

BETTER = {"Q4_K_M": ("Q4_K", "Q6_K"), "Q5_K_M": ("Q5_K", "Q6_K"), "MXFP4_MOE": ("Q8_0", "Q8_0")}
"""Mixed presets: the type of most matrices, and that of half of attn_v and ffn_down; see `EXPERTS` for experts."""
EXPERTS = {"MXFP4_MOE": "MXFP4"}
"""Presets whose experts have a type of their own."""
PRESETS = (*BETTER, *ENCODABLE, "NVFP4")
"""What matrices can be: these presets, or one format."""
BETTER_PARTS = ("attn_v.weight", "ffn_down.weight", "ffn_down_exps.weight")
CONVOLUTIONS = ("shortconv.conv.weight", "ssm_conv1d.weight", "lerp_fused.weight")
"""Taps of convolutions over time, and what they are made of, which stay float32."""
NORMS = ("norm.weight", "norm_2.weight", "_ln.weight")

Progress = Callable[[int, int], None]
"""Bytes of tensors made so far, and of all."""


def shape_of(name: str) -> ModelShape:
    """The shape of a name. Raises UsageError for others."""
    if name not in SHAPES:
        raise UsageError(f"unknown shape {name!r} (allowed: {', '.join(SHAPES)})")
    return SHAPES[name]


def make(
    name: str, preset: str, path: str | os.PathLike[str], *, seed: int = 0, progress: Progress | None = None
) -> None:
    """Write a model of the shape called `name` with its matrices in `preset` (one of PRESETS).

    Raises UsageError for a shape that is not known, and a preset that is none, and FileError for a path where no file
    can be written or a disk without room for it.
    """
    shape = shape_of(name)
    if preset.upper() not in PRESETS:
        raise UsageError(f"unknown preset {preset!r} (allowed: {', '.join(PRESETS)})")
    require_target(path)
    parts = list(tensors(shape, preset, seed))
    require_room(path, sum(part.nbytes for part in parts))
    if progress is not None:
        parts = list(_reported(parts, progress))
    write_gguf(path, shape.arch, metadata(name, shape), parts)


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
    experts = EXPERTS.get(preset.upper())
    outer = base if base.is_float or base.bits == 8 else by_name("Q6_K")
    rng, rows = np.random.default_rng(seed), Rows()

    def matrix(name: str, size: tuple[int, ...], wanted: BlockFormat) -> LazyTensor:
        fmt = fallback(wanted, size[-1])
        return LazyTensor(name, fmt, size, lambda: random_matrix(name, fmt, size, rng, rows))

    def near(name: str, size: tuple[int, ...], middle: float) -> LazyTensor:
        plain = by_name("F32")
        return LazyTensor(name, plain, size, lambda: quantize_reference(_near(middle, size, rng), plain))

    for name, want in _expected(shape).items():
        layer, part = split_layer(name)
        if part.endswith(NORMS):
            yield near(name, want.shape, 1.0)
        elif part in ("ssm_a", "ssm_d"):
            yield near(name, want.shape, -1.0 if part == "ssm_a" else 1.0)
        elif len(want.shape) == 1 or part.endswith(".bias"):
            yield near(name, want.shape, 0.0)
        elif part.endswith(CONVOLUTIONS):
            yield near(name, want.shape, 0.5)
        elif layer is None:
            yield matrix(name, want.shape, outer)
        elif part == "ffn_gate_inp.weight":
            yield matrix(name, want.shape, by_name("F32"))
        elif part.startswith("time_mix_") and is_kept(name, want.shape, Choices()):
            yield matrix(name, want.shape, by_name("F16"))
        elif experts is not None and "_exps." in part:
            yield matrix(name, want.shape, by_name(experts))
        else:
            better_here = part in BETTER_PARTS and _is_better(layer, shape.n_layer)
            yield matrix(name, want.shape, better if better_here else base)


def _expected(shape: ModelShape) -> Tensors:
    """The tensors that a model of the shape has; of optional ones, an output matrix and copies of others."""
    architecture = ARCHITECTURES[shape.arch]
    fields = {f"{shape.arch}.{key}": value for key, value in _sizes(shape).items()}
    embedding = {"token_embd.weight": (shape.n_vocab, shape.n_embd)}
    expected = architecture.tensors(architecture.read(PlainMetadata("", fields), "", embedding))
    output = () if shape.tied else ("output.weight",)
    wanted = {*output, *architecture.modules.copies}
    return {name: want for name, want in expected.items() if not want.optional or name in wanted}


def _is_better(layer: int, n_layer: int) -> bool:
    """Whether a mixed preset has a layer among its better ones: the first and last eighth, and each third between."""
    eighth = n_layer // 8
    return layer < eighth or layer >= 7 * n_layer // 8 or (layer - eighth) % 3 == 2


def random_matrix(
    name: str, fmt: BlockFormat, shape: tuple[int, ...], rng: np.random.Generator, known: Rows | None = None
) -> QTensor:
    """A tensor [..., N, K] of normal numbers of deviation K^-0.5; of many rows, each is one of ROWS_DRAWN at random,
    which are drawn and encoded once for all tensors that are given the same `known`."""
    *outer, k = shape
    n = math.prod(outer)
    count, known = min(n, ROWS_DRAWN), {} if known is None else known
    if (fmt.name, count, k) not in known:
        drawn = rng.standard_normal((count, k), dtype=np.float32) / np.float32(k**0.5)
        known[fmt.name, count, k] = quantize_reference(drawn, fmt).data
    rows = known[fmt.name, count, k]
    if n > ROWS_DRAWN:
        rows = rows[rng.integers(0, ROWS_DRAWN, n)]
    return QTensor(fmt, shape, rows.reshape(*outer, rows.shape[-1]), name)


def _near(middle: float, shape: tuple[int, ...], rng: np.random.Generator) -> npt.NDArray[np.float32]:
    return np.float32(middle) + np.float32(0.01) * rng.standard_normal(shape, np.float32)


def metadata(name: str, shape: ModelShape) -> dict[str, Any]:
    """What a file of a shape called `name` says beside its tensors."""
    tokens, merges = vocabulary(shape.n_vocab)
    return {
        "general.name": f"synthetic {name}", **{f"{shape.arch}.{key}": value for key, value in _sizes(shape).items()},
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * len(tokens), "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1, "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def vocabulary(n: int) -> tuple[list[str], list[str]]:
    """n tokens and their merges: bytes, then words of a space and letters, each merged of a shorter one and a letter.

    So the text of words is cut into the same words again, as a conversation's is when it goes back to a server.
    """
    tokens, merges, longest = [*BYTE_TO_CHAR], list[str](), [BYTE_TO_CHAR[ord(" ")]]
    while len(tokens) < n:
        pairs = list(islice(product(longest, ascii_lowercase), n - len(tokens)))
        longest = [word + letter for word, letter in pairs]
        tokens += longest
        merges += [f"{word} {letter}" for word, letter in pairs]
    return tokens[:n], merges or ["a b"]


def _sizes(shape: ModelShape) -> dict[str, Any]:
    return {
        "context_length": 65536, "embedding_length": shape.n_embd, "block_count": shape.n_layer,
        "feed_forward_length": shape.n_ff, "attention.head_count": shape.n_head,
        "attention.head_count_kv": shape.n_head_kv, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim, "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.freq_base": shape.freq_base, "vocab_size": shape.n_vocab, **shape.keys,
    }
