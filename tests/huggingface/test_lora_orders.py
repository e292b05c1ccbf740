"""Adapters of folders whose weights are read in another order, or were changed, than those that they are for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.formats import by_name
from octavo.huggingface import open_model_file
from octavo.huggingface.adapters import adapter
from octavo.huggingface.tensors.row_orders import Moved, absorb_orders
from octavo.io.gguf import LazyTensor
from octavo.models import read_model
from octavo.models.shared.conversion import f32_tensor
from octavo.quantizers.job import quantization_record
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.lora_adapters import with_adapters
from tests.huggingface.published_models import TOKENS, publish
from tests.huggingface.test_published_experts import save_gptq
from tests.models.adapters import ALPHA, RANK, factors, write_lora_gguf, write_peft

SCALE = ALPHA / RANK


def same(folder: Path, model: Any, path: Path) -> None:
    """Logits of a folder with an adapter are those of the model that has its sums for weights."""
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].numpy()
    with open_model_file(folder) as file:
        spec = with_adapters(read_model(file), ((str(path), 1.0),))
        got = Engine(spec, [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()


def test_columns_in_activation_order(tmp_path: Path) -> None:
    """Down's order is in rows of gate and up, that of others before their products; GGUF and PEFT both follow."""
    model = publish(tmp_path / "hf", "gptq-act-order")
    modules, pairs = {}, {}
    names = {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
             "mlp.down_proj": "ffn_down"}
    for name, own in names.items():
        module = f"model.layers.1.{name}"
        weight = model.get_submodule(module).weight
        a, b = modules[module] = pairs[f"blk.1.{own}.weight"] = factors(*weight.shape)
        weight.data += torch.from_numpy(SCALE * b @ a)
    with open_model_file(tmp_path / "hf") as file:
        assert [n for n in file.tensors if n.endswith("ffn_down.order")] == []
    same(tmp_path / "hf", model, write_peft(tmp_path / "peft", modules))
    same(tmp_path / "hf", model, write_lora_gguf(tmp_path / "a.gguf", pairs))


def test_experts_with_orders_of_their_own(tmp_path: Path) -> None:
    model = save_gptq(tmp_path / "hf", ordered=False)
    modules = {}
    for i, layer in enumerate(model.model.layers):
        experts = layer.mlp.experts
        for e in range(len(experts.down_proj)):
            n = experts.gate_up_proj.shape[1] // 2
            parts = {"w1": experts.gate_up_proj[e, :n], "w3": experts.gate_up_proj[e, n:], "w2": experts.down_proj[e]}
            for seed, (name, weight) in enumerate(parts.items()):
                module = f"model.layers.{i}.block_sparse_moe.experts.{e}.{name}"
                a, b = modules[module] = factors(*weight.shape, seed=10 * e + seed)
                weight.data += torch.from_numpy(SCALE * b @ a)
    same(tmp_path / "hf", model, write_peft(tmp_path / "peft", modules))


@pytest.mark.parametrize(
    ("said", "error"),
    [
        ({"rotate": True}, "not rotated"),
        ({"scales": [{}], "method": "awq"}, "multiplied by scales of channels ('awq')"),
    ],
)
def test_weights_that_a_method_changed(tmp_path: Path, said: dict[str, Any], error: str) -> None:
    model = publish(tmp_path / "hf", "gptq-v2")
    assert adapter.RECORD == quantization_record.FILE
    (tmp_path / "hf" / quantization_record.FILE).write_text(json.dumps(said))
    module = "model.layers.0.mlp.up_proj"
    path = write_peft(tmp_path / "peft", {module: factors(*model.get_submodule(module).weight.shape)})
    with open_model_file(tmp_path / "hf") as file, pytest.raises(ModelError) as caught:
        with_adapters(read_model(file), ((str(path), 1.0),))
    assert error in str(caught.value)
    assert "`octavo convert --lora` of that before" in str(caught.value)


@pytest.mark.parametrize("number", [7.0, -1.0, 1.0, 0.5])
def test_an_order_of_rows_that_is_none(number: float) -> None:
    def stored(name: str, values: np.ndarray) -> LazyTensor:
        return LazyTensor(name, by_name("F32"), values.shape, lambda: f32_tensor(values.astype(np.float32), name))

    shapes = {"ffn_gate.weight": (4, 2), "ffn_up.weight": (4, 2), "ffn_down.weight": (2, 4)}
    tensors = {f"blk.0.{name}": stored(f"blk.0.{name}", np.ones(shape)) for name, shape in shapes.items()}
    tensors["blk.0.ffn_down.order"] = stored("blk.0.ffn_down.order", np.array([0, number, 1, 2]))
    absorb_orders(tensors, {}, Moved())
    with pytest.raises(ModelError, match=r"blk.0.ffn_down.order: does not name each column once .allowed: all of 0"):
        tensors["blk.0.ffn_up.weight"].load()
