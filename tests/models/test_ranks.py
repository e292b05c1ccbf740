"""Every architecture computes on several ranks what it computes on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.errors import GraphError
from octavo.formats.spec import F32
from octavo.graph.builder import GraphBuilder, constant
from octavo.graph.communicator import Communicator
from octavo.graph.node import Graph
from octavo.graph.protocol import Backend
from octavo.graph.shard import shard
from octavo.io.gguf import GGUFFile
from octavo.quantizers import quantize_checkpoint
from tests.models.adapters import factors, modules_of, write_peft
from tests.models.ranks import MakeBackend, on_one, on_some, reference, weight_bytes
from tests.models.table import Models, error, in_format, made_in, save_only
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny
from tests.sampling import slow

QUICK = {"llama", "qwen3moe", "gpt-oss", "gemma2", "phi2", "qwen35moe"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with made_in(tmp_path_factory.mktemp("ranks")) as made:
        yield made


def cpu(communicator: Communicator | None) -> Backend:
    return CpuBackend(threads=1, communicator=communicator)


def assert_near(got: F32, want: F32) -> None:
    """The same logits but for the order of sums; where that makes a code of an activation the next one, a bit more."""
    errors = np.abs(got - want).max(axis=1) / np.abs(want).max()
    assert np.median(errors) < 1e-5
    assert errors.max() < 0.02


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in TABLE])
def test_two_ranks(name: str, tmp_path: Path) -> None:
    save_only(tmp_path, TABLE[name])
    want = on_one(tmp_path)
    found = on_some(tmp_path, 2)
    for got, _ in found:
        assert error(got, want) < 1e-4
    ops = [Counter(n.op for n in engine.graph.nodes) for _, engine in found]
    assert ops[0]["all_reduce"] == ops[1]["all_reduce"] > 0
    assert ops[0]["all_gather"] == ops[1]["all_gather"] > 0
    assert all(ops[0][op] == ops[1][op] for op in ("attention", "mul_mat", "mul_mat_id"))  # nothing twice


HEADS = [(9, 3, 2), (9, 3, 3), (9, 3, 4), (4, 2, 4), (4, 1, 3), (6, 2, 3)]
"""Query heads, heads of keys, and ranks."""


@pytest.mark.few(2)
@pytest.mark.parametrize("make", [reference, cpu], ids=["reference", "cpu"])
@pytest.mark.parametrize(("heads", "kv_heads", "ranks"), HEADS)
def test_heads(heads: int, kv_heads: int, ranks: int, make: MakeBackend, tmp_path: Path,
               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiny, "N_HEAD", heads)
    monkeypatch.setattr(tiny, "N_HEAD_KV", kv_heads)
    path = Path(tiny.write(tmp_path / "m.gguf"))
    want = on_one(path, make)
    found = on_some(path, ranks, make)
    of_keys = list[int]()
    for got, engine in found:
        assert error(got, want) < 1e-5
        (shape,) = {n.shape[1:] for n in engine.graph.leaves("cache")}
        of_keys.append(int(shape[0]))
    if ranks <= kv_heads:
        assert sum(of_keys) == kv_heads
    else:
        assert of_keys == [1] * ranks


@pytest.mark.few(1)
@pytest.mark.parametrize("cache_type", ["f16", "int8", *map(slow, ["q8_0", "fp8", "int4"])])
@pytest.mark.parametrize("make", [reference, cpu], ids=["reference", "cpu"])
def test_caches(cache_type: str, make: MakeBackend, models: Models) -> None:
    path = Path(models["llama"].file.path)
    want = on_one(path, make, cache_type=cache_type)
    for got, _ in on_some(path, 2, make, cache_type=cache_type):
        assert_near(got, want)


@pytest.mark.few(2)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("name", "format_name"), [
    ("llama", "Q8_0"), ("qwen3moe", "Q4_0"), *map(slow, [("gemma2", "IQ4_NL"), ("llama", "MXFP4"), ("phi2", "Q5_1")]),
])
def test_block_weights(name: str, format_name: str, ranks: int, models: Models, tmp_path: Path) -> None:
    path, _ = in_format(models[name].file, tmp_path / "m.gguf", format_name)
    want = on_one(path, cpu)
    for got, _ in on_some(path, ranks, cpu):
        assert_near(got, want)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("format_name", ["Q4_K", *map(slow, ["Q2_K", "Q6_K", "IQ4_XS", "TQ1_0"])])
def test_blocks_of_256(format_name: str, ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three blocks to a row of the last matrix: two and one, or one each."""
    tiny.widen(monkeypatch)
    monkeypatch.setattr(tiny, "N_FF", 768)
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf")) as file:
        path, _ = in_format(file, tmp_path / "q.gguf", format_name)
    want = on_one(path, cpu)
    for got, engine in on_some(path, ranks, cpu):
        assert_near(got, want)
        (down,) = {n.shape for n in engine.graph.leaves("weight") if "ffn_down" in n.name}
        assert down in ((256, 512), (256, 256))


OTHERS = ["w4a8", "w4a16", "w8a16", "nvfp4a16"]


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", ["int8-w8a8", "w4a8-g128", "fp8", *map(slow, OTHERS)])
def test_checkpoints(scheme: str, tmp_path: Path) -> None:
    """Ranks agree on the scales of activations that they have parts of."""
    options = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
    case = TABLE["qwen3"]
    save_only(tmp_path / "hf", replace(case, options=case.options | options | {"head_dim": 64}))
    quantize_checkpoint(tmp_path / "hf", tmp_path / "q", scheme)
    want = on_one(tmp_path / "q", cpu)
    found = on_some(tmp_path / "q", 2, cpu)
    for got, _ in found:
        assert_near(got, want)
    per_row = {"int8-w8a8", "w4a8", "w4a8-g128", "fp8"}
    agreed = sum(n.op == "all_max" for n in found[0][1].graph.nodes)
    assert agreed == (4 if scheme in per_row else 0)


@pytest.mark.parametrize("name", ["llama", *map(slow, ["phi3", "qwen3moe"])])
def test_adapters(name: str, tmp_path: Path) -> None:
    """Products of rows and of columns, of one matrix for several, and of experts."""
    save_only(tmp_path / "hf", TABLE[name])
    modules = enumerate(modules_of(tmp_path / "hf").items())
    write_peft(tmp_path / "lora", {module: factors(*shape, seed=i) for i, (module, shape) in modules})
    lora = ((str(tmp_path / "lora"), 1.0),)
    want = on_one(tmp_path / "hf", lora=lora)
    assert error(want, on_one(tmp_path / "hf")) > 1e-3
    for got, _ in on_some(tmp_path / "hf", 2, lora=lora):
        assert error(got, want) < 1e-5


def test_a_weight_that_can_not_be_divided() -> None:
    builder, few = GraphBuilder(), 40
    table = constant(np.zeros((few, 1 << 15), np.float32), "kinds.weight")
    graph = Graph.of(builder.get_rows(table, builder.kinds))
    with pytest.raises(GraphError, match=r"kinds.weight \[40, 32768\] can't be divided among 3 ranks: use fewer"):
        shard(graph, 0, 3)
    assert "part" in next(iter(shard(graph, 0, 2).leaves("weight"))).attrs


def test_weights_are_divided(tmp_path: Path) -> None:
    """Each rank has about its share of the matrices, and together they have all."""
    path = Path(tiny.write(tmp_path / "m.gguf"))
    with GGUFFile.open(path) as file:
        whole = sum(info.nbytes for info in file.tensors.values() if len(info.shape) > 1)
    shares = np.array([weight_bytes(engine) for _, engine in on_some(path, 2)]) / whole
    assert shares.tolist() == pytest.approx([0.5, 0.5], abs=0.06)  # its vocabulary is 9 words of bits
    assert shares.sum() == pytest.approx(1)


def test_experts_with_fewer_blocks_than_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of experts 768 wide in blocks of 256 four ranks have some each; two ranks have their columns."""
    tiny.widen(monkeypatch)
    monkeypatch.setattr(tiny, "N_FF", 768)
    path = Path(tiny.write(tmp_path / "m.gguf", "qwen3moe"))
    with GGUFFile.open(path) as file:
        path, _ = in_format(file, tmp_path / "q.gguf", "Q4_K")
    want = on_one(path, cpu)
    for ranks, down in ((2, [(4, 256, 512), (4, 256, 256)]), (4, [(1, 256, 768)] * 4)):
        for (got, engine), shape in zip(on_some(path, ranks, cpu), down, strict=True):
            assert error(got, want) < 1e-4
            found = {n.shape for n in engine.graph.leaves("weight") if "ffn_down_exps" in n.name}
            assert found == {shape}
