"""Whole models on the CPU backend, held to the reference backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import NonFiniteError
from octavo.formats import QTensor, by_name
from octavo.formats.spec import F32
from octavo.graph.builder import CacheType
from octavo.graph.protocol import Backend
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.models.checkpoints import CASES, VOCAB, Case, make, metadata, stored
from tests.sampling import slow, some

TOKENS = np.random.default_rng(7).integers(0, VOCAB, 90).tolist()


def nmse(got: F32, want: F32) -> float:
    return float(((got - want) ** 2).sum() / (want.astype(np.float64) ** 2).sum())


class Files:
    """Tiny models of every architecture as GGUF files, each made once and open until the tests are done."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.stack = folder, ExitStack()
        self._open: dict[tuple[str, str], GGUFFile] = {}

    def get(self, name: str, format_name: str) -> GGUFFile:
        key = name, format_name
        if key not in self._open:
            case, model = CASES[name], make(CASES[name])
            self._open[key] = self.write(f"{name}-{format_name}", case, model, stored(case, model, format_name))
        return self._open[key]

    def write(self, file_name: str, case: Case, model: Any, kept: Mapping[str, QTensor]) -> GGUFFile:
        path = self.folder / f"{file_name}.gguf"
        write_gguf(path, case.arch, metadata(case, model.config), kept)
        return self.stack.enter_context(GGUFFile.open(path))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    made = Files(tmp_path_factory.mktemp("models"))
    with made.stack:
        yield made
        expected.cache_clear()


def cpu(file: GGUFFile, *, n_ctx: int = 192, n_batch: int = 512, sequences: int = 1, cache: CacheType = "f16",
        threads: int = 2) -> Engine:
    """The model on the CPU backend alone: whatever it lacked a kernel for would be an error."""
    config = EngineConfig(n_ctx=n_ctx, n_batch=n_batch, max_sequences=sequences, cache_type=cache, strict=True)
    return Engine(read_model(file), [CpuBackend(threads=threads)], config)


@cache
def expected(file: GGUFFile, quantized: bool, cache: CacheType = "f16") -> F32:
    """Logits [90, vocabulary] of the reference backend, its activations quantized or not."""
    backend: Backend = ReferenceBackend(quantize_activations=quantized)
    return Engine(read_model(file), [backend], EngineConfig(n_ctx=192, cache_type=cache)).logits(TOKENS)


def token_by_token(engine: Engine, tokens: list[int]) -> F32:
    sequence = Sequence()
    rows = [engine.step([Feed(sequence, [t])])[0] for t in tokens]
    engine.pool.release(sequence)
    return np.stack(rows)


@pytest.mark.parametrize("name", [slow(name) for name in CASES if name.startswith(("phi3", "gemma3"))])
def test_windows_and_ropes_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case, model = CASES[name], make(CASES[name])
    write_gguf(tmp_path / "m.gguf", case.arch, metadata(case, model.config), stored(case, model, "F32"))
    with torch.no_grad():
        want = model(torch.tensor([TOKENS])).logits[0].numpy()
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        got = cpu(file, n_ctx=128, cache="f32").logits(TOKENS)
    assert float(np.abs(got - want).max() / np.abs(want).max()) < 1e-4


@pytest.mark.parametrize("name", [slow(name) for name in CASES])
def test_architectures(name: str, files: Files) -> None:
    """Experts are chosen by a threshold that rounding may cross, so those models are held in F32 only."""
    plain = files.get(name, "F32")
    assert nmse(cpu(plain).logits(TOKENS), expected(plain, False)) < 1e-6
    assert nmse(token_by_token(cpu(plain), TOKENS), expected(plain, False)) < 1e-6
    if "expert_count" not in CASES[name].metadata:
        small = files.get(name, "Q8_0")
        assert nmse(cpu(small).logits(TOKENS), expected(small, True)) < 1e-3


FORMATS = ["F16", "BF16", "Q4_0", "Q5_1", "Q4_K", "Q6_K", "Q2_K", "IQ4_NL", "MXFP4"]


@pytest.mark.parametrize("format_name", some(FORMATS, 1))
def test_formats(format_name: str, files: Files) -> None:
    file = files.get("llama", format_name)
    engine = cpu(file)
    logits = engine.logits(TOKENS)
    floats = by_name(format_name).is_float
    assert nmse(logits, expected(file, not floats)) < (1e-6 if floats else 1e-3)
    assert nmse(token_by_token(engine, TOKENS), logits) < (1e-6 if floats else 1e-3)


@pytest.mark.parametrize(("cache", "tolerance"), [slow(("f32", 1e-9)), ("q8_0", 1e-3)])
def test_caches(cache: CacheType, tolerance: float, files: Files) -> None:
    file = files.get("llama", "F32")
    engine = cpu(file, cache=cache)
    assert nmse(engine.logits(TOKENS), expected(file, False, "f32")) < tolerance
    assert nmse(token_by_token(engine, TOKENS), expected(file, False, "f32")) < tolerance


@pytest.mark.parametrize("n_batch", [1, 7, 32, 64, 90])
def test_a_prompt_in_parts_gives_what_it_gives_at_once(n_batch: int, files: Files) -> None:
    """The parts before the last one want no logits."""
    file = files.get("llama", "F32")
    row = cpu(file, n_batch=n_batch).prefill(Sequence(), TOKENS)
    assert nmse(row, expected(file, False)[-1]) < 1e-6


@pytest.mark.parametrize("format_name", some(["F32", "Q4_K"], 1))
def test_sequences_together_give_what_each_gives_alone(format_name: str, files: Files) -> None:
    file = files.get("llama", format_name)
    together, alone = cpu(file, sequences=5), cpu(file)
    prompts = [TOKENS[:1], TOKENS[3:70], TOKENS[5:9], TOKENS[:80], TOKENS[20:36]]
    sequences = [Sequence() for _ in prompts]
    tolerance = 1e-9 if format_name == "F32" else 1e-3
    steps = [prompts, *([[t] for t in TOKENS[i : i + 5]] for i in range(4)), [TOKENS[:2], TOKENS[1:2]]]
    fed: list[list[int]] = [[] for _ in prompts]
    for step in steps:
        logits = together.step([Feed(s, tokens) for s, tokens in zip(sequences, step, strict=False)])
        for past, tokens, row in zip(fed, step, logits, strict=False):
            past.extend(tokens)
            assert nmse(row, alone.logits(past)[-1]) < tolerance


def test_threads_and_runs_do_not_matter(files: Files) -> None:
    file = files.get("llama", "Q4_K")
    first = cpu(file, threads=1).logits(TOKENS)
    for threads in (1, 2, 3, 7):
        engine = cpu(file, threads=threads)
        for _ in range(2):
            np.testing.assert_array_equal(engine.logits(TOKENS), first)


MATRICES = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]


@pytest.mark.few(4)
@pytest.mark.parametrize("format_name", some(["Q8_0", "F16", "Q4_K"], 1))
@pytest.mark.parametrize("matrix", MATRICES)
def test_nan_anywhere_is_an_error_and_never_an_answer(matrix: str, format_name: str, files: Files) -> None:
    case = CASES["llama"]
    model = make(case)
    kept = stored(case, model, format_name)
    tensor = kept[f"blk.1.{matrix}.weight"]
    raw = tensor.data.copy()
    raw[3, :2] = np.array([np.nan], np.float16).view(np.uint8)  # a value of F16, the scale of a block of the others
    kept[tensor.name] = QTensor(tensor.format, tensor.shape, raw, tensor.name)
    file = files.write(f"nan-{matrix}-{format_name}", case, model, kept)
    with pytest.raises(NonFiniteError):
        cpu(file).logits(TOKENS)


def test_other_formats_are_told_apart(files: Files) -> None:
    """What the tolerance allows is far less than what rounding the weights to 4 bits does."""
    assert nmse(cpu(files.get("llama", "Q4_K")).logits(TOKENS), expected(files.get("llama", "F32"), False)) > 1e-2


QUESTIONS = ["What is 12 + 35?", "What is the result of 5/0 in math?", "Compute 17 * 23.", "What is 15% of 80?",
             "100 - 37 =", "Is 91 prime?", "hello", "Divide 1000 by 8", "What is 3.5 + 4.25?"]


@pytest.mark.parametrize("questions", [QUESTIONS[:1], slow(QUESTIONS[1:])])
def test_the_demo_says_what_the_reference_says(questions: list[str]) -> None:
    with (
        octavo.load("demo", device="cpu", n_ctx=512) as on_cpu,
        octavo.load("demo", device="reference", n_ctx=512) as reference,
    ):
        for question in questions:
            found, wanted = (m.generate(question, temperature=0.0, max_tokens=64) for m in (on_cpu, reference))
            assert "".join(found) == "".join(wanted)
