"""CONTRIBUTING's "Add a model", followed with an architecture that does not exist: one file, found by its name."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelError
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import dense, read_model
from octavo.models.families import own_modules
from octavo.runtime.engine.engine import Engine, EngineConfig

TOY = '''"""Toy: norms before and behind, q and k normed, gated attention without rope, GeGLU, capped logits."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.decoder import GEGLU, SANDWICH_NORMS, Attention, Decoder
from octavo.models.shared.hparams import Key

ARCH = Architecture(
    name="toy-model",
    network=Decoder(
        mixer=Attention(qk_norm="heads", rope="none", gated=True), feed_forward=GEGLU, norms=SANDWICH_NORMS,
    ),
    keys=(Key("logit_cap", "final_logit_softcapping", "final_logit_softcapping", default=0.0),),
    classes={"ToyForCausalLM": lambda config: {}},
    names=names.SANDWICH_NORMS | names.ATTENTION | names.QK_NORMS | names.FFN | {"self_attn.gate_proj": "attn_gate"},
)
'''
V, D, F, H, SIZE, CAP = 48, 32, 64, 2, 16, 3.0


@pytest.fixture
def weights() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"token_embd": (V, D), "output_norm": (D,), "output": (V, D)} | {f"blk.0.{n}": s for n, s in {
        **{f"{n}_norm": (D,) for n in ("attn", "post_attention", "ffn", "post_ffw")},
        **{f"attn_{n}": (D, D) for n in ("q", "k", "v", "gate", "output")},
        "attn_q_norm": (SIZE,), "attn_k_norm": (SIZE,), "ffn_gate": (F, D), "ffn_up": (F, D), "ffn_down": (D, F),
    }.items()}
    return {f"{n}.weight": rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


@pytest.fixture
def path(tmp_path: Path, weights: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A GGUF file of the architecture, whose own file is in the family of dense ones."""
    assert len(TOY.splitlines()) <= 45
    (tmp_path / "toy_model.py").write_text(TOY)
    monkeypatch.setattr(dense, "__path__", [*dense.__path__, str(tmp_path)])
    own_modules.cache_clear()
    keys = {"block_count": 1, "context_length": 16, "embedding_length": D, "feed_forward_length": F,
            "attention.head_count": H, "attention.layer_norm_rms_epsilon": 1e-5, "final_logit_softcapping": CAP}
    write_gguf(tmp_path / "toy.gguf", "toy-model", {f"toy-model.{k}": v for k, v in keys.items()}, weights)
    yield tmp_path / "toy.gguf"
    sys.modules.pop("octavo.models.dense.toy_model", None)
    own_modules.cache_clear()


def norm(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w


def logits(w: dict[str, np.ndarray], ids: list[int]) -> np.ndarray:
    """Written out in float64."""
    b = {name.removeprefix("blk.0."): value for name, value in w.items()}
    x, n = w["token_embd"][ids], len(ids)
    h = norm(x, b["attn_norm"])
    q, k, v = ((h @ b[f"attn_{name}"].T).reshape(n, H, SIZE) for name in "qkv")
    q, k = norm(q, b["attn_q_norm"]), norm(k, b["attn_k_norm"])
    scores = np.einsum("qhd,khd->hqk", q, k) / SIZE**0.5 + np.triu(np.full((n, n), -np.inf), 1)
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    y = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v).reshape(n, D)
    y = y / (1 + np.exp(-(h @ b["attn_gate"].T)))
    x = x + norm(y @ b["attn_output"].T, b["post_attention_norm"])
    h = norm(x, b["ffn_norm"])
    gate = h @ b["ffn_gate"].T
    gate = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
    x = x + norm((gate * (h @ b["ffn_up"].T)) @ b["ffn_down"].T, b["post_ffw_norm"])
    return CAP * np.tanh(norm(x, w["output_norm"]) @ w["output"].T / CAP)


def test_model_runs(path: Path, weights: dict[str, np.ndarray]) -> None:
    ids = [3, 0, 47, 5, 5]
    want = logits({name.removesuffix(".weight"): v.astype(np.float64) for name, v in weights.items()}, ids)
    with GGUFFile.open(path) as file:
        engine = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=16, cache_type="f32"))
        np.testing.assert_allclose(engine.logits(ids), want, rtol=1e-4, atol=1e-4)


def test_unlisted_model_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "__path__", dense.__path__[:1])
    own_modules.cache_clear()
    with GGUFFile.open(path) as file, pytest.raises(ModelError, match="can't run architecture 'toy-model' yet"):
        read_model(file)


def test_the_recipe_says_it() -> None:
    """CONTRIBUTING.md has this architecture word for word."""
    recipe = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    code = TOY.split("\n\n", 1)[1].strip()
    assert textwrap.indent(code, "   ") in recipe
