"""Keys under an architecture's prefix: those of real files are taken, what would change results is refused by name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import ModelError, UsageError
from octavo.io.gguf import GGUFFile, TypedValue, ValueType
from octavo.models import read_model
from octavo.models.shared.keys import NEUTRAL, SHARED, UNUSED
from tests.models.checkpoints import CASES, Case, Write, make
from tests.models.test_against_transformers import TOKENS, engine, error
from tests.models.test_hostile import refused
from tests.runtime import tiny

REFUSED: dict[str, tuple[Any, str]] = {
    "attention.causal": (False, "is False, which Octavo does not compute qwen3 with (allowed: True)"),
    "attention.scale": (0.125, "is 0.125"),
    "attn_logit_softcapping": (50.0, "is 50.0"),
    "final_logit_softcapping": (30.0, "(allowed: 0)"),
    "logit_scale": (0.5, "is 0.5"),
    "residual_scale": (0.22, "(allowed: 0 or 1)"),
    "embedding_scale": (12.0, "is 12.0"),
    "expert_weights_scale": (2.5, "is 2.5"),
    "expert_gating_func": (2, "is 2"),
    "hidden_activation": ("gelu\n", "is gelu\\n"),
    "rope.scaling.yarn_ext_factor": (0.5, "is 0.5"),
    "expert_group_count": ([1, 1], "is array"),
    "rope.dimension_sections": ([16, 24, 24, 0], "is a key that"),
    "rope.freq_base_swa": (10000.0, "is a key that"),
    "classifier.pooling_type": (["yes", "no"], "is a key that"),
    "use_parallel_residual": (1, "is 1"),
}


@pytest.mark.parametrize("field", REFUSED)
def test_keys_that_change_results(tmp_path: Path, field: str) -> None:
    value, message = REFUSED[field]
    refused(tiny.write(tmp_path / "m.gguf", keys={f"qwen3.{field}": value}), ModelError, f"qwen3.{field}", message)


def test_keys_that_change_nothing(tmp_path: Path) -> None:
    """Every known key with a value that it may have, and any key of another prefix."""
    assert not SHARED & UNUSED.keys() | SHARED & NEUTRAL.keys() | UNUSED.keys() & NEUTRAL.keys()
    neutral = {f"qwen3.{key}": values[-1] for key, values in NEUTRAL.items()}
    unused = {f"qwen3.{key}": "any" for key in UNUSED}
    others = {"qwen3moe.attention.causal": False, "quantize.imatrix.file": "x", "qwen3": 1}
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf", keys=neutral | unused | others)) as file:
        assert read_model(file).hparams.n_layer == 2


@pytest.mark.parametrize(
    "field", ["attention.causal ", "my_note", "rope.scaling.of_mine", "attention.sliding_window_pattern "]
)
def test_a_key_that_llama_cpp_does_not_read_either_is_named(
    tmp_path: Path, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf", keys={f"qwen3.{field}": 6})) as file:
        assert read_model(file).hparams.n_layer == 2
    assert f"nothing here reads qwen3.{field}\n" in caplog.text


REAL = {
    "llama": """vocab_size context_length embedding_length block_count feed_forward_length rope.dimension_count
        attention.head_count attention.head_count_kv attention.layer_norm_rms_epsilon rope.freq_base expert_count
        expert_used_count attention.key_length attention.value_length rope.scaling.type rope.scaling.factor
        rope.scaling.original_context_length rope.scaling.attn_factor rope.scaling.finetuned rope.scale_linear
        tensor_data_layout attention.layer_norm_epsilon""",
    "qwen2": """block_count context_length embedding_length feed_forward_length attention.head_count
        attention.head_count_kv rope.freq_base attention.layer_norm_rms_epsilon rope.scaling.type rope.scaling.factor
        rope.scaling.original_context_length rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow""",
    "qwen3": "attention.key_length attention.value_length pooling_type rope.scaling.yarn_attn_factor",
    "qwen3moe": "expert_count expert_used_count expert_feed_forward_length expert_shared_feed_forward_length",
}
"""Keys that converters write: llama.cpp's, and Ollama's for models of its library."""


@pytest.mark.parametrize("arch", REAL)
def test_keys_of_converters_are_known(arch: str) -> None:
    assert set(REAL[arch].split()) <= SHARED | UNUSED.keys() | NEUTRAL.keys()


@pytest.mark.parametrize("keys", [{"rope.scaling.factor": 4.0}, {"rope.scale_linear": 4.0}])
def test_a_rope_factor_without_a_type_is_linear(gguf: Write, keys: dict[str, float]) -> None:
    case = CASES["llama-linear"]
    model = make(case)
    want = engine(gguf(case, model)).logits(TOKENS[:9])
    plain = CASES["llama"]
    got = engine(gguf(Case(plain.arch, plain.config, metadata=keys), model)).logits(TOKENS[:9])
    assert error(got, want) < 1e-6
    assert error(engine(gguf(plain, model)).logits(TOKENS[:9]), want) > 0.1
    none = Case(plain.arch, plain.config, metadata={**keys, "rope.scaling.type": "none"})
    assert error(engine(gguf(none, model)).logits(TOKENS[:9]), engine(gguf(plain, model)).logits(TOKENS[:9])) < 1e-6


def test_a_context_is_within_a_window_of_unknown_layers(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tiny.write(tmp_path / "m.gguf", keys={"qwen3.attention.sliding_window": 20})
    with caplog.at_level(logging.INFO, "octavo"), octavo.load(path, device="reference") as model:
        assert model.engine.n_ctx == 20
        assert f"{path}: a context of 20 tokens, its sliding window" in caplog.text
        assert model.logits(list(range(20))).shape == (20, tiny.N_VOCAB)
    with pytest.raises(UsageError, match=r"n_ctx is 21, but the model's sliding window of 20.*allowed: 1 to 20"):
        octavo.load(path, device="reference", n_ctx=21)
    for value in (0, 513):
        path = tiny.write(tmp_path / "m.gguf", keys={"qwen3.attention.sliding_window": value})
        with octavo.load(path, device="reference") as model:
            assert model.engine.n_ctx == 512
    minus = TypedValue(ValueType.I32, -1)
    refused(tiny.write(tmp_path / "m.gguf", keys={"qwen3.attention.sliding_window": minus}), ModelError, "-1 is out of")


GEMMA3: dict[str, tuple[Any, str]] = {
    "attention.sliding_window_pattern": ([True], "has 1 values (allowed: one for each of 2 layers)"),
    "attention.scale": (-1.0, "-1.0 is out of range"),
    "final_logit_softcapping": (float("nan"), "nan is out of range"),
    "rope.freq_base_swa": (0.5, "0.5 is out of range"),
    "attn_logit_softcapping": (50.0, "is 50.0, which Octavo does not compute gemma3 with"),
}


@pytest.mark.parametrize("field", GEMMA3)
def test_keys_of_gemma3s_own(tmp_path: Path, field: str) -> None:
    value, message = GEMMA3[field]
    keys = {"gemma3.attention.sliding_window": 8, f"gemma3.{field}": value}
    refused(tiny.write(tmp_path / "m.gguf", "gemma3", keys=keys), ModelError, f"gemma3.{field}", message)


@pytest.mark.parametrize("period", [0, -1])
def test_a_pattern_of_windows_has_a_period(tmp_path: Path, period: int) -> None:
    keys = {"gemma3.attention.sliding_window": 8}
    keys["gemma3.attention.sliding_window_pattern"] = TypedValue(ValueType.I32, period)  # type: ignore[assignment]
    path = tiny.write(tmp_path / "m.gguf", "gemma3", keys=keys)
    refused(path, ModelError, "gemma3.attention.sliding_window_pattern", f"{period} is out of range")


def test_phi3_needs_both_of_its_factors(tmp_path: Path) -> None:
    weights = tiny.tensors() | {"rope_factors_long.weight": np.ones(tiny.HEAD_DIM // 2, np.float32)}
    path = tiny.write(tmp_path / "m.gguf", "phi3", weights=weights)
    refused(path, ModelError, "tensor rope_factors_short.weight", "is missing")


def test_longrope_needs_its_factors(tmp_path: Path) -> None:
    keys = {"qwen3.rope.scaling.type": "longrope"}
    refused(tiny.write(tmp_path / "m.gguf", keys=keys), ModelError, "tensor rope_factors_long.weight", "is missing")
    weights = tiny.tensors() | {"rope_freqs.weight": np.ones(tiny.HEAD_DIM // 2, np.float32)}
    weights |= {f"rope_factors_{n}.weight": weights["rope_freqs.weight"] for n in ("long", "short")}
    refused(tiny.write(tmp_path / "m.gguf", weights=weights, keys=keys), ModelError, "'rope_freqs.weight'", "not part")
    del weights["rope_freqs.weight"]
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf", weights=weights, keys=keys)) as file:
        assert read_model(file).hparams.rope.kind == "longrope"
