"""PLaMo 3: older words of folders, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo.errors import ModelError, UsageError
from octavo.huggingface import open_model_file
from octavo.models import Hyperparams, read_model
from octavo.quantizers import quantize_checkpoint
from tests.convert.folders import edit
from tests.models.table import save_only
from tests.models.test_hostile import refused
from tests.models.test_hybrid import written
from tests.models.tiny_checkpoints import TABLE
from tests.models.tiny_options import WINDOW

REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("plamo3", {"attention.sliding_window_pattern": 0}, "attention.sliding_window_pattern", "0 is out of range"),
    ("plamo3", {"attention.key_length": 32, "attention.value_length": 32}, "rope.dimension_count", "64 is out of"),
    ("plamo3", {"expert_count": 4}, "expert_count", "4 experts in plamo3"),
]


@pytest.mark.parametrize(("name", "keys", "field", "message"), REFUSED, ids=[c[2] for c in REFUSED])
def test_keys_that_do_not_fit(tmp_path: Path, name: str, keys: dict[str, Any], field: str, message: str) -> None:
    refused(written(tmp_path / "hf", tmp_path / "m.gguf", name, keys), ModelError, field, message)


CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("plamo3", {"image_token_id": 5}, "image_token_id"),
    ("plamo3", {"attention_bias": True}, "attention_bias"),
    ("plamo3", {"scale_embedding": True}, "scale_embedding"),
    ("plamo3", {"hidden_activation": "gelu"}, "hidden_activation"),
    ("plamo3", {"window_size": None}, "sliding_window"),
    ("plamo3", {"sliding_window": [4, 8, None]}, "sliding_window"),
    ("plamo3", {"rope_scaling_factor": 8}, "original_max_position_embeddings"),
]


@pytest.mark.parametrize(("name", "values", "field"), CONFIGS, ids=[f"{c[0]}-{c[2]}" for c in CONFIGS])
def test_configurations_that_are_not_computed(tmp_path: Path, name: str, values: dict[str, Any], field: str) -> None:
    save_only(tmp_path, TABLE[name])
    edit(tmp_path, "config.json", **values)
    with pytest.raises(ModelError) as caught, open_model_file(tmp_path):
        pass
    assert caught.value.field == field


def read(folder: Path, **values: Any) -> Any:
    edit(folder, "config.json", **values)
    with open_model_file(folder) as file:
        return read_model(file).hparams


def test_words_of_plamo_3(tmp_path: Path) -> None:
    """Windows and bases of ropes as older folders and transformers have them, and a rope that is stretched."""
    save_only(tmp_path, TABLE["plamo3"])
    first: Hyperparams = read(tmp_path)
    assert first.rope_local is not None
    assert (first.n_window, first.windowed, first.rope.base, first.rope_local.base) == (
        WINDOW, (True, False, True), 1e6, 5e3
    )
    assert read(tmp_path, window_size=None, sliding_window=[WINDOW, None, WINDOW]) == first
    assert read(tmp_path, sliding_window=WINDOW, rope_theta=None, rope_global_theta=1e6) == first
    kinds = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 5e3},
    }
    assert read(tmp_path, rope_parameters=kinds, rope_local_theta=None) == first
    rope = read(tmp_path, rope_parameters=None, rope_scaling_factor=8, initial_context_length=32).rope
    assert (rope.kind, rope.factor, rope.n_ctx_original, rope.whole_pairs, rope.base) == ("yarn", 8.0, 32, False, 1e6)
    assert read(tmp_path).rope_local.kind == "none"


@pytest.mark.parametrize("name", ["plamo3"])
def test_no_checkpoint_is_written(tmp_path: Path, name: str) -> None:
    """A scheme would write norms as GGUF has them."""
    save_only(tmp_path / "hf", TABLE[name])
    with pytest.raises(UsageError, match="norms of its folders have other weights"):
        quantize_checkpoint(tmp_path / "hf", tmp_path / "out", "w8a16")
