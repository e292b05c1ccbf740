"""Where static int8 scales of the KV cache cut off: what an error of a key or value does, and what is chosen by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo.calibrate.caches.clips import CacheClips, best_share, importance
from octavo.calibrate.caches.scales import tensors_of
from octavo.calibrate.statistics_run import collect_statistics
from octavo.errors import FileError
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.statistics import ChannelStatistics
from octavo.quantizers.statistics.statistics_file import Statistics
from tests.runtime import tiny

T, HEADS, KV_HEADS, DIM = 11, 4, 2, 8
RNG = np.random.default_rng(0)
Q, K, V = (RNG.standard_normal((T, heads, DIM)).astype(np.float32) for heads in (HEADS, KV_HEADS, KV_HEADS))
SINKS = np.array([0.5, -1, 2, 0], np.float32)
F64 = npt.NDArray[np.float64]


def attention(q: F32, k: F64, v: F64, attrs: dict[str, Any], sinks: F32 | None = None) -> F64:
    """By its definition, query by query [T, HEADS, DIM]."""
    out = np.zeros(q.shape)
    for i in range(len(q)):
        window = attrs.get("window", 0)
        first = i - i % -window if window < 0 else max(0, i + 1 - window) if window else 0
        for head in range(HEADS):
            x = k[first : i + 1, head // 2] @ q[i, head].astype(np.float64) * attrs["scale"]
            cap = attrs.get("cap", 0.0)
            if attrs.get("alibi"):  # of 4 heads
                x = x - 2.0 ** (-attrs["alibi"] * (head + 1) / 4) * np.arange(i - first, -1, -1)
            x = np.exp(cap * np.tanh(x / cap) if cap else x)
            total = x.sum() + (np.exp(float(sinks[head])) if sinks is not None else 0)
            out[i, head] = x / total @ v[first : i + 1, head // 2]
    return out


@pytest.mark.parametrize(
    ("attrs", "sinks"),
    [(attrs, None) for attrs in ({}, {"window": 4}, {"window": -4}, {"cap": 2.0}, {"alibi": 8.0})] + [({}, SINKS)],
)
def test_what_a_small_error_does_to_results(attrs: dict[str, Any], sinks: F32 | None) -> None:
    attrs, step = {"scale": 0.5, **attrs}, 1e-4
    of_keys, of_values = importance(Q, K, V, attrs, sinks)
    k, v = K.astype(np.float64), V.astype(np.float64)
    exact = attention(Q, k, v, attrs, sinks)
    for j, head, d in ((0, 0, 3), (4, 1, 7), (9, 0, 0), (10, 1, 2)):
        error = np.zeros_like(k)
        error[j, head, d] = step
        by_key = ((attention(Q, k + error, v, attrs, sinks) - exact) ** 2).sum() / step**2
        by_value = ((attention(Q, k, v + error, attrs, sinks) - exact) ** 2).sum() / step**2
        np.testing.assert_allclose(of_keys[j, head, d], by_key, rtol=2e-3, atol=1e-6)
        np.testing.assert_allclose(of_values[j, head], by_value, rtol=2e-3)


def test_what_few_look_at_is_cut_off() -> None:
    """One token is larger than the others: where it counts nothing is cut off, where it hardly counts it is."""
    x = RNG.uniform(-1, 1, (200, 16)).astype(np.float32)
    x[7] *= 1.6 / np.abs(x[7]).max()
    weights = np.ones((200, 1), np.float32)
    weights[7] = 200
    assert best_share(x, weights, 1.6) == 1
    weights[7] = 1e-6
    share = best_share(x, weights, 1.6)
    assert 0.6 <= share <= 0.65
    assert best_share(np.zeros((3, 4), np.float32), np.ones((3, 1), np.float32), 1.0) == 1


def test_results_of_attention_err_less() -> None:
    """With values of which few are large, of which the largest are cut off."""
    rng = np.random.default_rng(1)
    q = rng.standard_normal((200, HEADS, DIM)).astype(np.float32)
    k = rng.standard_normal((200, KV_HEADS, DIM)).astype(np.float32)
    v = rng.standard_t(6, (200, KV_HEADS, DIM)).astype(np.float32)
    attrs, clips, caches = {"scale": 0.3}, CacheClips(), dict[str, ChannelStatistics]()
    for name, x in (("cache_k", k), ("cache_v", v)):
        caches[name] = ChannelStatistics(KV_HEADS, DIM, name)
        caches[name].add(x)
    clips.add(("cache_k", "cache_v"), q, k, v, attrs, None)
    chosen = clips.chosen(caches)
    assert clips.chosen(caches) == {}
    largest = {name: np.abs(x).max(axis=(0, 2)) for name, x in (("cache_k", k), ("cache_v", v))}

    def error(most: dict[str, F32]) -> float:
        kept = []
        for name, x in (("cache_k", k), ("cache_v", v)):
            scale = most[name][:, None] / 127
            kept.append(np.clip(np.rint(x / scale), -127, 127) * scale)
        exact = attention(q, k.astype(np.float64), v.astype(np.float64), attrs)
        return float(((attention(q, kept[0], kept[1], attrs) - exact) ** 2).sum())

    assert any((chosen[name] < largest[name]).any() for name in largest)
    assert error(chosen) < error(largest)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Statistics of a tiny model with clips, and the model."""
    folder = tmp_path_factory.mktemp("clips")
    model, text = tiny.write(folder / "model.gguf", weights=tiny.tensors()), folder / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 10)
    collect_statistics(model, str(text), folder / "s", clips=True, samples=3, context=24, device="reference")
    return folder / "s", model


def test_in_statistics_and_in_the_model_s_file(made: tuple[Path, str]) -> None:
    path, model = made
    found = Statistics.load(path)
    assert found.clips.keys() == found.caches.keys() == {f"blk.{i}.cache_{kind}" for i in range(2) for kind in "kv"}
    with GGUFFile.open(model) as file:
        tensors = tensors_of(read_model(file), found)
    for name in found.clips:
        shares = tensors[f"{name}.clip"] / tensors[f"{name}.max"]
        assert (shares > 0.49).all()
        assert (shares <= 1).all()


def test_statistics_with_magnitudes_that_are_none(made: tuple[Path, str], tmp_path: Path) -> None:
    found = Statistics.load(made[0])
    found.clips["blk.1.cache_v"] = np.array([1, np.nan], np.float32)
    found.save(tmp_path / "s")
    with pytest.raises(FileError, match=r"blk\.1\.cache_v\.clip.*holds no magnitudes"):
        Statistics.load(tmp_path / "s")
