"""Whole models with weights of rows on the CPU backend alone, held to the reference backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface import SCHEMES, open_model_file
from octavo.models import read_model
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.backends.row_products import nmse
from tests.convert.folders import save
from tests.models.checkpoints import CASES, VOCAB
from tests.sampling import some

TOKENS = np.random.default_rng(7).integers(0, VOCAB, 21).tolist()


@pytest.mark.few(1)
@pytest.mark.parametrize("case", some(["llama", "qwen2", "qwen3"], 1))
@pytest.mark.parametrize("scheme", some(SCHEMES, 2))
def test_prompt_and_token_by_token(tmp_path: Path, scheme: str, case: str) -> None:
    save(tmp_path / "hf", CASES[case])
    quantize_checkpoint(tmp_path / "hf", tmp_path / "out", scheme)
    config = EngineConfig(n_ctx=64, strict=True)
    with open_model_file(tmp_path / "out") as file:
        reference = ReferenceBackend(quantize_activations=True)
        expected = Engine(read_model(file), [reference], EngineConfig(n_ctx=64)).logits(TOKENS)
        engine = Engine(read_model(file), [CpuBackend(threads=2)], config)
        at_once = engine.logits(TOKENS)
        sequence = Sequence()
        one_by_one = np.stack([engine.step([Feed(sequence, [t])])[0] for t in TOKENS])
    # a value in the middle of two codes may be either, and steps of e4m3 are coarse
    allowed = 3e-3 if scheme == "fp8" else 1e-3
    assert nmse(at_once, expected) < allowed
    assert nmse(one_by_one, expected) < allowed
