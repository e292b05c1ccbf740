"""Tiny models to damage: each architecture, tensors of many types, byte-level and SentencePiece-style vocabularies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo.formats import by_name, quantize_reference
from octavo.formats.spec import AnyArray
from octavo.text.bytelevel import BYTE_TO_CHAR

N_EMBD, N_HEAD, N_HEAD_KV, HEAD_DIM, N_FF, N_EXPERT = 256, 4, 2, 64, 256, 4
N_VOCAB = 264
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BYTE_LEVEL: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [*BYTE_TO_CHAR, "<|im_start|>", "<|im_end|>", "he", "ll", "hell", "hello"],
    "tokenizer.ggml.token_type": [1] * 256 + [3, 3, 1, 1, 1, 1],
    "tokenizer.ggml.merges": ["h e", "l l", "he ll", "hell o"],
    "tokenizer.ggml.eos_token_id": 257,
    "tokenizer.ggml.add_bos_token": False,
    "tokenizer.chat_template": TEMPLATE,
}
SENTENCEPIECE: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        "▁",
        "h",
        "i",
        "▁h",
        "▁hi",
    ],
    "tokenizer.ggml.scores": [0.0] * 259 + [-5.0, -4.0, -3.0, -2.0, -1.0],
    "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 5,
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
}


@dataclass(frozen=True)
class Tiny:
    """A model: its architecture, metadata, and float32 tensors by GGUF's names, outermost dimension first."""

    arch: str
    keys: dict[str, Any]
    tensors: dict[str, AnyArray]


def tiny(arch: str, *, keys: dict[str, Any] | None = None, tied: bool = False, experts: bool = False) -> Tiny:
    """A model of one layer with random weights; `keys` go under the architecture's prefix."""
    sizes: dict[str, Any] = {
        "block_count": 1, "context_length": 64, "embedding_length": N_EMBD, "feed_forward_length": N_FF,
        "attention.head_count": N_HEAD, "attention.head_count_kv": N_HEAD_KV, "attention.key_length": HEAD_DIM,
        "attention.value_length": HEAD_DIM, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 10000.0,
    }
    if experts:
        sizes |= {"expert_count": N_EXPERT, "expert_used_count": 2, "expert_feed_forward_length": N_FF}
    rng = np.random.default_rng(0)

    def weight(*shape: int) -> AnyArray:
        return (rng.standard_normal(shape) * shape[-1] ** -0.5 + (len(shape) == 1)).astype(np.float32)

    q, kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    block = {
        "attn_norm.weight": weight(N_EMBD), "attn_q.weight": weight(q, N_EMBD), "attn_k.weight": weight(kv, N_EMBD),
        "attn_v.weight": weight(kv, N_EMBD), "attn_output.weight": weight(N_EMBD, q), "ffn_norm.weight": weight(N_EMBD),
    }
    if arch.startswith("qwen3"):
        block |= {"attn_q_norm.weight": weight(HEAD_DIM), "attn_k_norm.weight": weight(HEAD_DIM)}
    if arch == "qwen2":
        block |= {"attn_q.bias": weight(q), "attn_k.bias": weight(kv), "attn_v.bias": weight(kv)}
    up, down = ((N_EXPERT, N_FF, N_EMBD), (N_EXPERT, N_EMBD, N_FF)) if experts else ((N_FF, N_EMBD), (N_EMBD, N_FF))
    end = "_exps.weight" if experts else ".weight"
    block |= {f"ffn_gate{end}": weight(*up), f"ffn_up{end}": weight(*up), f"ffn_down{end}": weight(*down)}
    if experts:
        block["ffn_gate_inp.weight"] = weight(N_EXPERT, N_EMBD)
    tensors = {"token_embd.weight": weight(N_VOCAB, N_EMBD), "output_norm.weight": weight(N_EMBD)}
    if not tied:
        tensors["output.weight"] = weight(N_VOCAB, N_EMBD)
    tensors |= {f"blk.0.{name}": value for name, value in block.items()}
    words = SENTENCEPIECE if arch == "llama" and not experts else BYTE_LEVEL
    prefixed = {f"{arch}.{name}": value for name, value in (sizes | (keys or {})).items()}
    return Tiny(arch, {"general.architecture": arch, "general.name": "tiny"} | prefixed | words, tensors)


def stored(tensors: dict[str, AnyArray], *types: str) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Tensors as files have them: (GGUF's type id, shape, bytes); matrices take `types` in turn, vectors stay F32."""
    out = {}
    for i, (name, values) in enumerate(tensors.items()):
        fmt = by_name(types[i % len(types)] if values.ndim > 1 else "F32")
        assert fmt.gguf is not None
        out[name] = fmt.gguf, values.shape, quantize_reference(values, fmt).data.tobytes()
    return out
