"""Damaged LoRA adapters, GGUF files and PEFT folders, of tiny models that are undamaged; the models then generate."""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import fuzz_checkpoints
import gguf_target
import numpy as np
from fuzz_checkpoints import damage_bytes, damage_text, damage_weights, replace_file
from fuzz_models import CHANGES, Stored, encode, generates
from json_damage import other_value
from tiny_models import tiny

from octavo.formats.spec import F32
from octavo.io.safetensors import TensorHead, write_safetensors

RANK = 4
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PATTERNS = (
    "q_proj", "(?i)q_proj", "(q)_proj|\\1", "a{99999999999}", "[", "((((a))))", "layers.0.*q_proj", "[[a]]", "(a*)*b",
    "a" * 300, "", "\\",
)
"""Keys of `rank_pattern` and `alpha_pattern`."""
WORDS = (
    "use_dora", "use_rslora", "bias", "modules_to_save", "init_lora_weights", "ensure_weight_tying", "target_modules",
    "base_model_name_or_path", "peft_type", "target_parameters",
)


class Target:
    """An adapter in the folder, and beside it the model that it is for."""

    def __init__(self, folder: Path, n_seeds: int | None = None) -> None:
        kept = Path(tempfile.mkdtemp())
        weakref.finalize(self, shutil.rmtree, kept, True)
        experts = tiny("qwen3moe", experts=True)
        self._file, self._folder = folder / "adapter.gguf", folder / "adapter"
        self._models = {self._file: kept / "experts.gguf", self._folder: fuzz_checkpoints.seeds(kept)[-1]}
        self._models[self._file].write_bytes(encode(experts.keys, _as_f32(experts.tensors)))
        self._keys, self._pairs = _adapter_file(experts.tensors)
        self._peft = _adapter_folder(kept / "peft")
        self._path = self._file

    def make(self, rng: random.Random) -> None:
        self._file.unlink(missing_ok=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        self._path = rng.choice((self._file, self._folder))
        if self._path == self._file:
            self._file.write_bytes(self._damaged_file(rng))
        else:
            shutil.copytree(self._peft, self._folder)
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                _damage_folder(rng, self._folder)

    def exercise(self) -> bool:
        return generates(self._models[self._path], lora=self._path)

    def _damaged_file(self, rng: random.Random) -> bytes:
        keys, pairs = dict(self._keys), dict(self._pairs)
        if rng.random() < 0.5:
            data = encode(keys, pairs)
            return gguf_target.damage(rng, data, [data])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            rng.choice(CHANGES)(rng, "qwen3moe", keys, pairs)
        return encode(keys, pairs)


def _as_f32(tensors: dict[str, F32]) -> Stored:
    return {name: (0, values.shape, values.tobytes()) for name, values in tensors.items()}


def _random(*shape: int) -> F32:
    return np.random.default_rng(0).standard_normal(shape, np.float32) / np.float32(16)


def _adapter_file(weights: dict[str, F32]) -> tuple[dict[str, Any], Stored]:
    """Metadata of an adapter, and the factors of four weights: those of experts and an embedding among them."""
    keys = {
        "general.architecture": "qwen3moe", "general.type": "adapter", "adapter.type": "lora",
        "adapter.lora.alpha": 8.0,
    }
    pairs: dict[str, F32] = {}
    for name in ("token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down_exps.weight", "output.weight"):
        *experts, n, k = weights[name].shape
        a, b = (*experts, RANK, k), (*experts, n, RANK)
        a, b = ((n, RANK), (k, RANK)) if name.startswith("token_embd") else (a, b)
        pairs |= {f"{name}.lora_a": _random(*a), f"{name}.lora_b": _random(*b)}
    return keys, _as_f32(pairs)


def _adapter_folder(folder: Path) -> Path:
    """A PEFT folder for the checkpoint of the tiny llama, with patterns of ranks and scales."""
    weights = tiny("llama").tensors
    named = {
        "model.layers.0.self_attn.q_proj": "blk.0.attn_q", "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
        "lm_head": "output", "model.embed_tokens": "token_embd",
    }
    factors: dict[str, F32] = {}
    for module, name in named.items():
        n, k = weights[f"{name}.weight"].shape
        rank = RANK // 2 if module == "lm_head" else RANK
        kind, end = ("lora_embedding_", "") if "embed" in module else ("lora_", ".weight")
        a, b = ((rank, n), (k, rank)) if "embed" in module else ((rank, k), (n, rank))
        factors |= {
            f"base_model.model.{module}.{kind}A{end}": _random(*a),
            f"base_model.model.{module}.{kind}B{end}": _random(*b),
        }
    folder.mkdir()
    heads = [TensorHead(name, "F32", values.shape) for name, values in factors.items()]
    write_safetensors(folder / WEIGHTS, heads, list(factors.values()))
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none", "target_modules": ["q_proj", "down_proj"],
        "rank_pattern": {"lm_head": RANK // 2}, "alpha_pattern": {"down_proj": 4.5}, "use_rslora": False,
    }
    (folder / CONFIG).write_text(json.dumps(config))
    return folder


def _damage_folder(rng: random.Random, folder: Path) -> None:
    name, kind = rng.choice((CONFIG, CONFIG, WEIGHTS)), rng.random()
    if kind < 0.1:
        replace_file(rng, folder / name)
    elif kind < 0.2:
        damage_bytes(rng, folder / name)
    elif name == WEIGHTS:
        damage_weights(rng, folder / name)
    elif kind < 0.6:
        damage_text(rng, folder / name)
    elif (folder / name).is_file():
        _other_words(rng, folder / name)


def _other_words(rng: random.Random, path: Path) -> None:
    """Other patterns, or another value of what says which kind of adapter this is."""
    try:
        config = json.loads(path.read_text())
    except (ValueError, RecursionError):
        return  # an earlier change has made it no JSON
    if not isinstance(config, dict):
        return
    if rng.random() < 0.5:
        config[rng.choice(("rank_pattern", "alpha_pattern"))] = {rng.choice(PATTERNS): rng.choice((2, 4, 4.5, 10**400))}
    else:
        word = rng.choice((*WORDS, "r", "lora_alpha"))
        old = ["mlp.experts.down_proj"] if word == "target_parameters" else config.get(word)
        config[word] = other_value(rng, old)
    path.write_bytes(json.dumps(config).encode(errors="surrogatepass"))
