"""Orders of channels: permutations within blocks; clusters of channels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.fold import shuffle
from octavo.calibrate.fold.find import random_order
from octavo.calibrate.fold.fold import ChannelFold, FoldPart
from octavo.calibrate.methods.channel_scales import clusters
from octavo.errors import UsageError
from octavo.huggingface import open_model_file
from tests.calibrate.fold.changes import reorder
from tests.models.table import TOKENS, error, logits, saved
from tests.models.tiny_checkpoints import TABLE

HEADS = ChannelFold("two heads", 64, (
    FoldPart("v", "rows", np.arange(64), 1), FoldPart("o", "columns", np.arange(64), 1)), np.repeat([0, 1], 32))


def test_a_shuffled_model_computes_the_same(tmp_path: Path) -> None:
    saved(tmp_path, TABLE["qwen3"])
    with open_model_file(tmp_path) as file:
        shuffled = [shuffle(file, seed) for seed in (0, 0, 1)]
        rows = [f.tensor("blk.0.ffn_down.weight").data for f in shuffled]
        assert np.array_equal(rows[0], rows[1])
        assert not np.array_equal(rows[0], rows[2])
        want, got = (logits(f, ReferenceBackend(), TOKENS[:16], at_once=True) for f in (file, shuffled[0]))
    assert error(got, want) < 1e-4


def test_orders_stay_in_their_blocks() -> None:
    rng = np.random.default_rng(1)
    order = random_order(HEADS, rng)
    assert sorted(order[:32]) == list(range(32))
    assert sorted(order[32:]) == list(range(32, 64))
    tensors = {"v": rng.random((64, 8), np.float32), "o": rng.random((8, 64), np.float32)}
    changed = reorder(HEADS, order, tensors)
    np.testing.assert_allclose(changed["o"] @ changed["v"], tensors["o"] @ tensors["v"], rtol=1e-5)


def test_clusters_that_lie_apart_are_found() -> None:
    rng = np.random.default_rng(2)
    truth = rng.integers(0, 5, 200)
    points = np.stack([-10.0 * truth, 7.0 * truth], axis=1) + rng.normal(0, 0.1, (200, 2))
    found = clusters(points, 5)
    assert len({(a, b) for a, b in zip(truth, found, strict=True)}) == 5
    assert clusters(points[:3], 8).max() < 3
    assert set(clusters(np.zeros((4, 2)), 2)) <= {0, 1}
    with pytest.raises(UsageError, match=r"0 clusters \(allowed: 1 or more\)"):
        clusters(points, 0)
