"""A whole model on the GPU backend, its kernels interpreted, held to the reference backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.formats.spec import F32
from octavo.graph.node import PAGE_SIZE, DType
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.engine.tensor_overrides import overrides
from tests.backends.row_products import nmse
from tests.models.checkpoints import CASES, make, metadata, stored
from tests.models.table import saved
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

TOKENS = [5, 3, 60, 7, 21]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_prompt_and_token_by_token(tmp_path: Path) -> None:
    case = CASES["qwen3"]
    model = make(case)
    write_gguf(tmp_path / "m.gguf", case.arch, metadata(case, model.config), stored(case, model, "Q8_0"))
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        reference = ReferenceBackend(quantize_activations=True)
        expected = Engine(read_model(file), [reference], EngineConfig(n_ctx=64)).logits(TOKENS)
        engine = Engine(read_model(file), [GpuBackend()], EngineConfig(n_ctx=64, strict=True))
        at_once = engine.logits(TOKENS)
        sequence = Sequence()
        one_by_one = np.stack([engine.step([Feed(sequence, [t])])[0] for t in TOKENS[:1]])
    scale = float((expected.astype(np.float64) ** 2).mean())
    assert float(((at_once - expected) ** 2).mean()) / scale < 1e-3
    assert float(((one_by_one - expected[:1]) ** 2).mean()) / scale < 1e-3


SMALL = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1,
         "vocab_size": 64, "sliding_window": 3}


@pytest.mark.parametrize("name", [slow("phi3"), "gemma3"])
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_windows(tmp_path: Path, name: str) -> None:
    """Logits of transformers, of small models whose window is shorter than the prompt."""
    options = CASES[name].options | SMALL | ({"head_dim": 32} if name == "gemma3" else {})
    case = replace(CASES[name], options=options, metadata=CASES[name].metadata | {"attention.sliding_window": 3})
    model = make(case)
    write_gguf(tmp_path / "m.gguf", case.arch, metadata(case, model.config), stored(case, model, "F32"))
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].numpy()
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        engine = Engine(read_model(file), [GpuBackend()], EngineConfig(n_ctx=64, strict=True, cache_type="f32"))
        got = engine.logits(TOKENS)
        decoded = engine.step([Feed(Sequence(), TOKENS[:1])])[0]
    assert float(np.abs(got - want).max() / np.abs(want).max()) < 1e-4
    assert float(np.abs(decoded - want[0]).max() / np.abs(want[0]).max()) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "placed"),
    [("qwen3", {"gpu_layers": 1}), ("qwen3moe", {"gpu_layers": 1}), ("qwen3moe", {"overrides": overrides(None, 1)}),
     ("qwen3moe", {"overrides": overrides(None, "all")})],
)
@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_some_layers_or_experts_on_the_cpu(tmp_path: Path, name: str, placed: dict[str, Any]) -> None:
    """Both backends quantize activations, each in a layout of its own, and keep the caches of their layers."""
    case = CASES[name]
    model = make(case)
    write_gguf(tmp_path / "m.gguf", case.arch, metadata(case, model.config), stored(case, model, "Q8_0"))
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        backends = [GpuBackend(), CpuBackend(threads=1)]
        alone = Engine(read_model(file), backends[1:], EngineConfig(n_ctx=64)).logits(TOKENS)
        engine = Engine(read_model(file), backends, EngineConfig(n_ctx=64, strict=True, **placed))
        assert {0, 1} == {split.backend for split in engine.schedule.splits}
        both = engine.logits(TOKENS)
    assert float(((both - alone) ** 2).mean()) / float((alone.astype(np.float64) ** 2).mean()) < 1e-3


OFF = {"f32": 1e-11, "f16": 1e-6, "q8_0": 1e-5, "int8": 1e-5, "fp8": 1e-4, "int4": 1e-3}
"""The most normalized squared error by cache type: numbers that lie between two codes become either."""


@pytest.mark.parametrize("cache_type", ["int8", *map(slow, ("f32", "f16", "q8_0", "fp8", "int4"))])
def test_latent_attention(tmp_path: Path, cache_type: DType) -> None:
    """DeepSeek V2: two prompts in a step, a token of each, and a prompt whose logits are all wanted."""
    case = TABLE["deepseek2-v2"]
    saved(tmp_path, replace(case, options={**case.options, "kv_lora_rank": 64, "qk_rope_head_dim": 32}))

    def logits(backend: Backend) -> F32:
        with open_model_file(tmp_path) as file:
            config = EngineConfig(n_ctx=64, max_sequences=3, cache_type=cache_type, strict=True)
            engine = Engine(read_model(file), [backend], config)
            sequences = [Sequence(), Sequence()]
            prompts = engine.step([Feed(s, TOKENS[: 3 + i]) for i, s in enumerate(sequences)])
            replies = engine.step([Feed(s, TOKENS[:1]) for s in sequences])
            return np.concatenate([prompts, replies, engine.logits(TOKENS)])

    assert nmse(logits(GpuBackend()), logits(ReferenceBackend())) < OFF[cache_type]


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "int8", "fp8", "int4"])
def test_a_page_is_copied_with_its_scales(cache_type: DType) -> None:
    cache = GpuBackend().cache((4 * PAGE_SIZE, 2, 32), cache_type)
    parts = [part for part in (cache.data, cache.scales) if part is not None]
    for part in parts:
        part.copy_(torch.arange(part.numel()).reshape(part.shape) % 100)
    want = [part.reshape(4, -1)[[0, 1, 2, 1]].clone() for part in parts]
    GpuBackend().copy_page(cache, 3, 1)
    for part, expected in zip(parts, want, strict=True):
        assert torch.equal(part.reshape(4, -1), expected)
