"""CONTRIBUTING's "Add a model", followed with an architecture of feed-forward layers only."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import ARCHITECTURES, Architecture, read_model
from octavo.models.shared import layers
from octavo.models.shared.hparams import Hyperparams, read_shared
from octavo.models.shared.weights import Tensors, Weights
from octavo.runtime.engine.engine import Engine, EngineConfig

V, D, F = 48, 32, 64


def tensors(hp: Hyperparams) -> Tensors:
    return layers.model_tensors(hp, layers.ffn_tensors(hp))


def build(g: GraphBuilder, hp: Hyperparams, w: Weights) -> Node:
    x = g.get_rows(w["token_embd"], g.tokens)
    for i in range(hp.n_layer):
        b = w.block(i)
        x = g.add(x, layers.ffn(g, b, g.rms_norm(x, b["ffn_norm"], hp.eps)))
    return layers.logits(g, hp, w, x)


ARCH = Architecture(
    name="toy", hparams=partial(read_shared, has_experts=False), tensors=tensors, build=build, classes={}, names={}
)


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (V, D), "output_norm": (D,), "output": (V, D), "blk.0.ffn_norm": (D,),
              "blk.0.ffn_gate": (F, D), "blk.0.ffn_up": (F, D), "blk.0.ffn_down": (D, F)}
    return {f"{n}.weight": rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.fixture
def path(tmp_path: Path, weights: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(ARCHITECTURES, "toy", ARCH)
    keys = {"block_count": 1, "context_length": 16, "embedding_length": D, "feed_forward_length": F,
            "attention.head_count": 2, "attention.layer_norm_rms_epsilon": 1e-5}
    write_gguf(tmp_path / "toy.gguf", "toy", {f"toy.{k}": v for k, v in keys.items()}, weights)
    return tmp_path / "toy.gguf"


def norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w


def test_model_runs(path: Path, weights: dict[str, np.ndarray]) -> None:
    w = {name.removesuffix(".weight"): v.astype(np.float64) for name, v in weights.items()}
    ids = [3, 0, 47]
    x = w["token_embd"][ids]
    h = norm(x, w["blk.0.ffn_norm"])
    gate = h @ w["blk.0.ffn_gate"].T
    x = x + (gate / (1 + np.exp(-gate)) * (h @ w["blk.0.ffn_up"].T)) @ w["blk.0.ffn_down"].T
    want = norm(x, w["output_norm"]) @ w["output"].T
    with GGUFFile.open(path) as file:
        got = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=16)).logits(ids)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_unlisted_model_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ARCHITECTURES, "toy")
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match="can't run architecture 'toy' yet"):
        read_model(file)
