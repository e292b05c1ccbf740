"""Small models whose layers have states, or a window, with random weights and a vocabulary of bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bench import synthetic
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile, write_gguf
from tests.runtime.tiny import TOKENIZER

N_VOCAB = 300
SMALL = {
    "qwen3.5-9b": {"n_layer": 3, "n_embd": 32, "keys": {
        "full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1,
        "ssm.time_step_rank": 2, "ssm.inner_size": 32, "rope.dimension_count": 8}},
    "granite-4.0-h-micro": {"n_layer": 3, "n_embd": 32, "keys": {
        "attention.head_count_kv": [0, 1, 0], "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 1,
        "ssm.time_step_rank": 2, "ssm.inner_size": 32}},
    "mamba2-2.7b": {"n_layer": 2, "n_embd": 32, "n_ff": 0, "n_head": 0, "n_head_kv": 0, "head_dim": 0, "keys": {
        "ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.group_count": 2, "ssm.time_step_rank": 2,
        "ssm.inner_size": 32}},
    "mamba-2.8b": {"n_layer": 2, "n_embd": 32, "n_ff": 0, "n_head": 0, "n_head_kv": 0, "head_dim": 0, "keys": {
        "ssm.conv_kernel": 4, "ssm.state_size": 6, "ssm.time_step_rank": 2, "ssm.inner_size": 32}},
    "rwkv7-1.5b": {"n_layer": 2, "n_embd": 32, "n_head": 0, "n_head_kv": 0, "head_dim": 0, "keys": {
        "wkv.head_size": 16, **{f"attention.{name}_lora_rank": 8 for name in (
            "decay", "iclr", "value_residual_mix", "gate")}}},
    "lfm2-1.2b": {"n_layer": 3, "n_embd": 32, "keys": {"attention.head_count_kv": [0, 1, 0], "shortconv.l_cache": 4}},
}
WINDOWED = {
    "gemma3-4b": {"n_layer": 2, "n_embd": 32, "keys": {
        **synthetic.SHAPES["gemma3-4b"].keys, "attention.sliding_window": 40, "attention.sliding_window_pattern": 2}},
}


def write(name: str, path: Path) -> Path:
    """A model of one of SMALL or WINDOWED in float32, in a new file. Each token has logits of its own: no two tie."""
    sizes = {"n_ff": 32, "n_head": 2, "n_head_kv": 1, "head_dim": 16, "n_vocab": N_VOCAB, **(SMALL | WINDOWED)[name]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic, "ROWS_DRAWN", N_VOCAB)
        patch.setitem(synthetic.SHAPES, "small", replace(synthetic.SHAPES[name], **sizes))
        synthetic.make("small", "F32", path)
    return path


def write_with_tokenizer(name: str, path: Path) -> Path:
    """The same with a vocabulary and a chat template."""
    with GGUFFile.open(write(name, path.with_suffix(".plain.gguf"))) as file:
        arch = file.metadata.get_str("general.architecture")
        metadata = {key: file.metadata[key] for key in file.metadata if not key.startswith(("general.", "tokenizer."))}
        tensors = {name: dequantize(file.tensor(name)) for name in file.tensors}
        write_gguf(path, arch, metadata | TOKENIZER, tensors)
    return path
