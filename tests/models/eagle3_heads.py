"""Tiny EAGLE-3 heads of a tiny model, as GGUF files and as folders of safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from octavo.formats import QTensor, by_name
from octavo.io.gguf import write_gguf
from tests.runtime import tiny

TARGET = (0, 1, 2)
"""Layers of the tiny model's two, by what they read; the last one is what the last layer gives."""
N_DRAFT = 40
KEPT = np.sort(np.random.default_rng(5).permutation(tiny.N_VOCAB)[:N_DRAFT])
OWN = ("token_embd.weight", "output.weight")


def tensors(*, seed: int = 3, reduced: bool = True, own: bool = True, normed: bool = False) -> dict[str, np.ndarray]:
    """Random weights; `own` embedding and output, of some tokens if `reduced`; what `fc` reads is normed or not."""
    rng, n = np.random.default_rng(seed), tiny.N_EMBD
    q, kv = tiny.N_HEAD * tiny.HEAD_DIM, tiny.N_HEAD_KV * tiny.HEAD_DIM

    def weight(*shape: int) -> np.ndarray:
        scale = 0.2 if len(shape) == 1 else shape[-1] ** -0.5
        return (rng.standard_normal(shape) * scale + (len(shape) == 1)).astype(np.float32)

    found = {
        "fc": weight(n, 3 * n), "output_norm": weight(n), "blk.0.attn_norm": weight(n), "blk.0.attn_norm_2": weight(n),
        "blk.0.attn_q": weight(q, 2 * n), "blk.0.attn_k": weight(kv, 2 * n), "blk.0.attn_v": weight(kv, 2 * n),
        "blk.0.attn_output": weight(n, q), "blk.0.ffn_norm": weight(n), "blk.0.ffn_gate": weight(tiny.N_FF, n),
        "blk.0.ffn_up": weight(tiny.N_FF, n), "blk.0.ffn_down": weight(n, tiny.N_FF),
        **({"enc.output_norm": weight(3 * n)} if normed else {}),
        **({"token_embd": weight(tiny.N_VOCAB, n), "output": weight(N_DRAFT if reduced else tiny.N_VOCAB, n)}
           if own else {}),
    }
    out = {f"{name}.weight": value for name, value in found.items()}
    return out | ({"d2t": KEPT.astype(np.int64)} if own and reduced else {})


def keys(**more: Any) -> dict[str, Any]:
    """Metadata; `more` of it by field, None for none."""
    fields = {name.removeprefix("qwen3."): value for name, value in tiny.metadata().items() if "qwen3." in name}
    fields |= {"block_count": 1, "target_layers": list(TARGET), "target_hidden_size": tiny.N_EMBD}
    return {f"eagle3.{name}": value for name, value in (fields | more).items() if value is not None}


def write(path: Path, weights: dict[str, np.ndarray], **more: Any) -> str:
    """A file; whole numbers are I64."""
    stored = {
        name: value if value.dtype == np.float32 else QTensor(by_name("I64"), value.shape, value.view(np.uint8), name)
        for name, value in weights.items()
    }
    write_gguf(path, "eagle3", keys(**more) | {"tokenizer.ggml.tokens": tiny.TOKENS}, stored)
    return str(path)


def _apart(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k as checkpoints have them: halves of a head are rotated, not neighbours."""
    return rows.reshape(heads, -1, 2, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


NAMES = {
    "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTER = {"fc": "fc", "output_norm": "norm", "output": "lm_head", "token_embd": "embed_tokens"}


def write_folder(path: Path, weights: dict[str, np.ndarray], *, speculators: bool = False, **more: Any) -> str:
    """The same head as a folder, in the words of SpecForge and SGLang, or of vLLM's speculators."""
    path.mkdir()
    stored: dict[str, np.ndarray] = {"t2d": np.isin(np.arange(tiny.N_VOCAB), KEPT)}
    for name, value in weights.items():
        stem = name.removesuffix(".weight")
        if name == "d2t":
            stored["d2t"] = value - np.arange(len(value))
        elif stem.startswith("blk.0."):
            part = stem.removeprefix("blk.0.")
            heads = {"attn_q": tiny.N_HEAD, "attn_k": tiny.N_HEAD_KV}.get(part)
            layer = "layers.0" if speculators else "midlayer"
            stored[f"{layer}.{NAMES[part]}.weight"] = value if heads is None else _apart(value, heads)
        else:
            stored[f"{OUTER[stem]}.weight"] = value
    from safetensors.numpy import save_file  # here, for tests of GGUF files run without it

    save_file({name: np.ascontiguousarray(value) for name, value in stored.items()}, path / "model.safetensors")
    sizes: dict[str, Any] = {
        "model_type": "llama", "hidden_size": tiny.N_EMBD, "num_hidden_layers": 1, "hidden_act": "silu",
        "num_attention_heads": tiny.N_HEAD, "num_key_value_heads": tiny.N_HEAD_KV, "head_dim": tiny.HEAD_DIM,
        "intermediate_size": tiny.N_FF, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "vocab_size": tiny.N_VOCAB,
    }
    whole: dict[str, Any] = {"draft_vocab_size": N_DRAFT, "tie_word_embeddings": False}
    if speculators:
        whole |= {
            "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3",
            "transformer_layer_config": sizes, "eagle_aux_hidden_state_layer_ids": list(TARGET),
            "norm_before_residual": False,
        }
    else:
        given = [i - 1 for i in TARGET]
        whole |= sizes | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": given, "use_aux_hidden_state": True},
        }
    (path / "config.json").write_text(json.dumps(whole | more))
    return str(path)
