"""Counters of a GPU's kernels: what ncu prints, and what is made of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from octavo.backends.reference import ReferenceBackend
from octavo.bench import counters
from octavo.bench.counters import METRICS, SHARES, by_kernel, parse, read_counters, run_calls
from octavo.bench.gemm import measure
from octavo.cli import app
from octavo.errors import BackendError
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig

RANGE = "thread Domain:Push/Pop_Range:PL_Type:PL_Value:CLR_Type:Color:Msg_Type:Msg"


def printed(*kernels: tuple[int | None, str, list[str]]) -> str:
    """Lines as ncu 2025.3 prints them with `--csv --page raw --nvtx`, columns left out."""
    rows = [
        ["ID", "Process ID", RANGE, "Kernel Name", *METRICS.values(), *SHARES.values()],
        ["", "", "", "", "ns", "byte", "byte", *["inst"] * 4, "byte", *["%"] * 3],
    ]
    for i, (node, name, values) in enumerate(kernels):
        inside = "" if node is None else f'914  ""<default domain>:node {node}:none:none:none:none:none:none"" '
        rows.append([str(i), "914", inside, name, *values])
    table = ["".join(f'"{cell}",' for cell in row)[:-1] for row in rows]
    return "\n".join(["==PROF== Connected to process 914", *table, "==PROF== Disconnected from process 914"])


@pytest.fixture
def engine(model: str) -> Iterator[Engine]:
    with GGUFFile.open(model) as file:
        yield Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64, n_batch=16))


def test_kernels_belong_to_nodes(engine: Engine) -> None:
    nodes = engine.graph.nodes
    products = [i for i, n in enumerate(nodes) if n.op == "mul_mat"][:2]
    text = printed(
        (
            products[0],
            "matvec_kernel",
            ["1,500", "4,000", "0", "2,000", "500", "100", "25", "9,000", "50.00", "80", "n/a"],
        ),
        (
            products[1],
            "matvec_kernel",
            ["500", "1,000", "1,000", "2,000", "1,500", "100", "75", "1,000", "10", "40", "5"],
        ),
        (None, "another_kernel", ["9"] * 11),
    )
    (row,) = by_kernel(parse(text.splitlines()), nodes)
    weights = [next(i.tensor for i in nodes[p].inputs if i.op == "weight") for p in products]
    assert (row["kernel"], row["launches"], row["seconds"], row["dram_bytes"]) == ("matvec_kernel", 2, 2e-6, 6000)
    assert row["f16_bytes"] == sum(2 * w.shape[0] * w.shape[1] for w in weights)
    assert (row["integer"], row["matrix"], row["l1_bytes"]) == (0.5, 0.5, 10_000)
    assert (row["occupancy"], row["dram_share"]) == pytest.approx((0.4, 0.7)), "by time: 1,500 and 500 ns"
    assert row["tensor_share"] is None, "a GPU without that counter"
    with pytest.raises(BackendError, match=r"gpu__time_duration\.sum of matvec_kernel is 'n/a'"):
        parse(printed((0, "matvec_kernel", ["n/a"] * 11)).splitlines())


def test_products_and_float16_beside_them_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """`bench gemm --counters`: what ncu is given to run, and its kernels by the product that launched them."""
    said: list[Any] = []
    text = printed((0, "int8_gemm_kernel", ["2,000", *["100"] * 7, "62.5", "71", "33"]),
                   (1, "cutlass_int8", ["1,000", *["100"] * 7, "20", "30", "88"]),
                   (2, "gemm_f16", ["4,000", *["100"] * 7, "25", "90", "40"]))
    calls = {"int8": lambda: said.append("int8"), "cuBLASLt int8": list, "cuBLASLt float16": lambda: said.append("f16")}
    monkeypatch.setattr(measure, "is_interpreted", lambda: False)
    monkeypatch.setattr(measure, "products_of", lambda *given: said.append(given) or calls)
    monkeypatch.setattr(counters, "read_counters", lambda step: said.append(step) or parse(text.splitlines()))
    asked = ["bench", "gemm", "32", "64", "128", "--device", "gpu", "--counters", "--bias", "--seed", "3"]
    done = CliRunner().invoke(app, asked)
    lines = [line.split() for line in done.output.splitlines()]
    assert [line[0] for line in lines] == ["product", "int8", "cuBLASLt", "cuBLASLt"]
    assert lines[1] == "int8 int8_gemm_kernel 1 2.0 0.00 0.00 71.0% 62.5% 33.0% 100.0% 100.0%".split()
    monkeypatch.setattr(counters, "_in_ranges", lambda numbered: [call() for _, call in numbered])
    counters.run_gemm(**json.loads(json.dumps(said[1]))["gemm"])
    assert said[2] == said[0] == (32, 64, 128, "int8", said[0][4])
    assert (said[0][4].bias, said[0][4].seed) == (True, 3)
    assert said[3:] == ["int8", "f16"]


def test_calls_are_made_in_ranges(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    said: list[Any] = []
    nvtx = SimpleNamespace(range_push=said.append, range_pop=lambda: said.append(None))
    profiler = SimpleNamespace(start=lambda: said.append("start"), stop=lambda: said.append("stop"))
    for name, stub in {"nvtx": nvtx, "profiler": profiler, "synchronize": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    plan = engine.load().plan({"tokens": 1, "outputs": 1, "sequences": 1, "boundaries": 2})
    run_calls(plan, engine.graph)
    assert (said[0], said[-1]) == ("start", "stop")
    found = [engine.graph.nodes[int(text.split()[1])] for text in said[1:-1] if text is not None]
    assert [id(n) for n in found] == [id(n) for n, _ in plan.calls]


def test_ncu_is_asked_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="the program ncu is not on the PATH"):
        read_counters({})
    tool = tmp_path / "ncu"
    for output, problem in (("==ERROR== ERR_NVGPUCTRPERM", "ERR_NVGPUCTRPERM"), ("", "it ended with 3")):
        tool.write_text(f"#!{sys.executable}\nprint({output!r})\nraise SystemExit(3)\n")
        tool.chmod(0o755)
        with pytest.raises(BackendError, match=f"ncu read no counters: .*{problem}"):
            read_counters({})
    text = printed((3, "k", ["1"] * 11))
    tool.write_text(f"#!{sys.executable}\nimport sys\nassert 'octavo.bench.counters' in sys.argv\nprint({text!r})\n")
    assert [k.node for k in read_counters({"model": "m"})] == [3]
    tool.write_text(f"#!{sys.executable}\nimport time\ntime.sleep(60)\n")
    monkeypatch.setattr(counters, "SECONDS", 0.2)
    with pytest.raises(BackendError, match=r"within 0\.2 s"):
        read_counters({})


def test_the_step_that_is_counted_is_the_one_asked_for(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    made: list[Any] = []

    def ready_engine(
        file: GGUFFile, device: str, new: int, depth: int, cache_type: str, *, attention: str, **more: Any
    ) -> Any:
        made.append((device, new, depth, cache_type, attention))
        whole = SimpleNamespace(backends={0: 0})
        return SimpleNamespace(schedule=whole, backends=[SimpleNamespace(name="gpu")], graph=SimpleNamespace(nodes=[]))

    @contextmanager
    def ready_step(*_: Any) -> Iterator[tuple[None, None]]:
        yield None, None

    monkeypatch.setattr("octavo.bench.profile.ready_engine", ready_engine)
    monkeypatch.setattr("octavo.bench.profile.ready_step", ready_step)
    monkeypatch.setattr(counters, "read_counters", lambda step: asked.append(step) or [])
    monkeypatch.setattr(counters, "run_calls", lambda *_: None)
    options = ["--device", "gpu", "-p", "7", "--depth", "3", "--cache-type", "q8_0", "--attention", "fp8"]
    done = CliRunner().invoke(app, ["profile", model, "--counters", *options])
    assert done.exception is None
    counters.run_step(**json.loads(json.dumps(asked[0])))
    assert made == [("gpu", 7, 3, "q8_0", "fp8")] * 2


def test_counters_are_of_a_gpu(model: str) -> None:
    result = CliRunner().invoke(app, ["profile", model, "--counters", "--device", "cpu"])
    assert result.exit_code != 0
    assert "--device gpu" in str(result.exception) + result.output
