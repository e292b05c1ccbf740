"""Nomic BERT with experts gives what its definition in torch gives, from GGUF files and from a folder as published."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch.nn import functional

import octavo
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile, write_gguf
from tests.convert import folders
from tests.models.embedding_checkpoints import KINDS, save
from tests.sampling import slow

D, FF, HEADS, EXPERTS, USED, LAYERS, VOCAB = 128, 96, 2, 4, 2, 3, 320
TEXTS = ["a", "The software is provided as is.", "copyright " * 9]
KEYS = {
    "block_count": LAYERS, "context_length": 256, "embedding_length": D, "feed_forward_length": FF,
    "attention.head_count": HEADS, "attention.layer_norm_epsilon": 1e-5, "attention.causal": False, "pooling_type": 1,
    "expert_count": EXPERTS, "expert_used_count": USED, "moe_every_n_layers": 2, "rope.freq_base": 10000.0,
}


def weights() -> dict[str, torch.Tensor]:
    """Random ones by GGUF name; layer 1 has experts."""
    torch.manual_seed(2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, D), "token_types.weight": (1, D), "token_embd_norm.weight": (D,),
        "token_embd_norm.bias": (D,),
    }
    for i in range(LAYERS):
        block: dict[str, tuple[int, ...]] = {f"{n}.{p}": (D,) for n in NORMS for p in ("weight", "bias")}
        block |= {"attn_qkv.weight": (3 * D, D), "attn_qkv.bias": (3 * D,)}
        block |= {"attn_output.weight": (D, D), "attn_output.bias": (D,)}
        if i == 1:
            block |= {"ffn_gate_inp.weight": (EXPERTS, D), "ffn_up_exps.weight": (EXPERTS, FF, D)}
            block["ffn_down_exps.weight"] = EXPERTS, D, FF
        else:
            block |= {"ffn_up.weight": (FF, D), "ffn_up.bias": (FF,), "ffn_down.weight": (D, FF), "ffn_down.bias": (D,)}
        shapes |= {f"blk.{i}.{name}": shape for name, shape in block.items()}
    return {name: torch.randn(shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 3) for name, shape in shapes.items()}


NORMS = ("attn_output_norm", "layer_output_norm")


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rope on halves of [T, heads, d]."""
    half = x.shape[-1] // 2
    angle = torch.arange(len(x))[:, None] * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def vectors(w: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """Of the tokens of a text, [T, D]."""

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.layer_norm(x, (D,), w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])

    x = norm(w["token_embd.weight"][ids] + w["token_types.weight"][0], "token_embd_norm")
    for b in (f"blk.{i}." for i in range(LAYERS)):
        q, k, v = linear(x, f"{b}attn_qkv").reshape(len(ids), 3, HEADS, -1).unbind(1)
        heads = [part.transpose(0, 1)[None] for part in (turned(q), turned(k), v)]
        h = functional.scaled_dot_product_attention(*heads)[0].transpose(0, 1).reshape(len(ids), D)
        x = norm(x + linear(h, f"{b}attn_output"), f"{b}{NORMS[0]}")
        if f"{b}ffn_up.weight" in w:
            h = linear(functional.gelu(linear(x, f"{b}ffn_up")), f"{b}ffn_down")
        else:
            shares, chosen = functional.softmax(x @ w[f"{b}ffn_gate_inp.weight"].T, -1).topk(USED)
            up, down = w[f"{b}ffn_up_exps.weight"], w[f"{b}ffn_down_exps.weight"]
            h = w.get(f"{b}ffn_exps.bias", torch.zeros(D)).repeat(len(x), 1)
            for t in range(len(ids)):
                for share, e in zip(shares[t], chosen[t], strict=True):
                    h[t] += share * (down[e] @ functional.gelu(up[e] @ x[t]))
        x = norm(x + h, f"{b}{NORMS[1]}")
    return x


def write(path: Path) -> dict[str, torch.Tensor]:
    """Write a random model, with XLM-RoBERTa's kind of tokenizer as the published one has; its weights."""
    folder = path.with_suffix("")
    folder.mkdir()
    save(folder, KINDS["xlm-roberta"])
    convert_checkpoint(folder, path.with_suffix(".bert.gguf"), "F32")
    with GGUFFile.open(path.with_suffix(".bert.gguf")) as file:
        metadata: dict[str, Any] = {k: file.metadata[k] for k in file.metadata if k.startswith("tokenizer.")}
    made = weights()
    metadata |= {f"nomic-bert-moe.{key}": value for key, value in KEYS.items()}
    write_gguf(path, "nomic-bert-moe", metadata, {name: value.numpy() for name, value in made.items()})
    return made


OUTSIDE = {
    "token_embd.weight": "embeddings.word_embeddings.weight", "token_types.weight":
    "embeddings.token_type_embeddings.weight", "token_embd_norm.weight": "emb_ln.weight", "token_embd_norm.bias":
    "emb_ln.bias",
}
MODULES = {
    "attn_qkv": "attn.Wqkv", "attn_output": "attn.out_proj", "attn_output_norm": "norm1", "layer_output_norm": "norm2",
    "ffn_up": "mlp.fc1", "ffn_down": "mlp.fc2", "ffn_gate_inp": "mlp.router.layer", "ffn_exps": "mlp.experts",
}
CONFIG = {
    "architectures": ["NomicBertModel"], "model_type": "nomic_bert", "activation_function": "gelu", "causal": False,
    "expert_choice_router": False, "ffn_div": 1, "layer_norm_epsilon": 1e-5, "mlp_fc1_bias": True, "mlp_fc2_bias": True,
    "moe_every_n_layers": 2, "moe_normalize_expert_weights": False, "moe_top_k": USED, "n_embd": D, "n_head": HEADS,
    "n_inner": FF, "n_layer": LAYERS, "n_positions": 2048, "num_experts": EXPERTS, "num_shared_experts": 0,
    "prenorm": False, "qkv_proj_bias": True, "rotary_emb_base": 10000, "rotary_emb_fraction": 1.0,
    "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "rotary_scaling_factor": None,
    "type_vocab_size": 1, "vocab_size": VOCAB,
}


def publish(folder: Path) -> dict[str, torch.Tensor]:
    """Write a folder as Nomic Embed 2 is published: its experts in one matrix, a bias for all of them; its weights."""
    save(folder, KINDS["xlm-roberta"])
    made = weights() | {"blk.1.ffn_exps.bias": torch.randn(D)}
    stored = {}
    for name, value in made.items():
        block, _, part = name.removeprefix("blk.").partition(".")
        stem, _, kind = part.rpartition(".")
        layer = f"encoder.layers.{block}."
        if "_exps.weight" in name:
            both = value if "up" in name else value.transpose(1, 2)
            stored[f"{layer}mlp.experts.mlp.{'w1' if 'up' in name else 'w2'}"] = both.reshape(-1, D).contiguous()
        else:
            stored[OUTSIDE.get(name) or f"{layer}{MODULES[stem]}.{kind}"] = value
    save_file(stored, folder / "model.safetensors")
    folders.write(folder, "config.json", CONFIG)
    return made


def test_a_folder_as_it_is_published(tmp_path: Path) -> None:
    made = publish(tmp_path)
    convert_checkpoint(tmp_path, tmp_path / "m.gguf", "F32")
    for path in (tmp_path, tmp_path / "m.gguf"):
        with octavo.load(path, device="reference") as model:
            for text, rows in zip(TEXTS, model.embed_tokens(TEXTS), strict=True):
                want = vectors(made, model.tokenizer.encode(text)).numpy()
                assert np.abs(rows - want).max() < 1e-4 * np.abs(want).max()
    folders.edit(tmp_path, "config.json", moe_normalize_expert_weights=True)
    with pytest.raises(ModelError, match=r"moe_normalize_expert_weights: is .*True.* .allowed: False"):
        octavo.load(tmp_path, device="reference")


@pytest.mark.parametrize("device", [slow("reference"), slow("cpu")])
def test_vectors_of_texts(tmp_path: Path, device: str) -> None:
    made = write(tmp_path / "m.gguf")
    with octavo.load(tmp_path / "m.gguf", device=device, threads=2, strict=True) as model:
        for text, rows in zip(TEXTS, model.embed_tokens(TEXTS), strict=True):
            want = vectors(made, model.tokenizer.encode(text)).numpy()
            assert np.abs(rows - want).max() < 1e-4 * np.abs(want).max()
        assert model.embed(TEXTS).shape == (3, D)
