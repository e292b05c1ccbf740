"""What is compiled before weights are read: all kernels that steps of one sequence run, at once, and once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from octavo.backends.cpu import CpuBackend, stand_in
from octavo.backends.cpu import backend as cpu
from octavo.backends.cpu.device.memory import weights_of
from octavo.backends.cpu.weights import pack
from octavo.backends.reference import ReferenceBackend
from octavo.huggingface import open_model_file
from octavo.jit import parallel_compile, stored_code
from octavo.jit.compile import Kernel
from octavo.models import read_model
from octavo.quantizers import quantize_file
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.runtime.engine.kernels_ahead import compile_ahead
from octavo.runtime.sampling.top_k import BEST, CANDIDATES, LOGITS
from tests.runtime import tiny

ONE = {"outputs": 1, "sequences": 1, "boundaries": 2}


class Asked:
    """The kernels that were asked for together, a list for each time; they are compiled when they are run."""

    def __init__(self) -> None:
        self.times: list[list[Kernel]] = []

    def __call__(self, kernels: Iterable[Kernel], threads: int) -> None:
        self.times.append(list(kernels))


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What is asked for, of models that none is known of."""
    found = Asked()
    monkeypatch.setattr(stand_in, "compile_together", found)
    monkeypatch.setattr(cpu, "compile_together", found)
    monkeypatch.setattr(stored_code.Mark, "is_set", lambda mark: False)
    monkeypatch.setattr(stored_code.Mark, "set", lambda mark: None)
    return found


def engine(path: str | Path) -> Engine:
    return Engine(read_model(open_model_file(str(path))), [CpuBackend(threads=2)], EngineConfig(n_ctx=128))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("arch", "preset"), [("qwen3", "F16"), ("qwen3", "Q4_K_M"), ("qwen3", "Q8_0"), ("qwen3moe", "Q4_K_M")]
)
def test_nothing_is_left_to_compile_when_it_is_met(
    arch: str, preset: str, asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny.widen(monkeypatch)
    quantize_file(tiny.write(tmp_path / "f32.gguf", arch), tmp_path / "model.gguf", preset)
    packed: list[Kernel] = []
    make = pack.pack_kernel
    monkeypatch.setattr(pack, "pack_kernel", lambda *constants: packed.append(make(*constants)) or make(*constants))
    executor = engine(tmp_path / "model.gguf").load()
    for tokens in range(1, 100):
        for wanted in (LOGITS, BEST, CANDIDATES):
            executor.plan({"tokens": tokens, **ONE}, (wanted,))
    ahead, *later = asked.times
    met = {kernel for kernels in later for kernel in kernels}
    assert len(later) == 99 * 3
    assert met <= set(ahead)
    assert set(packed) <= set(ahead)
    assert bool(packed) == (preset != "F16")


def test_a_model_that_is_known_is_not_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, random_path: str
) -> None:
    marks: set[Path | None] = set()
    monkeypatch.setattr(stored_code.Mark, "is_set", lambda mark: mark._path in marks)
    monkeypatch.setattr(stored_code.Mark, "set", lambda mark: marks.add(mark._path))
    monkeypatch.setattr(stand_in, "compile_together", lambda kernels, threads: None)
    first = engine(random_path)
    for _ in range(2):
        compile_ahead(first.schedule, first.backends, first.limits)
    assert len(marks) == 1
    compile_ahead(first.schedule, first.backends, {**first.limits, "tokens": 8})
    other = engine(tiny.write(tmp_path / "other.gguf", "llama"))
    compile_ahead(other.schedule, other.backends, other.limits)
    assert len(marks) == 3


def test_a_backend_that_does_not_know_its_kernels_is_left_alone(random_path: str) -> None:
    model = read_model(open_model_file(random_path))
    made = Engine(model, [ReferenceBackend()], EngineConfig(n_ctx=64))
    compile_ahead(made.schedule, made.backends, made.limits)
    assert made.logits([1, 2]).shape == (2, tiny.N_VOCAB)


def test_a_stand_in_takes_no_memory(random_path: str) -> None:
    of = CpuBackend(threads=1)
    made = stand_in.StandInBackend(of, stored_code.Mark("x"))
    for tensor in weights_of(engine(random_path).graph.nodes):
        stored, real = made.load(tensor), of.load(tensor)
        assert type(stored) is type(real)
        if hasattr(real, "data") and not hasattr(real, "dtype"):
            assert stored.data.strides == (0,) * stored.data.ndim
            assert len(stored.data) == len(real.data)
    assert made.cache((1 << 40, 8, 64), "f16").shape == (1 << 40, 8, 64)


def test_what_takes_long_is_compiled_first(monkeypatch: pytest.MonkeyPatch) -> None:
    class Noted:
        def __init__(self, name: str, *, long: bool) -> None:
            self.name, self.long, self.is_there = name, long, False

        @property
        def address(self) -> int:
            made.append(self.name)
            return 0

    made: list[str] = []
    kernels = [Noted("a", long=False), Noted("b", long=True), Noted("c", long=False)]
    parallel_compile.compile_together(kernels, 1)  # type: ignore[arg-type]
    assert made == ["b", "a", "c"]


def test_a_model_whose_kernels_are_known_binds_no_step_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny.write(tmp_path / "tiny.gguf")
    engine(path).load()
    monkeypatch.setattr(stored_code.Mark, "is_set", lambda mark: True)
    again = engine(path)
    assert not again.load()._plans
    assert again.logits([1, 2]).shape[-1] == again.model.hparams.n_vocab
