"""The folds of models of transformers: each leaves what a small random model computes as it is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from octavo.errors import UsageError
from octavo.torch import QuantLinear, folds_of, quantize_
from octavo.torch.folds import open_folds, require_exact
from octavo.torch.known import LAYERS
from tests.sampling import some

KINDS = {
    "llama": 4, "mistral": 4, "ministral": 4, "qwen2": 4, "qwen3": 4, "smollm3": 4, "granite": 4, "seed_oss": 4,
    "ernie4_5": 4, "helium": 4, "hunyuan_v1_dense": 4, "gemma": 4, "gemma2": 4, "gemma3_text": 4, "phi3": 4, "glm": 4,
    "glm4": 4, "cohere": 3, "cohere2": 3, "olmo": 2, "olmo2": 2, "olmo3": 2, "exaone4": 2, "starcoder2": 3, "arcee": 3,
    "nemotron": 3, "apertus": 3, "mixtral": 2, "qwen3_moe": 2,
}
"""Folds of a layer."""
IDS = torch.arange(18).reshape(2, 9) % 61 + 3


def model(kind: str) -> Any:
    torch.manual_seed(5)
    config = AutoConfig.for_model(
        kind, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )
    made: Any = AutoModelForCausalLM.from_config(config).float().eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for values in made.parameters():
            if values.ndim == 1:
                values.add_(0.3 * torch.randn_like(values))
    return made


@pytest.mark.parametrize("kind", some(KINDS, 8))
def test_folds_of_a_model(kind: str) -> None:
    whole = model(kind)
    found = folds_of(whole)
    assert len(found) == 2 * KINDS[kind]
    require_exact(whole, open_folds(whole, found), {"input_ids": IDS})
    assert [fold.into for fold in folds_of(whole.model)] == [fold.into.removeprefix("model.") for fold in found]


@pytest.mark.slow
@torch.no_grad()
def test_a_model_is_quantized_with_them() -> None:
    whole = model("llama")
    right = whole(input_ids=IDS).logits
    batches = [{"input_ids": (IDS * i) % 61 + 3} for i in (1, 2, 5)]
    quantize_(whole, "w4a8", method="qqq", calibration=batches, folds=folds_of(whole))
    assert sum(isinstance(layer, QuantLinear) for layer in whole.modules()) == 14
    off = whole(input_ids=IDS).logits - right
    assert off.norm() < 0.25 * right.norm()


def test_models_that_are_not_known() -> None:
    with pytest.raises(UsageError, match=r"folds of Sequential: its layers are none that are known \(allowed: Apertus"):
        folds_of(nn.Sequential(nn.Linear(8, 8)))
    other = model("llama")
    other.get_submodule("model.layers.1.mlp").up_proj = nn.Identity()
    with pytest.raises(UsageError, match=r"model\.layers\.1\.mlp\.up_proj of a LlamaDecoderLayer is a Identity"):
        folds_of(other)
    del other.get_submodule("model.layers.0.self_attn").head_dim
    with pytest.raises(UsageError, match="the attention has no head_dim"):
        folds_of(other)
    assert {type(part).__name__ for kind in ("llama", "gemma2") for part in model(kind).modules()} & {*LAYERS} == {
        "LlamaDecoderLayer", "Gemma2DecoderLayer",
    }
