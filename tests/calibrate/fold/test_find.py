"""What folds there are, and what they are made of: the table that papers give, from graphs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.calibrate.fold import find_folds
from octavo.calibrate.fold import rules as rules_of_ops
from octavo.calibrate.fold.find import Kind
from octavo.calibrate.fold.fold import ChannelFold
from octavo.calibrate.fold.rotation import RandomRotation
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.models import read_model
from tests.calibrate.fold.changes import apply, reorder
from tests.models.table import saved
from tests.models.tiny_checkpoints import TABLE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two query heads of 64 that share one head of keys and values."""
    path = tmp_path_factory.mktemp("llama") / "llama"
    saved(path, TABLE["llama"])
    return path


def folds_of(folder: Path, kind: Kind = "scales") -> dict[str, ChannelFold]:
    with open_model_file(folder) as file:
        return {fold.name: fold for fold in find_folds(read_model(file), kind)}


def parts(fold: ChannelFold) -> dict[str, str]:
    """What is done to the tensors of a fold, by their names in a layer."""
    return {p.tensor.removeprefix("blk.0."): f"{'/' if p.sign < 0 else '*'} {p.end}" for p in fold.parts}


def test_scales_of_a_layer(folder: Path) -> None:
    folds = folds_of(folder)
    assert list(folds) == [*(f"blk.{i}.{name}" for i in range(2) for name in (
        "attn_norm", "cache_k", "cache_v", "ffn_norm", "ffn_up")), "output_norm"]
    reads = "* columns"
    assert parts(folds["blk.0.attn_norm"]) == {
        "attn_norm.weight": "/ norm", "attn_q.weight": reads, "attn_k.weight": reads, "attn_v.weight": reads,
    }
    assert parts(folds["blk.0.ffn_up"]) == {"ffn_up.weight": "/ rows", "ffn_down.weight": reads}
    assert parts(folds["blk.0.cache_v"]) == {"attn_v.weight": "/ rows", "attn_output.weight": reads}
    assert parts(folds["blk.0.cache_k"]) == {"attn_k.weight": "/ rows", "attn_q.weight": "* rows"}
    assert parts(folds["output_norm"]) == {"output_norm.weight": "/ norm", "output.weight": reads}


def test_heads_that_share_values_share_scales_and_pairs_of_rope_too(folder: Path) -> None:
    folds = folds_of(folder)
    value = {part.tensor: part.index for part in folds["blk.0.cache_v"].parts}
    assert value["blk.0.attn_v.weight"].tolist() == list(range(64))
    assert value["blk.0.attn_output.weight"].tolist() == [*range(64)] * 2
    key = {part.tensor: part.index for part in folds["blk.0.cache_k"].parts}
    assert folds["blk.0.cache_k"].size == 32
    pairs = np.arange(64) // 2  # neighbours, as GGUF has rows of llama
    assert key["blk.0.attn_k.weight"].tolist() == pairs.tolist()
    assert key["blk.0.attn_q.weight"].tolist() == [*pairs] * 2


def test_scales_are_multiplied_into_columns_and_divided_out_of_rows(folder: Path) -> None:
    fold = folds_of(folder)["blk.0.cache_v"]
    v, o = np.ones((64, 128), np.float32), np.ones((128, 128), np.float32)
    scales = np.arange(1, 65)
    changed = apply(fold, scales, {"blk.0.attn_v.weight": v, "blk.0.attn_output.weight": o, "other": v})
    assert set(changed) == {"blk.0.attn_v.weight", "blk.0.attn_output.weight"}
    np.testing.assert_array_equal(changed["blk.0.attn_v.weight"][:, 0], np.float32(1 / scales))
    np.testing.assert_array_equal(changed["blk.0.attn_output.weight"][0], np.tile(np.float32(scales), 2))


def test_an_order_moves_all_copies_of_a_channel(folder: Path) -> None:
    fold = folds_of(folder, "orders")["blk.0.cache_v"]
    v, o = np.arange(64.0)[:, None] * np.ones(128), np.ones((128, 1)) * np.arange(128.0)
    order = np.random.default_rng(0).permutation(64)
    tensors = {"blk.0.attn_v.weight": v.astype(np.float32), "blk.0.attn_output.weight": o.astype(np.float32)}
    changed = reorder(fold, order, tensors)
    assert changed["blk.0.attn_v.weight"][:, 0].tolist() == order.tolist()
    assert changed["blk.0.attn_output.weight"][0].tolist() == [*order, *(order + 64)]


def test_channels_of_several_heads_do_not_mix(tmp_path: Path) -> None:
    saved(tmp_path, TABLE["glm4-odd"])  # three heads of 48 values
    fold = folds_of(tmp_path, "orders")["blk.0.cache_v"]
    assert [np.flatnonzero(fold.blocks == block).tolist() for block in range(3)] == np.arange(144).reshape(
        3, 48
    ).tolist()


def test_an_op_without_a_rule_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(rules_of_ops.SCALES, "swiglu")
    with pytest.raises(ModelError, match="architecture llama: op swiglu has no rule of what its channels may become"):
        folds_of(folder)


@pytest.mark.parametrize("n", [1, 3, 8, 80, 96])
def test_rotations_are_orthogonal(n: int) -> None:
    for mean in (False, True):
        q = RandomRotation.random(n, np.random.default_rng(n), mean=mean).turn(np.eye(n))
        np.testing.assert_allclose(q @ q.T, np.eye(n), atol=1e-12)
        if mean:
            np.testing.assert_allclose(np.ones(n) @ q, np.ones(n), atol=1e-12)
        elif n == 8:
            np.testing.assert_allclose(np.abs(q), 8**-0.5)
