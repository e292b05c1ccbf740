"""Orders of channels: permutations within blocks, and less error where neighbours are alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import UsageError
from octavo.evals import calibrate
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.huggingface import open_model_file
from octavo.quantizers.calibration.statistics import Statistics
from octavo.quantizers.fold import Fold, Part, clustered_order, reorder, reordered, shuffle, sorted_order
from octavo.quantizers.fold.orders import clusters
from tests.models.table import TOKENS, error, logits, saved
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny
from tests.test_docs import BLOCK

DOCS = Path(__file__).parents[3] / "docs"
HEADS = Fold("two heads", 64, (
    Part("v", "rows", np.arange(64), 1), Part("o", "columns", np.arange(64), 1)), np.repeat([0, 1], 32))


def test_a_shuffled_model_computes_the_same(tmp_path: Path) -> None:
    saved(tmp_path, TABLE["qwen3"])
    with open_model_file(tmp_path) as file:
        shuffled = [shuffle(file, seed) for seed in (0, 0, 1)]
        rows = [f.tensor("blk.0.ffn_down.weight").data for f in shuffled]
        assert np.array_equal(rows[0], rows[1])
        assert not np.array_equal(rows[0], rows[2])
        want, got = (logits(f, ReferenceBackend(), TOKENS[:16], at_once=True) for f in (file, shuffled[0]))
    assert error(got, want) < 1e-4


def test_a_sorted_model_computes_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docs/calibration.md sorts one."""
    snippet = next(code for code in BLOCK.findall((DOCS / "calibration.md").read_text()) if "model-sorted.gguf" in code)
    monkeypatch.chdir(tmp_path)
    tiny.write(tmp_path / "model-f16.gguf")
    text = tiny.write_letters(tmp_path / "text.txt", 200)
    calibrate("model-f16.gguf", text, "stats.safetensors", samples=2, context=32, device="reference")
    exec(snippet, {})
    stats = Statistics.load("stats.safetensors")
    with open_model_file("model-f16.gguf") as file, open_model_file("model-sorted.gguf") as other:
        down = [dequantize(f.tensor("blk.0.ffn_down.weight")) for f in (file, other)]
        order = np.argsort(-stats.of("blk.0.ffn_down.weight").mean_square[0], kind="stable")
        stream = [np.flatnonzero((dequantize(other.tensor("token_embd.weight")) == column[:, None]).all(axis=0))[0]
                  for column in dequantize(file.tensor("token_embd.weight")).T]
        np.testing.assert_array_equal(down[1][stream], down[0][:, order])
        assert sorted(stream) == list(range(tiny.N_EMBD)) != stream
        want, got = (logits(f, ReferenceBackend(), TOKENS[:16], at_once=True) for f in (file, other))
    assert error(got, want) < 1e-4


def test_sorted_channels_lose_less_in_blocks() -> None:
    rng = np.random.default_rng(0)
    sizes = np.exp(rng.normal(0, 2, 64))
    o = (rng.normal(size=(16, 64)) * sizes).astype(np.float32)
    whole = Fold(HEADS.name, 64, HEADS.parts, np.zeros(64, np.int64))
    order = sorted_order(whole, sizes)
    assert np.all(np.diff(sizes[order]) <= 0)
    sorted_o = reordered(whole.parts[1], order, o)
    np.testing.assert_array_equal(sorted_o, o[:, order])
    # Of columns that are small, next to large ones nothing is left.
    small = sizes < np.median(sizes)
    assert lost(sorted_o)[small[order]].sum() < 0.1 * lost(o)[small].sum()


def lost(values: F32) -> F32:
    """Of each column in Q4_0, the sum of squares."""
    got = dequantize(quantize_reference(values, by_name("Q4_0")))
    out: F32 = np.square(got - values).sum(axis=0)
    return out


def test_orders_stay_in_their_blocks() -> None:
    rng = np.random.default_rng(1)
    low, high = -rng.random(64), rng.random(64)
    order, labels = clustered_order(HEADS, low, high, 4)
    for found in (order, sorted_order(HEADS, high)):
        assert sorted(found[:32]) == list(range(32))
        assert sorted(found[32:]) == list(range(32, 64))
    assert all(np.all(np.diff(part) >= 0) for part in (labels[:32], labels[32:]))
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
