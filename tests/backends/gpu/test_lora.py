"""Adapters on the GPU backend, its kernels interpreted: what merged weights compute, a prompt at once and by token."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.lora_adapters import with_adapters
from tests.models.adapters import factors, merged_folder, modules_of, write_peft
from tests.models.table import TOKENS, error, saved
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

FEW = 3


@pytest.mark.parametrize("name", ["llama", slow("phi3"), slow("qwen3moe")])
def test_merged_weights(name: str, tmp_path: Path) -> None:
    saved(tmp_path / "hf", TABLE[name])
    modules = {m: factors(n, k, seed=i) for i, (m, (n, k)) in enumerate(modules_of(tmp_path / "hf").items())}
    adapters = ((str(write_peft(tmp_path / "peft", modules)), 1.0),)

    def engine(file: GGUFFile, adapted: bool, backend: GpuBackend | ReferenceBackend) -> Engine:
        model = with_adapters(read_model(file), adapters if adapted else ())
        return Engine(model, [backend], EngineConfig(n_ctx=64, cache_type="f32", strict=True))

    with open_model_file(merged_folder(tmp_path / "hf", tmp_path / "m", modules)) as merged:
        want = engine(merged, False, ReferenceBackend()).logits(TOKENS[:FEW])
    with open_model_file(tmp_path / "hf") as folder:
        e = engine(folder, True, GpuBackend())
        assert error(e.logits(TOKENS[:FEW]), want) < 1e-5
        sequence = Sequence()
        rows = [e.step([Feed(sequence, [token])])[0] for token in TOKENS[:FEW]]
        assert error(np.stack(rows), want) < 1e-5
