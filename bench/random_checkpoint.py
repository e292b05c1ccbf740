"""Checkpoint folders of Llama's shapes with random weights, for measurements in which only sizes count."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from octavo.formats.spec import AnyArray
from octavo.io.safetensors import TensorHead, write_safetensors

SAMPLE = 1 << 22
"""Random numbers that are drawn; each matrix is made of them, from another place on."""


@dataclass(frozen=True)
class Shape:
    """Sizes of a model: its width, heads of `head` values and those of keys, the feed-forward's width, and so on."""

    width: int
    heads: int
    kv_heads: int
    ff: int
    layers: int
    vocabulary: int = 128256
    head: int = 128


SHAPES = {
    "llama-1b": Shape(2048, 32, 8, 8192, 2, head=64),
    "llama-8b": Shape(4096, 32, 8, 14336, 2),
    "llama-70b": Shape(8192, 64, 8, 28672, 2),
}
"""Widths of Llama 3's, with two layers."""


def write(folder: Path, shape: Shape, tokenizer: Path) -> None:
    """A folder of bfloat16 numbers; `tokenizer` is a checkpoint whose tokenizer is copied, of fewer tokens."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "hidden_act": "silu",
        "vocab_size": shape.vocabulary, "hidden_size": shape.width, "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head,
        "intermediate_size": shape.ff, "max_position_embeddings": 8192, "rope_theta": 500000.0, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    }
    tokens = json.loads((tokenizer / "config.json").read_text())
    config |= {key: tokens[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if key in tokens}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tokenizer / name, folder / name)
    heads = [TensorHead(name, "BF16", size) for name, size in _tensors(shape).items()]
    write_safetensors(folder / "model.safetensors", heads, _values(heads))


def _tensors(shape: Shape) -> dict[str, tuple[int, ...]]:
    q, kv, d, ff = shape.heads * shape.head, shape.kv_heads * shape.head, shape.width, shape.ff
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (shape.vocabulary, d)}
    for i in range(shape.layers):
        in_layer = {
            "self_attn.q_proj": (q, d), "self_attn.k_proj": (kv, d), "self_attn.v_proj": (kv, d),
            "self_attn.o_proj": (d, q), "mlp.gate_proj": (ff, d), "mlp.up_proj": (ff, d), "mlp.down_proj": (d, ff),
            "input_layernorm": (d,), "post_attention_layernorm": (d,),
        }
        found |= {f"model.layers.{i}.{name}.weight": size for name, size in in_layer.items()}
    return found | {"model.norm.weight": (d,), "lm_head.weight": (shape.vocabulary, d)}


def _values(heads: list[TensorHead]) -> Iterator[AnyArray]:
    """Numbers of each tensor: of vectors near 1, of matrices so that products keep the size of what they are given."""
    rng = np.random.default_rng(0)
    sample = rng.standard_normal(SAMPLE, np.float32)
    for head in heads:
        if len(head.shape) == 1:
            yield _bf16(1 + rng.standard_normal(head.shape, np.float32) / 8)
            continue
        part = _bf16(np.roll(sample, rng.integers(SAMPLE)) / np.float32(head.shape[1] ** 0.5))
        yield np.resize(part, prod(head.shape)).reshape(head.shape)


def _bf16(values: AnyArray) -> AnyArray:
    return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
