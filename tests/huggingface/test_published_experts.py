"""Experts as other tools publish them: logits of the model that has what their tensors stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.convert.folders import byte_level, write
from tests.huggingface.published_layouts import PUBLISHED, gptq_config
from tests.huggingface.published_models import TOKENS, agrees, same_logits
from tests.huggingface.writers.codes import Tensors
from tests.huggingface.writers.gptq import gptq
from tests.huggingface.writers.mlx import mlx
from tests.models.checkpoints import make
from tests.models.tiny_checkpoints import TABLE, wide
from tests.sampling import slow

SWITCH = {
    "qwen3moe": "mlp.switch_mlp", "mixtral": "block_sparse_moe.switch_mlp",
    "gpt-oss": "mlp.experts",
}
"""Where MLX puts the experts of an architecture."""


def packed(tensors: Tensors, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """The tensors of experts [E, N, K], stacked, and their values."""
    parts, values = tensors(rows.reshape(-1, rows.shape[2]))
    return {end: part.reshape(*rows.shape[:2], -1) for end, part in parts.items()}, values.reshape(rows.shape)


def save(folder: Path, name: str) -> Any:
    """A random model with stacked experts of 4 bits and a router of 8, as MLX writes them; the rest as it is."""
    model, out = make(TABLE[name]), {}
    config: dict[str, Any] = {"group_size": 32, "bits": 4, "mode": "affine"}
    columns = name == "gpt-oss"
    for key, parameter in model.state_dict().items():
        w = parameter.numpy()
        stem, _, end = key.partition("mlp.experts.")
        module = stem + SWITCH[name]
        if end in ("gate_up_proj", "down_proj"):
            rows = w.swapaxes(1, 2) if columns else w
            halves = (slice(0, None, 2), slice(1, None, 2)) if columns else np.array_split(range(rows.shape[1]), 2)
            names = dict(zip(("gate_proj", "up_proj"), halves, strict=True))
            for part, taken in (names if end == "gate_up_proj" else {"down_proj": slice(None)}).items():
                parts, values = packed(mlx(4, 32), np.ascontiguousarray(rows[:, taken]))
                out |= {f"{module}.{part}.{kind}": array for kind, array in parts.items()}
                torch.from_numpy(rows)[:, taken] = torch.from_numpy(values)  # a view of the parameter
        elif end == "gate_up_proj_bias":
            out |= {f"{module}.gate_proj.bias": w[:, 0::2], f"{module}.up_proj.bias": w[:, 1::2]}
        elif end == "down_proj_bias":
            out[f"{module}.down_proj.bias"] = w
        elif key.endswith("mlp.gate.weight"):
            router = key.removesuffix(".weight").replace("mlp.", module.removeprefix(stem).partition(".")[0] + ".")
            parts, values = mlx(8, 32)(w)
            out |= {f"{router}.{kind}": array for kind, array in parts.items()}
            config[router] = {"group_size": 32, "bits": 8}
            parameter.copy_(torch.from_numpy(values))
        else:
            out[key] = w
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, folder / "model.safetensors")
    names_ = {"architectures": [type(model).__name__], "quantization": config}
    write(folder, "config.json", {**model.config.to_dict(), **names_})
    byte_level().save(str(folder / "tokenizer.json"))
    return model


@pytest.mark.parametrize("name", ["qwen3moe", *map(slow, ("mixtral", "gpt-oss"))])
def test_stacked_experts_of_mlx(tmp_path: Path, name: str) -> None:
    model = save(tmp_path, name)
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.1.ffn_up_exps.weight"].type_name == "GROUP4_32_M_F16"
    same_logits(tmp_path, model)


@pytest.mark.parametrize("name", ["deepseek2-v2", slow("deepseek2-v3")])
def test_heads_apart_of_mlx(tmp_path: Path, name: str) -> None:
    """Of latent attention MLX has each head's rows of keys as columns, and those of values, in tensors of their own."""
    case = TABLE[name]
    model = make(replace(case, options={**case.options, "qk_nope_head_dim": 32, "kv_lora_rank": 64}))
    plain, out = model.config.qk_nope_head_dim, {}
    for key, parameter in model.state_dict().items():
        module = key.removesuffix("kv_b_proj.weight")
        if module == key:
            out[key] = parameter.numpy()
            continue
        heads = parameter.numpy().reshape(model.config.num_attention_heads, -1, parameter.shape[1])
        for part, rows in (("embed_q", heads[:, :plain].swapaxes(1, 2)), ("unembed_out", heads[:, plain:])):
            parts, values = packed(mlx(8, 32), np.ascontiguousarray(rows))
            out |= {f"{module}{part}.{kind}": array for kind, array in parts.items()}
            rows[...] = values  # a view of the parameter
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, tmp_path / "model.safetensors")
    said = {"architectures": [type(model).__name__], "quantization": {"group_size": 32, "bits": 8}}
    write(tmp_path, "config.json", {**model.config.to_dict(), **said})
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.0.attn_k_b.weight"].type_name == "GROUP8_32_M_F16"
    same_logits(tmp_path, model)


@pytest.mark.slow
def test_stacked_experts_on_the_cpu(tmp_path: Path) -> None:
    save(tmp_path, "qwen3moe")
    agrees(tmp_path, CpuBackend(threads=2))


def save_gptq(folder: Path, *, ordered: bool) -> Any:
    """A random Mixtral whose experts are of GPTQ, down projections in an order of their own, with `ordered` all."""
    folder.mkdir(exist_ok=True)
    model, out = make(TABLE["mixtral"]), {}
    for key, parameter in model.state_dict().items():
        w = parameter.numpy()
        stem, _, end = key.partition("experts.")
        if end not in ("gate_up_proj", "down_proj"):
            out[key] = w
            continue
        n = w.shape[1] // 2
        names = {"w1": slice(0, n), "w3": slice(n, 2 * n)} if end == "gate_up_proj" else {"w2": slice(None)}
        for name, taken in names.items():
            for i, expert in enumerate(w):
                tensors = gptq(4, 32, sym=True, v2=False, ordered=ordered or name == "w2", seed=i)
                parts, values = tensors(expert[taken])
                out |= {f"{stem}experts.{i}.{name}.{kind}": array for kind, array in parts.items()}
                expert[taken] = values
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, folder / "model.safetensors")
    said = {"architectures": [type(model).__name__], "quantization_config": gptq_config(group_size=32, desc_act=True)}
    write(folder, "config.json", {**model.config.to_dict(), **said})
    byte_level().save(str(folder / "tokenizer.json"))
    return model


def check_orders(folder: Path, ordered: bool) -> None:
    model = save_gptq(folder, ordered=ordered)
    with open_model_file(folder) as file:
        orders = {name.rpartition(".")[0].rpartition(".")[2] for name in file.tensors if name.endswith(".order")}
        assert orders == ({"ffn_gate_exps", "ffn_up_exps"} if ordered else set()), "rows of gate and up take down's in"
    same_logits(folder, model)


def test_an_order_of_columns_for_each_expert(tmp_path: Path) -> None:
    check_orders(tmp_path, ordered=True)


@pytest.mark.slow
def test_an_order_of_columns_of_down_projections(tmp_path: Path) -> None:
    check_orders(tmp_path, ordered=False)


@pytest.mark.slow
def test_orders_of_experts_on_the_cpu(tmp_path: Path) -> None:
    save_gptq(tmp_path, ordered=True)
    agrees(tmp_path, CpuBackend(threads=2))


@pytest.mark.slow
def test_orders_of_experts_in_a_gguf_file(tmp_path: Path) -> None:
    """Columns are put back where activations have them."""
    save_gptq(tmp_path / "hf", ordered=True)
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "F32")
    with open_model_file(tmp_path / "hf") as folder, open_model_file(tmp_path / "out.gguf") as file:
        logits = [
            Engine(read_model(f), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
            for f in (folder, file)
        ]
    np.testing.assert_allclose(logits[0], logits[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("fp8-tensor", "FP8_128"),
        slow(("ct-w8a8", "GROUP8_128_F32")),
        ("gptq-act-order", PUBLISHED["gptq-act-order"].rows),
    ],
)
def test_experts_of_two_matrices(tmp_path: Path, name: str, rows: str) -> None:
    """Of Nemotron 3, whose experts have no gate, each in tensors of its own."""
    layout, of, out = PUBLISHED[name], TABLE["nemotron_h_moe"], {}
    model = make(replace(of, options=wide(of.options)))
    for key, parameter in model.state_dict().items():
        w = parameter.numpy()
        if not key.endswith(("experts.up_proj", "experts.down_proj")):
            out[key] = w
            continue
        for i, expert in enumerate(w):
            parts, values = layout.tensors(expert)
            out |= {f"{key.replace('experts.', f'experts.{i}.')}.{end}": part for end, part in parts.items()}
            expert[...] = values
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, tmp_path / "model.safetensors")
    said = {"architectures": [type(model).__name__], layout.key: layout.config}
    write(tmp_path, "config.json", {**model.config.to_dict(), **said})
    byte_level().save(str(tmp_path / "tokenizer.json"))
    with open_model_file(tmp_path) as file:
        assert file.tensors["blk.1.ffn_up_exps.weight"].type_name == rows
    same_logits(tmp_path, model)
