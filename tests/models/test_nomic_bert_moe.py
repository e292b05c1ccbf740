"""Nomic BERT with experts, which comes as GGUF files, gives what its definition in torch gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import octavo
from octavo.convert import convert_checkpoint
from octavo.io.gguf import GGUFFile, write_gguf
from tests.models.embedding_checkpoints import KINDS, save
from tests.sampling import slow

D, FF, HEADS, EXPERTS, USED, LAYERS, VOCAB = 128, 96, 2, 4, 2, 3, 320
TEXTS = ["a", "The software is provided as is.", "copyright " * 9]
KEYS = {
    "block_count": LAYERS, "context_length": 256, "embedding_length": D, "feed_forward_length": FF,
    "attention.head_count": HEADS, "attention.layer_norm_epsilon": 1e-5, "attention.causal": False, "pooling_type": 1,
    "expert_count": EXPERTS, "expert_used_count": USED, "moe_every_n_layers": 2, "rope.freq_base": 10000.0,
}  # fmt: skip


def weights() -> dict[str, torch.Tensor]:
    """Random ones by GGUF name; layer 1 has experts."""
    torch.manual_seed(2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, D), "token_types.weight": (1, D), "token_embd_norm.weight": (D,),
        "token_embd_norm.bias": (D,),
    }  # fmt: skip
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
            h = torch.zeros_like(x)
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


@pytest.mark.parametrize("device", ["reference", slow("cpu")])
def test_vectors_of_texts(tmp_path: Path, device: str) -> None:
    made = write(tmp_path / "m.gguf")
    with octavo.load(tmp_path / "m.gguf", device=device, threads=2, strict=True) as model:
        for text, rows in zip(TEXTS, model.embed_tokens(TEXTS), strict=True):
            want = vectors(made, model.tokenizer.encode(text)).numpy()
            assert np.abs(rows - want).max() < 1e-4 * np.abs(want).max()
        assert model.embed(TEXTS).shape == (3, D)
