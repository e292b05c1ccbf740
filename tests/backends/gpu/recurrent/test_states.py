"""Models whose layers have states, with layers on a GPU and others on the CPU, kernels interpreted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.gpu import GpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.sampling.sampler import SamplingParams
from tests.runtime.engine.test_core import request, run
from tests.runtime.stateful import SMALL, write
from tests.sampling import slow

TOKENS = np.random.default_rng(0).integers(0, 300, 40).tolist()
LONG = [*TOKENS, *TOKENS, *TOKENS, *TOKENS]


@pytest.mark.parametrize("name", [name if name == "qwen3.5-9b" else slow(name) for name in SMALL])
@pytest.mark.parametrize("layers", [1, slow(2), slow("all")])
def test_layers_on_both(name: str, layers: int, tmp_path: Path) -> None:
    """A state lies where its layer does: prompts, replies, and a prompt that goes on with a state that was kept."""
    model = read_model(GGUFFile.open(write(name, tmp_path / "small.gguf")))
    config = EngineConfig(n_ctx=256, n_batch=64, n_outputs=64, cache_type="f32", gpu_layers=layers)
    parted = Engine(model, [GpuBackend(), CpuBackend(threads=1)], config)
    assert parted.gpu_layers == (model.hparams.n_layer if layers == "all" else layers)
    whole = Engine(model, [ReferenceBackend()], EngineConfig(n_ctx=256, n_batch=64, n_outputs=64, cache_type="f32"))
    found, want = parted.logits(TOKENS), whole.logits(TOKENS)
    assert np.abs(found - want).max() < 5e-4 * np.abs(want).max()
    core = EngineCore(parted)
    first, again = (request([*LONG, i], 3, params=SamplingParams(temperature=0)) for i in (1, 2))
    run(core, first)
    run(core, again)
    assert (first.cached, again.cached) == (0, 128)
    alone = [
        run(EngineCore(whole), request(r.prompt, 3, params=SamplingParams(temperature=0)))[0] for r in (first, again)
    ]
    assert [list(first.output_tokens), list(again.output_tokens)] == alone
