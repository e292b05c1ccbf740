"""A whole model with weights of rows on the GPU backend, its kernels interpreted, held to the reference backend."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface import SCHEMES, open_model_file
from octavo.models import read_model
from octavo.quantizers.checkpoint import quantize_checkpoint
from octavo.runtime.batch import Feed
from octavo.runtime.engine import Engine, EngineConfig
from octavo.runtime.kv_cache import Sequence
from tests.convert.folders import save
from tests.models.checkpoints import CASES

TOKENS = [5, 3, 60, 7, 21]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("scheme", "case"), [(s, "llama") for s in SCHEMES] + [("int8-w8a8", "qwen2")])
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_prompt_and_token_by_token(tmp_path: Path, scheme: str, case: str) -> None:
    save(tmp_path / "hf", CASES[case])
    quantize_checkpoint(tmp_path / "hf", tmp_path / "out", scheme)
    with open_model_file(tmp_path / "out") as file:
        reference = ReferenceBackend(quantize_activations=True)
        expected = Engine(read_model(file), [reference], EngineConfig(n_ctx=64)).logits(TOKENS)
        engine = Engine(read_model(file), [GpuBackend()], EngineConfig(n_ctx=64, strict=True))
        at_once = engine.logits(TOKENS)
        one_by_one = engine.step([Feed(Sequence(), TOKENS[:1])])
    scale = float((expected.astype(np.float64) ** 2).mean())
    assert float(((at_once - expected) ** 2).mean()) / scale < 1e-3
    assert float(((one_by_one - expected[:1]) ** 2).mean()) / scale < 1e-3
