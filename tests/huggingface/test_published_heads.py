"""Latent attention in each layout: keys and values of all heads are one quantized matrix of a checkpoint, and two of a
model. Logits are those of the model that has what the tensors stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.huggingface.modules import edit_tensors
from tests.huggingface.published_layouts import PUBLISHED
from tests.huggingface.published_models import TOKENS, agrees, publish, same_logits
from tests.models.tiny_checkpoints import TABLE, wide
from tests.sampling import slow

SIZES = {"kv_lora_rank": 256, "qk_nope_head_dim": 96, "v_head_dim": 160, "qk_rope_head_dim": 32}
"""Keys and values of a head are whole blocks of 128 rows together, and neither is so alone."""
SOME = ["gptq-v1-asym", "gptq-act-order", "awq-gemm", "ct-w8a8-static", "ct-nvfp4", "fp8-block"]
V2, V3 = "deepseek2-v2", "deepseek2-v3"
CELLS = [*((V2, name) for name in PUBLISHED), *((V3, name) for name in SOME)]


def publish_latent(folder: Path, name: str, case: str = V2) -> Any:
    """A random model of latent attention in a layout, and the one that computes with what its tensors stand for."""
    of = TABLE[case]
    return publish(folder, name, replace(of, options=wide(of.options) | SIZES))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("case", "name"), [cell if cell[0] == V2 and cell[1] in SOME else slow(cell) for cell in CELLS]
)
def test_logits_are_those_of_the_dequantized_model(tmp_path: Path, case: str, name: str) -> None:
    model = publish_latent(tmp_path, name, case)
    same_logits(tmp_path, model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gptq-act-order", "ct-w8a8", "ct-nvfp4", "fp8-block"])
def test_logits_on_the_cpu(tmp_path: Path, name: str) -> None:
    publish_latent(tmp_path, name)
    agrees(tmp_path, CpuBackend(threads=2))


@pytest.mark.parametrize(("name", "values"), [("gptq-act-order", "GROUP4_128_F16"), ("ct-fp8", "FP8_128")])
def test_values_keep_their_rows(tmp_path: Path, name: str, values: str) -> None:
    """Keys become floats; where columns were sorted, what makes the vector that both read is."""
    publish_latent(tmp_path, name)
    with open_model_file(tmp_path) as file:
        kinds = [file.tensors[f"blk.0.attn_{part}_b.weight"].type_name for part in "kv"]
        assert kinds == ["F32", values]
        beside = {name.rpartition(".")[2] for name in file.tensors if "_b." in name}
        assert beside == {"weight"}


@pytest.mark.parametrize("name", ["gptq-act-order", slow("ct-nvfp4")])
def test_a_gguf_file_has_the_same_values(tmp_path: Path, name: str) -> None:
    publish_latent(tmp_path, name)
    convert_checkpoint(tmp_path, tmp_path / "out.gguf", "F32")
    with open_model_file(tmp_path) as folder, open_model_file(tmp_path / "out.gguf") as file:
        got, want = (
            Engine(read_model(f), [ReferenceBackend()], EngineConfig(n_ctx=64, cache_type="f32")).logits(TOKENS)
            for f in (file, folder)
        )
    assert ((got - want) ** 2).sum() / (want**2).sum() < 1e-9


def test_rows_that_are_not_those_of_all_heads(tmp_path: Path) -> None:
    publish_latent(tmp_path, "gptq-v1")
    few, _ = PUBLISHED["gptq-v1"].tensors(np.ones((320, 256), np.float32))
    edit_tensors(tmp_path, "self_attn.kv_b_proj", **few)
    with pytest.raises(ModelError, match=r"blk\.0\.attn_k_b\.weight': has shape \[320, 256\].*\[4, 256, 96\]"):
        open_model_file(tmp_path)
