"""What a file may have beside a weight, biases and scales, is computed with; other tensors are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.errors import ModelError
from octavo.formats import dequantize
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from tests.models.checkpoints import CASES, Write, make
from tests.models.test_against_transformers import TOKENS, engine, error
from tests.models.test_hostile import refused
from tests.runtime import tiny

FEW = TOKENS[:9]
PRODUCTS = ("attn_q.", "attn_k.", "attn_v.", "attn_output.", "ffn_gate.", "ffn_up.", "ffn_down.", "output.", "_exps.")


def scaled(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The same model, the weights of its products divided by scales that lie beside them, with scales of inputs too."""
    rng, out = np.random.default_rng(3), dict(tensors)
    for name, w in tensors.items():
        if name.endswith(".weight") and any(part in name for part in PRODUCTS):
            scale = rng.uniform(0.001, 0.01, len(w) if w.ndim == 3 else 1).astype(np.float32)
            out[name] = w / (scale[:, None, None] if w.ndim == 3 else scale)
            out |= {name.replace("weight", "scale"): scale, name.replace("weight", "input_scale"): scale}
    return out


@pytest.mark.parametrize(("name", "scales"), [("llama-biased", 15), ("mixtral", 15), ("qwen2", 15), ("qwen3moe", 15)])
def test_scales_multiply_products(name: str, scales: int, gguf: Write) -> None:
    case, model = CASES[name], make(CASES[name])
    plain = gguf(case, model)
    beside = gguf(case, model, tensors=scaled({n: dequantize(plain.tensor(n)) for n in plain.tensors}))
    assert sum(n.endswith(".scale") for n in beside.tensors) == scales
    assert error(engine(beside).logits(FEW), engine(plain).logits(FEW)) < 1e-5


@pytest.mark.parametrize("tied", [False, True])
def test_the_bias_of_qwen2s_output_is_added(tied: bool, gguf: Write) -> None:
    model = make(CASES["qwen2"])
    plain = gguf(CASES["qwen2"], model)
    tensors = {n: dequantize(plain.tensor(n)) for n in plain.tensors if not (tied and n == "output.weight")}
    bias = np.random.default_rng(5).standard_normal(model.config.vocab_size).astype(np.float32)
    without, with_bias = gguf(CASES["qwen2"], model, tensors=tensors), tensors | {"output.bias": bias}
    got = engine(gguf(CASES["qwen2"], model, tensors=with_bias)).logits(FEW)
    assert error(got - bias, engine(without).logits(FEW)) < 1e-5


OTHERS = {
    "qwen3": ("blk.0.attn_output.bias", "blk.1.ffn_up.bias", "output.bias", "blk.0.attn_qkv.weight"),
    "qwen3moe": ("blk.0.ffn_down_exps.bias", "blk.1.ffn_gate_shexp.weight", "blk.0.exp_probs_b.bias"),
    "llama": ("output.bias", "token_embd.scale", "blk.0.attn_norm.scale", "blk.0.attn_rot_embd.weight"),
}


@pytest.mark.parametrize(("arch", "name"), [(arch, name) for arch, names in OTHERS.items() for name in names])
def test_tensors_of_no_use_to_the_architecture(tmp_path: Path, arch: str, name: str) -> None:
    path = tiny.write(tmp_path / "m.gguf", arch, weights=tiny.tensors(arch) | {name: np.ones(1, np.float32)})
    refused(path, ModelError, f"tensor '{name}'", "is not part of this architecture")


def test_more_layers_than_the_file_says(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", keys={"qwen3.block_count": 1})
    refused(path, ModelError, "tensor 'blk.1.attn_norm.weight'", "nor are 10 others: 'blk.1.attn_q.weight', ")


WRONG = {
    "of another size": ({"blk.0.attn_q.scale": np.ones(2, np.float32)}, "blk.0.attn_q.scale", "shape [1]"),
    "for fewer experts": ({"blk.1.ffn_up_exps.scale": np.ones(3, np.float32)}, "blk.1.ffn_up_exps.scale", "shape [4]"),
    "of rows": ({"blk.1.ffn_gate_inp.scale": np.ones(1, np.float32)}, "blk.1.ffn_gate_inp.scale", "not part"),
}


@pytest.mark.parametrize("case", WRONG)
def test_scales_that_fit_no_weight(tmp_path: Path, case: str) -> None:
    added, name, problem = WRONG[case]
    path = tiny.write(tmp_path / "m.gguf", "qwen3moe", weights=tiny.tensors("qwen3moe") | added)
    refused(path, ModelError, name, problem)


def test_a_scale_without_its_weight(tmp_path: Path) -> None:
    weights = tiny.tensors() | {"output.scale": np.ones(1, np.float32)}
    del weights["output.weight"]
    refused(tiny.write(tmp_path / "m.gguf", weights=weights), ModelError, "output.scale", "has no output.weight beside")


@pytest.mark.parametrize("value", [1e9, -1.0, 2.0, 0.5, np.nan])
@pytest.mark.parametrize(("arch", "name"), [("qwen3", "blk.0.attn_q"), ("qwen3moe", "blk.1.ffn_gate_exps")])
def test_an_order_that_is_none(tmp_path: Path, arch: str, name: str, value: float) -> None:
    """Out of range, twice the same, no whole number: nothing is read beyond a row."""
    weights = tiny.tensors(arch)
    shape = weights[f"{name}.weight"].shape
    order = np.broadcast_to(np.arange(shape[-1], dtype=np.float32), (*shape[:-2], shape[-1])).copy()
    tiny.write(tmp_path / "m.gguf", arch, weights=weights | {f"{name}.order": order})
    open_graph(tmp_path / "m.gguf")
    order.reshape(-1)[-3] = value
    tiny.write(tmp_path / "m.gguf", arch, weights=weights | {f"{name}.order": order})
    with pytest.raises(ModelError, match=rf"{name}.order: does not name each column once .allowed: all of 0 to "):
        open_graph(tmp_path / "m.gguf")


def open_graph(path: Path) -> None:
    with GGUFFile.open(path) as file:
        read_model(file).graph()
