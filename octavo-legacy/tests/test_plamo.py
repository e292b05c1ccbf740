"""PLaMo 2: files as llama.cpp's converter writes them, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from legacy_cases import CASES as TABLE
from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo_legacy.plamo2 import Plamo2
from tests.models import test_plamo as plamo
from tests.models.table import TOKENS, error, logits, save_only, saved
from tests.models.test_hybrid import written
from tests.models.test_plamo import read
from tests.models.tiny_options import WINDOW

FEW = TOKENS[:20]
KEYS = "attention.head_count_kv"
LONG = np.random.default_rng(3).integers(0, 256, 700).tolist()


def test_files_without_windows(tmp_path: Path) -> None:
    """As converters write them: heads for each layer, no count of values that turn, no window and one rope."""
    case = TABLE["plamo2"]
    long = replace(case, options=case.options | {"attention_window_size": 128, "rope_local_theta": 1e4})
    want = saved(tmp_path / "want", long)
    left_out = ("attention.sliding_window", "attention.sliding_window_pattern", "rope.freq_base_swa")
    keys = {"attention.head_count": [0, 2, 0, 2], "rope.dimension_count": None, **dict.fromkeys(left_out)}
    path = written(tmp_path / "hf", tmp_path / "m.gguf", "plamo2", keys)
    with GGUFFile.open(path) as file:
        assert not any(name.endswith("ssm_dt_norm.weight") for name in file.tensors)
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def test_convolutions_of_mlx(tmp_path: Path) -> None:
    want, path = saved(tmp_path, TABLE["plamo2"]), tmp_path / "model.safetensors"
    tensors = load_file(path)
    moved = {name: x.swapaxes(1, 2).contiguous() for name, x in tensors.items() if name.endswith("conv1d.weight")}
    save_file(tensors | moved, path)
    with open_model_file(tmp_path) as file:
        assert error(logits(file, ReferenceBackend(), FEW, at_once=True), want[: len(FEW)]) < 1e-4


def long_engine(folder: Path) -> tuple[Any, Engine]:
    """A model and an engine of it with contexts of which windows keep little, in steps of 64 tokens."""
    case = TABLE["plamo2"]
    model = save_only(folder, replace(case, options=case.options | {"max_position_embeddings": 4096}))
    with open_model_file(folder) as file:
        config = EngineConfig(n_ctx=4096, n_batch=64, cache_type="f32", max_sequences=2)
        engine = Engine(read_model(file), [ReferenceBackend()], config)
        engine.load()
    assert engine.pool.states is not None
    return model, engine


def wanted(model: Any, tokens: list[int]) -> Any:
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0, -1].numpy()


def test_states_are_computed_again_beside_windows(tmp_path: Path) -> None:
    """After a step that does not count. What is before a window has no pages, and others keep theirs."""
    model, engine = long_engine(tmp_path)
    other, long = Sequence(), Sequence()
    engine.prefill(other, FEW)
    assert error(engine.prefill(long, LONG), wanted(model, LONG)) < 1e-4
    assert long.window.given_back > 0
    long.seen = len(long) - 1
    assert error(engine.step([Feed(long, [7])])[0], wanted(model, [*LONG, 7])) < 1e-4
    assert error(engine.step([Feed(other, [7])])[0], wanted(model, [*FEW, 7])) < 1e-4
    engine.pool.release(long)
    engine.pool.release(other)
    assert engine.pool.windows is not None
    assert engine.pool.windows.free == engine.pool.windows.n_pages


def test_a_fork_has_a_state_and_a_window_of_its_own(tmp_path: Path) -> None:
    """Computed again or not."""
    model, engine = long_engine(tmp_path)
    first = Sequence()
    engine.prefill(first, LONG)
    second = engine.pool.fork(first)
    second.seen = len(second) - 1
    found = [engine.step([Feed(first, [1]), Feed(second, [2])])]
    first.seen, second.seen = len(first) - 1, len(second) - 1
    found.append(engine.step([Feed(first, [5]), Feed(second, [6])]))
    with torch.no_grad():
        want = [model(torch.tensor([[*LONG, *more]])).logits[0, -2:].numpy() for more in ([1, 5], [2, 6])]
    assert error(np.stack(found, 1), np.stack(want)) < 1e-4


def test_which_layers_of_plamo_2_attend(tmp_path: Path) -> None:
    """The middle one of each group; of few, the last. Each token sees a window of tokens before it, beside itself."""
    save_only(tmp_path, TABLE["plamo2"])
    found: Plamo2 = read(tmp_path)
    assert found.attends == (False, True, False, True)
    assert [found.window(i) for i in range(4)] == [0, WINDOW + 1, 0, 0]
    assert found.rope_local.base == 5e3
    with pytest.raises(ModelError, match=r"blk\.1\.ssm_in\.weight': is missing"):
        read(tmp_path, mamba_step=8)
    found = read(tmp_path, mamba_step=2, full_attention_idx=None, rope_local_theta=None)
    assert [found.window(i) for i in range(4)] == [0, WINDOW + 1, 0, WINDOW + 1]
    assert found.rope_local.base == found.rope.base == 1e4
    assert read(tmp_path, full_attention_idx=[1, 3]).n_window is None


REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("plamo2", {"ssm.group_count": 1}, "ssm.group_count", "1 does not fit"),
    ("plamo2", {"ssm.time_step_rank": 3}, "ssm.inner_size", "a multiple of 3 heads"),
    ("plamo2", {"ssm.state_size": 8}, "tensor blk.0.ssm_x.weight", "contradicts the hyperparameters"),
    ("plamo2", {"attention.head_count": [2, 2, 0, 2]}, "attention.head_count", "2 of layer 0, which has 0 heads"),
    ("plamo2", {KEYS: [0, 1]}, KEYS, "has 2 values"),
    ("plamo2", {KEYS: [0, 1, 1, 1]}, "tensor blk.2.attn_qkv.weight", "is missing"),
    ("plamo2", {"attention.sliding_window_pattern": [True]}, "attention.sliding_window_pattern", "has 1 values"),
    ("plamo2", {"ssm.dt_b_c_rms": True}, "ssm.dt_b_c_rms", "does not compute"),
]


@pytest.mark.parametrize(("name", "keys", "field", "message"), REFUSED, ids=[c[2] for c in REFUSED])
def test_keys_that_do_not_fit(tmp_path: Path, name: str, keys: dict[str, Any], field: str, message: str) -> None:
    plamo.test_keys_that_do_not_fit(tmp_path, name, keys, field, message)


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("plamo2", {"mamba_enabled": False}, "mamba_enabled"),
    ("plamo2", {"mamba_step": 1}, "mamba_step"),
    ("plamo2", {"full_attention_idx": [4]}, "full_attention_idx"),
    ("plamo2", {"full_attention_idx": "3"}, "full_attention_idx"),
    ("plamo2", {"attention_window_size": 0}, "attention_window_size"),
    ("plamo2", {"linear_type": "fp8"}, "linear_type"),
    ("plamo2", {"image_token_id": 5}, "image_token_id"),
]


@pytest.mark.parametrize(("name", "values", "field"), CONFIGS, ids=[f"{c[0]}-{c[2]}" for c in CONFIGS])
def test_configurations_that_are_not_computed(tmp_path: Path, name: str, values: dict[str, Any], field: str) -> None:
    plamo.test_configurations_that_are_not_computed(tmp_path, name, values, field)


def test_no_checkpoint_is_written(tmp_path: Path) -> None:
    plamo.test_no_checkpoint_is_written(tmp_path, "plamo2")
