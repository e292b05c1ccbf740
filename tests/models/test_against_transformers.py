"""Every architecture computes what transformers computes, prompt at once and token by token."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.backends.reference import ReferenceBackend
from octavo.formats import dequantize
from octavo.graph.fuse import RULES
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.models.checkpoints import CASES, VOCAB, Write, make
from tests.models.tiny_checkpoints import TABLE
from tests.sampling import slow

TOKENS = np.random.default_rng(7).integers(0, VOCAB, 90).tolist()
FEW = 24
"""Tokens that go one by one: past every window."""
FUSIONS = tuple(RULES)
QUANTIZES = ("rms_norm", "swiglu")


def engine(file: GGUFFile, backend: ReferenceBackend | None = None, **config: object) -> Engine:
    options = EngineConfig(n_ctx=128, cache_type="f32", **config)  # type: ignore[arg-type]
    return Engine(read_model(file), [backend or ReferenceBackend()], options)


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", [slow(name) if name in TABLE else name for name in CASES])
def test_logits_match(name: str, gguf: Write) -> None:
    case = CASES[name]
    model = make(case)
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].numpy()
    e = engine(gguf(case, model))
    assert error(e.logits(TOKENS), want) < 1e-4

    sequence = Sequence()
    rows = [e.step([Feed(sequence, [token])])[0] for token in TOKENS[:FEW]]
    assert error(np.stack(rows), want[:FEW]) < 1e-4


PLAIN_AND_EXPERTS = {("llama", "Q8_0"), ("qwen3moe", "Q4_K")}
STORED = [(name, kind) for name in ("llama", "qwen2", "qwen3", "qwen3moe") for kind in ("Q8_0", "Q4_K")]


@pytest.mark.parametrize(("name", "format_name"), [c if c in PLAIN_AND_EXPERTS else slow(c) for c in STORED])
def test_quantized_model_is_its_dequantized_one(name: str, format_name: str, gguf: Write) -> None:
    case = CASES[name]
    model = make(case)
    quantized = gguf(case, model, format_name)
    plain = {n: dequantize(quantized.tensor(n)) for n in quantized.tensors}
    dequantized = gguf(case, model, tensors=plain)
    assert error(engine(quantized).logits(TOKENS), engine(dequantized).logits(TOKENS)) < 1e-5


@pytest.mark.parametrize(
    ("name", "quantized"),  # by default one with biases, and one with norms of heads and experts
    [("qwen2", True), ("qwen3moe", False), *map(slow, [("qwen2", False), ("qwen3moe", True)])]
    + [slow((name, quantized)) for name in ("llama", "qwen3") for quantized in (False, True)],
)
def test_fused_graph_computes_the_same(name: str, quantized: bool, gguf: Write) -> None:
    case = CASES[name]
    file = gguf(case, make(case), "Q8_0")
    plain = engine(file, ReferenceBackend(quantize_activations=quantized))
    fused = engine(file, ReferenceBackend(fusions=FUSIONS, quantizes=QUANTIZES, quantize_activations=quantized))
    expected = {"mul_mat_concat", "mul_mat_add", "rope_set_rows"} | ({"rms_norm:q8_1"} if quantized else set())
    assert expected <= {n.title for n in fused.graph.nodes}
    assert len(fused.graph.nodes) < len(plain.graph.nodes)
    assert error(fused.logits(TOKENS), plain.logits(TOKENS)) < 1e-5


def test_quantized_activations_stay_near(gguf: Write) -> None:
    file = gguf(CASES["qwen3"], make(CASES["qwen3"]), "Q8_0")
    want = engine(file).logits(TOKENS)
    got = engine(file, ReferenceBackend(quantize_activations=True)).logits(TOKENS)
    rel = np.linalg.norm(got - want) / np.linalg.norm(want)
    assert 0 < rel < 0.03


def test_sequences_in_one_step_do_not_see_each_other(gguf: Write) -> None:
    file = gguf(CASES["qwen3"], make(CASES["qwen3"]))
    e = engine(file, max_sequences=3)
    parts = [TOKENS[:70], TOKENS[5:9], TOKENS[20:21]]
    sequences = [Sequence() for _ in parts]
    first = e.step([Feed(s, p) for s, p in zip(sequences, parts, strict=True)])
    second = e.step([Feed(s, [11, 12], outputs=2) for s in sequences])
    for i, part in enumerate(parts):
        alone = engine(file).logits([*part, 11, 12])
        assert error(first[i], alone[len(part) - 1]) < 1e-5
        assert error(second[2 * i : 2 * i + 2], alone[-2:]) < 1e-5
