"""Damaged GGUF files of tiny models, loaded as a user would, and made to generate."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf_target
from json_damage import other_value
from tiny_models import Tiny, stored, tiny

import octavo
from octavo.errors import OctavoError

Stored = dict[str, tuple[int, tuple[int, ...], bytes]]
ALIGNMENT = 32
TYPE_IDS = (0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 16, 20, 23, 24, 26, 28, 30, 34, 39, 40, 41, 99)
NAMES = (
    "rope_freqs.weight", "output.bias", "output.weight", "blk.0.attn_output.bias", "blk.0.ffn_up.bias",
    "blk.0.attn_q.scale", "blk.0.attn_q_norm.weight", "blk.1.attn_q.weight", "blk.0.ffn_gate_inp.weight", "x",
)
KEYS = (
    "rope.scaling.type", "rope.scaling.factor", "rope.dimension_count", "rope.scaling.original_context_length",
    "expert_count", "expert_used_count", "attention.sliding_window", "attention.causal", "vocab_size",
    "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length",
)
FLOAT_PATTERNS = (0x7FC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00000001, 0x80000000)


def seeds() -> list[tuple[Tiny, Stored]]:
    """Valid models: architectures, types, kinds of rope, with and without an output matrix."""
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
    models = [
        (tiny("llama"), ("F32",)),
        (tiny("llama", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}), ("Q8_0", "Q4_K")),
        (tiny("llama", experts=True), ("Q4_0", "Q6_K")),
        (tiny("qwen2", keys=yarn), ("F16", "Q5_K")),
        (tiny("qwen3", tied=True), ("Q4_K", "Q6_K", "IQ4_XS")),
        (tiny("qwen3"), ("BF16", "Q2_K", "Q3_K", "MXFP4", "IQ4_NL")),
        (tiny("qwen3moe", experts=True), ("Q4_1", "Q5_0", "Q5_1")),
    ]
    return [(model, stored(model.tensors, *types)) for model, types in models]


class Target:
    """A file in the folder, made of the first `n_seeds` valid ones (default: of all)."""

    def __init__(self, folder: Path, n_seeds: int | None = None) -> None:
        self._seeds = seeds()[:n_seeds]
        self._files = [encode(model.keys, tensors) for model, tensors in self._seeds]
        self._path = folder / "model.gguf"

    def make(self, rng: random.Random) -> None:
        if rng.random() < 0.4:
            data = gguf_target.damage(rng, rng.choice(self._files), self._files)
        else:
            model, tensors = rng.choice(self._seeds)
            keys, tensors = dict(model.keys), dict(tensors)
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                rng.choice(CHANGES)(rng, model.arch, keys, tensors)
            data = encode(keys, tensors)
        self._path.write_bytes(data)

    def exercise(self) -> bool:
        return generates(self._path)


def generates(path: Path, lora: Path | None = None) -> bool:
    """Load a model, with an adapter where there is one, and let it answer. False where a typed error refuses it."""
    try:
        with octavo.load(path, device="cpu", threads=1, n_ctx=48, lora=lora) as model:
            model.logits([0, 1, 2])
            for prompt in ("hello\n\u00e9", [3, 4, 5]):
                text = "".join(model.generate(prompt, max_tokens=3, temperature=0.0))
                text.encode()
    except OctavoError as error:
        if not str(error):
            raise ValueError("an error with no message") from error
        return False
    return True


def encode(keys: dict[str, Any], tensors: Stored) -> bytes:
    """A GGUF file, version 3, that holds whatever it is told to; tensors one after the other."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys))
    head += b"".join(_text(name) + _value(value) for name, value in keys.items())
    offset, body = 0, b""
    for name, (kind, shape, data) in tensors.items():
        head += _text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *(n % 2**64 for n in shape[::-1]), kind, offset
        )
        body += data + bytes(-len(data) % ALIGNMENT)
        offset = len(body)
    return head + bytes(-len(head) % ALIGNMENT) + body


def _text(text: str) -> bytes:
    data = text.encode(errors="surrogatepass")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    kind, data = _typed(value)
    return struct.pack("<I", kind) + data


def _typed(value: Any) -> tuple[int, bytes]:
    """A value's type id and bytes."""
    match value:
        case bool():
            return 7, struct.pack("<B", value)
        case int() if 0 <= value < 2**32:
            return 4, struct.pack("<I", value)
        case int():
            return (
                (10, struct.pack("<Q", value % 2**64)) if value > 0 else (11, struct.pack("<q", max(value, -(2**63))))
            )
        case float():
            return 12, struct.pack("<d", value)
        case str():
            return 8, _text(value)
        case list():
            parts = [_typed(v) for v in value]
            kind = parts[0][0] if parts else 4
            same = [data for k, data in parts if k == kind]
            return 9, struct.pack("<IQ", kind, len(same)) + b"".join(same)
        case _:
            return 8, _text(str(value))


Change = Callable[[random.Random, str, dict[str, Any], Stored], None]


def _key(rng: random.Random, arch: str, keys: dict[str, Any], tensors: Stored) -> None:
    """Another value for a key, or a key more or less."""
    name = rng.choice([*keys, *(f"{arch}.{k}" for k in KEYS)])
    if rng.random() < 0.2:
        keys.pop(name, None)
    else:
        keys[name] = other_value(rng, keys.get(name, 1))


def _vocabulary(rng: random.Random, arch: str, keys: dict[str, Any], tensors: Stored) -> None:
    """Other tokens, merges, scores or types."""
    name = rng.choice([k for k in keys if k.startswith("tokenizer.")] or [f"{arch}.vocab_size"])
    value = keys.get(name)
    if not isinstance(value, list) or not value:
        keys[name] = other_value(rng, value)
        return
    value = list(value)
    for _ in range(rng.choice((1, 1, 5, 50))):
        at = rng.randrange(len(value))
        value[at] = rng.choice((rng.choice(value), other_value(rng, value[at])))
    keys[name] = value[: rng.choice((len(value), len(value), rng.randrange(len(value))))]


def _tensor(rng: random.Random, arch: str, keys: dict[str, Any], tensors: Stored) -> None:
    """A tensor less, more, renamed, of another shape or another type."""
    name = rng.choice(list(tensors))
    kind, shape, data = tensors[name]
    match rng.randrange(5):
        case 0:
            del tensors[name]
        case 1:
            tensors[rng.choice(NAMES)] = tensors[rng.choice(list(tensors))]
        case 2:
            del tensors[name]
            tensors[rng.choice((*NAMES, name.upper(), name[:-1], name.replace("0", "1")))] = kind, shape, data
        case 3:
            changed = tuple(n * rng.choice((1, 1, 2)) // rng.choice((1, 1, 2)) for n in shape)
            tensors[name] = (
                kind,
                rng.choice((changed, shape[::-1], (1, *shape), shape[1:] or (1,), (*shape, 0))),
                data * 2,
            )
        case _:
            tensors[name] = rng.choice(TYPE_IDS), shape, (data * 4)[: rng.randrange(1, 4 * len(data) + 1)]


def _weights(rng: random.Random, arch: str, keys: dict[str, Any], tensors: Stored) -> None:
    """Other bytes in a tensor: random ones, or NaN, Inf and the largest numbers."""
    name = rng.choice(list(tensors))
    kind, shape, data = tensors[name]
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 64))):
        at = 4 * rng.randrange(max(1, len(data) // 4))
        pattern = rng.choice((*FLOAT_PATTERNS, rng.getrandbits(32)))
        changed[at : at + 4] = struct.pack("<I", pattern)[: len(data) - at]
    tensors[name] = kind, shape, bytes(changed)


CHANGES: tuple[Change, ...] = (_key, _key, _vocabulary, _tensor, _weights)
