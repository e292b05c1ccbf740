"""A tiny model file with a vocabulary of bytes, made without any other library's help.

Random weights, or the `ALPHABET` model, whose greedy text is known: after anything but a letter comes "a", after a
letter the next one, after "z" the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.io.gguf import write_gguf
from octavo.text.bytelevel import BYTE_TO_CHAR
from tests.text.vocabularies import spm

START, END, HE = 256, 257, 258
WORD = 259
"""The token of "▁a" in the vocabulary of `write_words`."""
TOKENS = [*BYTE_TO_CHAR, "<|im_start|>", "<|im_end|>", "he"]
N_VOCAB = 260
"""Rows of the embedding: one more than there are tokens, as many models have."""
N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF = 264, 4, 2, 16, 48
LETTERS = range(ord("a"), ord("z") + 1)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1],
    "tokenizer.ggml.merges": ["h e"],
    "tokenizer.ggml.eos_token_id": END,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": TEMPLATE,
}


def metadata(arch: str = "qwen3", n_layer: int = 2) -> dict[str, Any]:
    """Hyperparameters and vocabulary; of experts there are 4, of which a token uses 2."""
    keys: dict[str, Any] = {
        "block_count": n_layer, "context_length": 512, "embedding_length": N_EMBD, "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
    }
    if arch == "qwen3moe":
        keys |= {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": N_FF}
    return {f"{arch}.{k}": v for k, v in keys.items()} | TOKENIZER


def tensors(arch: str = "qwen3", n_layer: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights, so scaled that values stay near 1."""
    rng = np.random.default_rng(seed)

    def weight(*shape: int) -> np.ndarray:
        scale = 0.2 if len(shape) == 1 else shape[-1] ** -0.5
        return (rng.standard_normal(shape) * scale + (len(shape) == 1)).astype(np.float32)

    q, kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    out = {"token_embd.weight": weight(N_VOCAB, N_EMBD), "output_norm.weight": weight(N_EMBD)}
    out["output.weight"] = weight(N_VOCAB, N_EMBD)
    for i in range(n_layer):
        block = {
            "attn_norm": weight(N_EMBD), "attn_q": weight(q, N_EMBD), "attn_k": weight(kv, N_EMBD),
            "attn_v": weight(kv, N_EMBD), "attn_output": weight(N_EMBD, q), "ffn_norm": weight(N_EMBD),
        }
        if arch.startswith("qwen3"):
            block |= {"attn_q_norm": weight(HEAD_DIM), "attn_k_norm": weight(HEAD_DIM)}
        if arch == "qwen3moe":
            block |= {"ffn_gate_inp": weight(4, N_EMBD), "ffn_gate_exps": weight(4, N_FF, N_EMBD)}
            block |= {"ffn_up_exps": weight(4, N_FF, N_EMBD), "ffn_down_exps": weight(4, N_EMBD, N_FF)}
        else:
            block |= {
                "ffn_gate": weight(N_FF, N_EMBD),
                "ffn_up": weight(N_FF, N_EMBD),
                "ffn_down": weight(N_EMBD, N_FF),
            }
        out |= {f"blk.{i}.{name}.weight": value for name, value in block.items()}
    return out


def alphabet(n_layer: int = 2, *, endless: bool = False) -> dict[str, np.ndarray]:
    """Weights of the ALPHABET model: layers that add nothing, and an output that goes from a token to its next one.

    `endless`: after "z" comes "a".
    """
    out = tensors("qwen3", n_layer)
    for i in range(n_layer):
        for name in ("attn_output", "ffn_down"):
            out[f"blk.{i}.{name}.weight"][:] = 0
    out["token_embd.weight"] = np.eye(N_VOCAB, N_EMBD, dtype=np.float32)
    out["output_norm.weight"][:] = 1
    step = np.zeros((N_VOCAB, N_EMBD), np.float32)
    for token in range(N_VOCAB):
        after = token + 1 if token in LETTERS else LETTERS[0]
        if after > LETTERS[-1]:
            after = LETTERS[0] if endless else END
        step[after, token] = 1
    out["output.weight"] = step
    return out


def write(
    path: Path,
    arch: str = "qwen3",
    *,
    weights: Mapping[str, np.ndarray] | None = None,
    keys: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> str:
    """Write a tiny model to `path`: `keys` replace those of `metadata` (None leaves one out), `without` tensors."""
    pairs = {**metadata(arch), **(keys or {})}
    stored = tensors(arch) if weights is None else weights
    write_gguf(
        path,
        arch,
        {k: v for k, v in pairs.items() if v is not None},
        {name: value for name, value in stored.items() if name not in without},
    )
    return str(path)


def widen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make models whose rows are all 256 values."""
    for name, value in (("N_EMBD", 256), ("HEAD_DIM", 64), ("N_FF", 256)):
        monkeypatch.setitem(globals(), name, value)


def write_letters(path: Path, count: int) -> str:
    """Write letters at random, early ones of the alphabet the most often."""
    rng = np.random.default_rng(0)
    path.write_bytes(bytes(rng.choice(np.array(LETTERS), count, p=np.arange(26, 0, -1) / 351).astype(np.uint8)))
    return str(path)


def write_words(path: Path, **more: int) -> str:
    """Write a model with a SentencePiece vocabulary that says "▁a" after anything; `more` of the tokenizer's keys."""
    weights = alphabet(1)
    weights["output.weight"][:] = 0
    weights["output.weight"][WORD] = 1
    keys = {"qwen3.block_count": 1, "tokenizer.ggml.merges": None, "tokenizer.ggml.pre": None}
    words = spm({"▁a": -1.0}, add_space_prefix=True, add_bos_token=True, **more)
    return write(path, weights=weights, keys=keys | words)
