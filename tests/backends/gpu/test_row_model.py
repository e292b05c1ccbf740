"""A whole model with weights of rows on the GPU backend, its kernels interpreted, held to the reference backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.backends.gpu import GpuBackend
from octavo.huggingface import SCHEMES, open_model_file
from octavo.models import read_model
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.backends.gpu.rounding_bounds import reference
from tests.backends.row_products import nmse
from tests.convert.folders import save
from tests.models.checkpoints import CASES

TOKENS = [5, 3, 60, 7, 21]


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "case"), [(s, "llama") for s in SCHEMES] + [("int8-w8a8", "qwen2")])
@pytest.mark.filterwarnings("ignore:overflow encountered")  # in sums for tokens beyond the last, which are not kept
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_prompt_and_token_by_token(tmp_path: Path, scheme: str, case: str) -> None:
    save(tmp_path / "hf", CASES[case])
    quantize_checkpoint(tmp_path / "hf", tmp_path / "out", scheme)
    expected, allowed = reference(tmp_path / "out", TOKENS)
    with open_model_file(tmp_path / "out") as file:
        engine = Engine(read_model(file), [GpuBackend()], EngineConfig(n_ctx=64, strict=True))
        at_once = engine.logits(TOKENS)
        one_by_one = engine.step([Feed(Sequence(), TOKENS[:1])])
    assert nmse(at_once, expected) < allowed
    assert nmse(one_by_one, expected[:1]) < allowed
