"""docs/engine_in_one_file.py computes what the reference backend computes, and says what `octavo run` says."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.reference import ReferenceBackend
from octavo.data import demo_model_path
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.activation import activation
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers import quantize_file
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.engine_config import EngineConfig
from tests.limits import HANG_S
from tests.runtime import tiny

FILE = Path(__file__).parents[1] / "docs/engine_in_one_file.py"
QUESTIONS = ["What is the result of 5/0 in math?", "What is 12 times 7?", "It's  3.25 km_\n\n in  feet?  Or é"]


@pytest.fixture(scope="module")
def one_file() -> Any:
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(FILE.parent)
        patched.setattr(sys, "dont_write_bytecode", True)  # a folder of the documentation
        return importlib.import_module(FILE.stem)


def logits(one_file: Any, path: Path | str, tokens: list[int], *, apart: int) -> np.ndarray:
    """Logits of all tokens, the first of which are computed together and the last ones, `apart`, one by one; keys and
    values are float32, since rounding turns differences of a float into those of float16."""
    model = one_file.Model(*one_file.read_gguf(path))
    cache, whole = model.cache(len(tokens)), len(tokens) - apart
    cache.k, cache.v = cache.k.astype(np.float32), cache.v.astype(np.float32)
    rows = [model.forward(tokens[:whole], cache), *(model.forward([t], cache) for t in tokens[whole:])]
    return np.concatenate(rows)


def expected(path: Path | str, tokens: list[int], *, quantized: bool = False) -> np.ndarray:
    backend = ReferenceBackend(quantize_activations=quantized)
    with GGUFFile.open(path) as file:
        found: np.ndarray = Engine(read_model(file), [backend], EngineConfig(n_ctx=64, cache_type="f32")).logits(tokens)
    return found


def test_it_needs_numpy_alone() -> None:
    nodes = list(ast.walk(ast.parse(FILE.read_text("utf-8"))))
    names = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    assert {name.partition(".")[0] for name in names} - set(sys.stdlib_module_names) == {"numpy"}


def test_logits_of_the_demo(one_file: Any) -> None:
    model = octavo.load("demo", device="reference", n_ctx=64)
    tokens = model.tokenizer.encode(QUESTIONS[0])
    want = expected(demo_model_path(), tokens)
    got = logits(one_file, demo_model_path(), tokens, apart=3)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("preset", ["Q8_0", "Q4_K_M"])
def test_logits_of_a_quantized_demo(one_file: Any, preset: str, tmp_path: Path) -> None:
    path = tmp_path / "demo.gguf"
    quantize_file("demo", path, preset)
    tokens = one_file.Tokenizer(one_file.read_gguf(path)[0]).chat(QUESTIONS[0])
    want = expected(path, tokens, quantized=True)
    got = logits(one_file, path, tokens, apart=1)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-5 * np.abs(want).max())
    assert np.square(got - want).mean() / np.square(want).mean() < 1e-4, "codes tip where two are as near"
    assert (got.argmax(1) == want.argmax(1)).mean() > 0.95


@pytest.mark.parametrize("name", ["Q8_0", "Q4_K", "Q6_K"])
def test_products_of_codes(one_file: Any, name: str) -> None:
    rng = np.random.default_rng(0)
    stored = quantize_reference(rng.standard_normal((7, 512)).astype(np.float32), by_name(name))
    w = one_file.load(one_file.Tensor(stored.format.gguf, stored.shape, stored.data))
    np.testing.assert_allclose(w.rows(np.arange(7)), dequantize(stored), rtol=1e-6, atol=1e-6)
    x = rng.standard_normal((5, 512)).astype(np.float32)
    q8_1 = activation("q8_1").quantize
    assert q8_1 is not None
    want = q8_1(x).dequantize().astype(np.float64) @ dequantize(stored).astype(np.float64).T
    np.testing.assert_allclose(one_file.matmul(x, w), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("arch", ["llama", "qwen2", "qwen3"])
def test_logits_of_other_architectures(one_file: Any, arch: str, tmp_path: Path) -> None:
    weights = tiny.tensors(arch)
    if arch == "qwen2":
        rng = np.random.default_rng(1)
        weights |= {
            name.replace("weight", "bias"): rng.standard_normal(len(weights[name])).astype(np.float32)
            for name in weights if name.endswith(("attn_q.weight", "attn_k.weight", "attn_v.weight"))
        }
    path = tiny.write(tmp_path / "tiny.gguf", arch, weights=weights)
    tokens = [5, 1, 7, 7, 2, 9, 30, 3]
    want = expected(path, tokens)
    np.testing.assert_allclose(logits(one_file, path, tokens, apart=2), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("question", QUESTIONS)
def test_tokens_and_text(one_file: Any, question: str) -> None:
    tokenizer = one_file.Tokenizer(one_file.read_gguf(demo_model_path())[0])
    model = octavo.load("demo", device="reference", n_ctx=64)
    assert tokenizer.encode(question) == model.tokenizer.encode(question)
    assert tokenizer.decode(tokenizer.encode(question)) == question
    chat = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.chat(question) == model.tokenizer.encode(chat)


@pytest.mark.few(1)
@pytest.mark.parametrize("question", QUESTIONS[:2])
def test_the_greedy_text_is_that_of_octavo_run(question: str) -> None:
    def said(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], check=True, capture_output=True, timeout=HANG_S)
        return done.stdout.decode("utf-8")

    want = said("-m", "octavo", "run", "demo", question, "--device", "reference")
    assert len(want) > 10
    assert said(str(FILE), question) == want
    assert said(str(FILE), str(demo_model_path()), question) == want


def test_sampling(one_file: Any) -> None:
    shares = np.array([0.1, 0.4, 0.3, 0.15, 0.05])
    scores = np.log(shares)

    def drawn(**how: Any) -> set[int]:
        rng = np.random.default_rng(0)
        return {one_file.choose(scores, rng=rng, **({"temperature": 1.0, "top_k": 0, "top_p": 1.0} | how))
                for _ in range(200)}

    assert drawn(temperature=0.0) == {1}
    assert drawn() == {0, 1, 2, 3, 4}
    assert drawn(top_k=2) == {1, 2}
    assert drawn(top_p=0.6) == {1, 2}
    assert drawn(temperature=0.02) == {1}
