"""Sliding windows of checkpoints: found where transformers has one, and in the GGUF file that is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

import octavo
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError, UsageError
from octavo.huggingface import open_model_file
from octavo.huggingface.config import CLASSES, read_hyperparams, read_keys
from octavo.models.config import Config
from octavo.quantizers.checkpoint import quantize_checkpoint
from tests.convert.folders import save
from tests.models.checkpoints import BASE, Case

EXPERTS = {
    "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}  # fmt: skip
USED = {"use_sliding_window": True, "sliding_window": 64}
KEYS: list[dict[str, Any]] = [
    {}, {"sliding_window": None}, {"sliding_window": 64}, USED, {**USED, "max_window_layers": 1},
    {**USED, "max_window_layers": 2}, {**USED, "layer_types": ["full_attention"] * 2},
    {**USED, "layer_types": ["full_attention", "sliding_attention"]},
    {"use_sliding_window": True, "max_window_layers": 0},
]  # fmt: skip


def of_transformers(config: Any) -> int | None:
    """The window that some layer of a model has."""
    kinds = getattr(config, "layer_types", None)
    window: int | None = None if kinds and "sliding_attention" not in kinds else config.sliding_window
    return window


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "LlamaForCausalLM"])
def test_windows_are_those_of_transformers(name: str) -> None:
    for keys in KEYS:
        if "layer_types" in keys and name not in ("Qwen2ForCausalLM", "Qwen3ForCausalLM"):
            continue  # only these two look at it
        theirs = getattr(transformers, name.replace("ForCausalLM", "Config"))(**keys, num_hidden_layers=2)
        config = Config({**BASE, **EXPERTS, "architectures": [name], **keys}, "c")
        assert read_hyperparams(config, read_keys(config)).n_window == of_transformers(theirs), keys


def test_llama_has_none() -> None:
    config = Config({**BASE, "architectures": ["LlamaForCausalLM"], "sliding_window": 64}, "c")
    assert read_hyperparams(config, read_keys(config)).n_window is None


@pytest.mark.parametrize(
    ("key", "value"), [("sliding_window", "64"), ("sliding_window", -1), ("max_window_layers", 1.5)]
)
def test_windows_that_are_no_numbers(key: str, value: object) -> None:
    config = Config({**BASE, **USED, "architectures": ["Qwen2ForCausalLM"], "max_window_layers": 0, key: value}, "c")
    with pytest.raises(ModelError, match=key):
        read_hyperparams(config, read_keys(config))


def test_a_folder_and_its_file_have_contexts_of_the_window(tmp_path: Path) -> None:
    save(tmp_path / "hf", Case("llama", "MistralConfig", {"sliding_window": 100}))
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf")
    for name in ("hf", "m.gguf"):
        with octavo.load(tmp_path / name, device="reference") as model:
            assert model.engine.n_ctx == 100
            assert model.file.metadata.get_int("llama.attention.sliding_window") == 100
        with pytest.raises(UsageError, match="sliding window of 100 tokens"):
            octavo.load(tmp_path / name, device="reference", n_ctx=101)
    quantize_checkpoint(tmp_path / "hf", tmp_path / "int8", "int8-w8a8")
    with open_model_file(tmp_path / "int8") as file:
        assert file.metadata.get_int("llama.attention.sliding_window") == 100
    with pytest.raises(ModelError, match=r"sliding window of 100 tokens in layers that it does not name"):
        quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "out", "int8-w8a8")
