"""With `deterministic`, a token's numbers on a GPU are to the bit the same whatever other tokens are in the step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from octavo.backends import select
from octavo.backends.gpu import GpuBackend
from octavo.bench.cases import GROUPS, WEIGHTS, OpCase, executor
from octavo.formats.spec import AnyArray
from octavo.graph.node import DType
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.backends.cpu.test_same_numbers import Attention, run
from tests.models.checkpoints import CASES, make, metadata, stored
from tests.models.table import made_in
from tests.sampling import slow

BACKEND = GpuBackend(deterministic=True)


@pytest.fixture(autouse=True)
def sums_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dots of floats whose sums have one order in each row, which those of NumPy's library have not."""
    plain = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if not np.issubdtype(d.data.dtype, np.floating):
            return plain(self, a, b, d, *options)
        total = np.zeros_like(d.data)
        for k in range(a.data.shape[-1]):
            total += a.data[..., k, None].astype(total.dtype) * b.data[..., k, None, :].astype(total.dtype)
        return TensorHandle(total + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


pytestmark = [
    pytest.mark.filterwarnings("ignore:overflow encountered"),  # in sums for tokens beyond the last, which are not kept
    pytest.mark.filterwarnings("ignore:invalid value encountered"),
]


KINDS: list[DType] = ["f16", "f32", "q8_0", "int8", "fp8"]
LATENT: list[tuple[DType, dict[str, float]]] = [
    *((kind, {"latent": True, "value_dim": 32}) for kind in KINDS), ("int4", {"latent": True, "value_dim": 64})
]
ATTENTION: list[tuple[DType, dict[str, float]]] = [
    *((kind, attrs) for attrs in ({}, {"window": 40}, {"cap": 5.0}) for kind in KINDS),
    *LATENT,
]


@pytest.mark.parametrize(("kind", "attrs"), [ATTENTION[0], *map(slow, ATTENTION[1:])])
def test_attention_in_prompts_and_replies(kind: DType, attrs: dict[str, float]) -> None:
    attention = Attention(kind, backend=BACKEND, length=65, **attrs)  # type: ignore[arg-type]
    positions = [63, 64]  # in two pages
    alone = np.concatenate([attention.at([p]) for p in positions])
    np.testing.assert_array_equal(attention.at(positions), alone)
    np.testing.assert_array_equal(attention.at(positions, apart=True), alone)


@pytest.mark.parametrize("kind", ["int8", slow("fp8")])
@pytest.mark.parametrize("first", [62, 63])  # in one page, and in two
@pytest.mark.parametrize("latent", [False, True])
def test_larger_values_that_a_token_does_not_see(kind: DType, first: int, latent: bool) -> None:
    attention = Attention(kind, latent, backend=BACKEND, length=65)
    attention.x[first + 1] *= 7
    alone = np.concatenate([attention.at([p]) for p in (first, first + 1)])
    np.testing.assert_array_equal(attention.at([first, first + 1]), alone)


def test_products() -> None:
    case = OpCase("mul_mat", 33, {"n": 16, "k": 256}, ("Q4_K",))
    built = case.build()
    ((inputs, _),) = built.steps
    plans = executor(built, [BACKEND])

    def rows(at: slice) -> AnyArray:
        given = {name: value[at] for name, value in inputs.items()}
        (out,) = plans.run(given, {"tokens": len(given["x"])})
        return np.array(out)

    together = rows(slice(0, 33))
    for at in (slice(0, 1), slice(28, 33)):
        np.testing.assert_array_equal(rows(at), together[at])


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WEIGHTS, *GROUPS])
def test_products_of_each_format(name: str) -> None:
    run(OpCase("mul_mat", 33, {"n": 48, "k": 512}, (name,)), BACKEND)


TEXTS = [np.random.default_rng(n).integers(0, 256, n).tolist() for n in (9, 6, 21, 70)]
STEPS = (
    ((0, 5), (1, 1)), ((0, 1), (2, 17)), ((1, 1), (0, 1), (2, 1), (3, 65)),
    *[((0, 1), (1, 1), (2, 1), (3, 1))] * 2, ((2, 1), (1, 2), (3, 3)),
)
"""Which text goes on in a step, and by how many tokens. The fifth step on a card replays what the fourth was."""


def check(file: GGUFFile, cache_type: DType) -> None:
    """Texts divided among steps have the logits that they have alone and at once."""
    config = EngineConfig(n_ctx=128, max_sequences=4, cache_type=cache_type, strict=True)
    engine = Engine(read_model(file), [BACKEND], config)
    alone = [engine.logits(text) for text in TEXTS]
    sequences = [Sequence() for _ in TEXTS]
    for number, step in enumerate(STEPS):
        starts = {i: len(sequences[i]) for i, _ in step}
        rows = engine.step([Feed(sequences[i], TEXTS[i][starts[i] : starts[i] + n]) for i, n in step])
        for (i, n), row in zip(step, rows, strict=True):
            np.testing.assert_array_equal(row, alone[i][starts[i] + n - 1], err_msg=f"step {number}, text {i}")
    assert [len(s) for s in sequences] == [len(t) for t in TEXTS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "cache_type"),
    [("qwen3", "Q4_K", "f16"), ("qwen3", "Q8_0", "int8"), ("gemma3", "Q6_K", "fp8")],
)
def test_logits_of_quantized_models(tmp_path: Path, name: str, kind: str, cache_type: DType) -> None:
    case = CASES[name]
    model = make(case)
    write_gguf(tmp_path / "m.gguf", case.arch, metadata(case, model.config), stored(case, model, kind))
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        check(file, cache_type)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2moe", "qwen35", "deepseek2-v2"])
def test_logits_with_states_and_latent_attention(tmp_path: Path, name: str) -> None:
    with made_in(tmp_path) as made:
        check(made[name].file, "f16")


def test_what_is_asked_for_reaches_the_backend() -> None:
    chosen = [select("gpu", deterministic=wanted)[0] for wanted in (False, True)]
    assert [backend.deterministic for backend in chosen if isinstance(backend, GpuBackend)] == [False, True]
