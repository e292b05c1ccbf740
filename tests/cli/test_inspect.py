"""`octavo inspect`: for people, as JSON, the graph, and the check for NaN."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import numpy as np
import pytest

from octavo.io.gguf import GGUFFile, write_gguf
from octavo.io.system_memory import Room
from octavo.jit import host_cpu
from octavo.runtime import Engine
from octavo.sizes import size
from tests.cli.conftest import Run
from tests.io.gguf_builder import ARCH, ARRAY, DATA, U32, WEIGHT, array, gguf, raw_pair
from tests.runtime import tiny


def squeezed(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_plain(octavo: Run, alphabet: str) -> None:
    got = octavo("inspect", alphabet)
    assert (got.status, got.err) == (0, "")
    lines = squeezed(got.out)
    with GGUFFile.open(alphabet) as file:
        n, nbytes = sum(t.size for t in file.tensors.values()), file.nbytes
    assert lines[0] == "alphabet.gguf"
    facts = {line[:15].strip(): line[15:] for line in got.out.splitlines()[1:13]}
    assert facts == {
        "file": alphabet, "architecture": "qwen3", "parameters": f"316K ({n:,})", "file type": "F32",
        "context": "512 tokens", "layers": f"2 of width {tiny.N_EMBD}", "heads": "4, 2 of keys and values",
        "vocabulary": f"{tiny.N_VOCAB} tokens", "chat template": "yes", "runs here": "yes",
        "size": f"{Path(alphabet).stat().st_size / 1e6:.1f} MB, of which {nbytes / 1e6:.1f} MB in 25 tensors, "
        "32.00 bits per weight", "memory": facts["memory"],
    }
    kinds = "1.3 MB of weights, 131.1 kB of keys and values, about 190.1 MB of Python, tokenizer and workspaces"
    assert facts["memory"].endswith(f"at --ctx-size 512: {kinds}")
    assert f"F32 25 {n:,} {nbytes / 1e6:.1f} MB 100.0% 32" in lines


def test_what_kernels_are_made_for(octavo: Run, alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU, where it was asked for by name."""
    monkeypatch.setattr(host_cpu, "why_no_tiles", lambda: "none left")
    level = f"{host_cpu.level()}; no matrix tiles: none left"
    assert f"kernels for {level}" in squeezed(octavo("inspect", alphabet, "--device", "cpu").out)
    assert json.loads(octavo("inspect", alphabet, "--device", "cpu", "--json").out)["facts"]["cpu_level"] == level


def test_memory_of_a_context(octavo: Run, alphabet: str) -> None:
    for kv, nbytes in (("f16", 2), ("f32", 4)):
        found = json.loads(octavo("inspect", alphabet, "--json", "-c", "64", "--kv", kv).out)["facts"]
        assert found["memory"]["cache"] == 2 * 2 * 64 * tiny.N_HEAD_KV * tiny.HEAD_DIM * nbytes


def test_what_this_machine_has_no_room_for(octavo: Run, alphabet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.runtime.engine.memory_plan.room", lambda: Room(1 << 20))
    monkeypatch.setattr(Engine, "_loaded", lambda engine: pytest.fail("loads weights"))
    found = json.loads(octavo("inspect", alphabet, "--json", "--device", "cpu").out)["facts"]
    assert not found["runs"]
    assert "GiB of memory are needed" in found["why_not"]


def test_metadata(octavo: Run, alphabet: str) -> None:
    lines = squeezed(octavo("inspect", alphabet, "--metadata").out)
    assert lines[0] == "metadata value"
    assert "qwen3.attention.head_count 4" in lines
    assert any(line.startswith("tokenizer.ggml.tokens 259 values: ") for line in lines)


def test_an_architecture_that_does_not_run(octavo: Run, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "chameleon.gguf", "chameleon", weights=tiny.tensors())
    lines = squeezed(octavo("inspect", path).out)
    assert "architecture chameleon" in lines
    assert any(line.startswith("runs here no: Octavo can't run architecture 'chameleon' yet") for line in lines)


def test_tensors(octavo: Run, alphabet: str) -> None:
    lines = squeezed(octavo("inspect", alphabet, "--tensors").out)
    with GGUFFile.open(alphabet) as file:
        for info in file.tensors.values():
            shape = " x ".join(map(str, info.shape))
            assert any(line.startswith(f"{info.name} F32 {shape} ") for line in lines)
            assert any(line.startswith(info.name) and line.endswith(f"{info.offset:,}") for line in lines)


def test_graph(octavo: Run, alphabet: str) -> None:
    lines = octavo("inspect", alphabet, "--graph", "--ctx", "64").out.splitlines()
    assert any(line.startswith("split 0 on reference, ") for line in lines)
    assert any("= attention(" in line and "blk.1.attn" in line for line in lines)
    assert " split, " in lines[-1]
    assert lines[-1].endswith("bytes of memory")


def test_stages_of_a_pipeline(octavo: Run, alphabet: str) -> None:
    got = octavo("inspect", alphabet, "--pipeline", "2", "--ctx", "64", "--device", "cpu")
    lines = [line for line in squeezed(got.out) if line.startswith("stage")]
    shown = [line.partition(":")[0] for line in lines]
    assert shown == ["stage 0 layers 0 to 0 on cpu 0", "stage 1 layers 1 to 1 on cpu 1"]
    graph = octavo("inspect", alphabet, "--pipeline", "2", "--device", "cpu", "--graph").out.splitlines()
    splits = [line.partition(",")[0] for line in graph if line.startswith("split")]
    assert splits == ["split 0 on cpu 0", "split 1 on cpu 1"]
    report = octavo("inspect", alphabet, "--pipeline", "2", "--ctx", "64", "--device", "cpu", "--json").out
    stages = json.loads(report)["facts"]["stages"]
    assert [stage["layers"] for stage in stages] == [[0, 0], [1, 1]]
    with GGUFFile.open(alphabet) as file:
        embedding = file.tensors["token_embd.weight"].nbytes if "output.weight" not in file.tensors else 0
        assert sum(stage["weights"] for stage in stages) == sum(t.nbytes for t in file.tensors.values()) + embedding
    error = octavo("inspect", alphabet, "--pipeline", "3", "--device", "cpu").error()
    assert error == "octavo: error: --pipeline is 3, but the model has 2 layers (allowed: 1 to 2)"


def test_what_a_rank_has(octavo: Run) -> None:
    given = ("inspect", "demo", "--ctx", "64", "--device", "cpu", "--tensor-parallel", "2")
    assert "rank 0 of 2 layers 0 to 9 on cpu: 7.5 MB of weights" in " ".join(squeezed(octavo(*given).out))
    shown = squeezed(octavo(*given, "--pipeline", "2").out)
    places = [line.partition(":")[0] for line in shown if "rank" in line]
    assert places == ["stage 0 rank 0 of 2, layers 0 to 4 on cpu 0", "stage 1 rank 0 of 2, layers 5 to 9 on cpu 1"]
    assert json.loads(octavo(*given, "--json").out)["facts"]["ranks"] == 2


def test_json(octavo: Run, alphabet: str) -> None:
    got = octavo("inspect", alphabet, "--json", "--tensors", "--graph", "--check")
    assert (got.status, got.err) == (0, "")
    report = json.loads(got.out)
    assert report.keys() == {
        "path", "files", "version", "alignment", "tensor_count", "parameters", "bytes", "file_bytes",
        "bits_per_weight", "types",
        "metadata", "tensors", "graph", "non_finite", "facts",
    }
    assert report["path"] == alphabet
    assert report["types"] == [
        {"type": "F32", "tensors": 25, "parameters": report["parameters"], "bytes": report["bytes"],
         "bits_per_weight": 32.0},
    ]
    assert report["tensors"][0].keys() == {"name", "type", "shape", "parameters", "bytes", "offset"}
    assert len(report["tensors"]) == report["tensor_count"] == 25
    assert report["metadata"]["tokenizer.ggml.tokens"] == {"length": 259, "first": tiny.TOKENS[:8]}
    assert report["metadata"]["tokenizer.ggml.merges"] == ["h e"]
    assert {row["op"] for row in report["graph"]} >= {"mul_mat", "attention", "set_rows"}
    assert report["non_finite"] == {}


def test_check(octavo: Run, alphabet: str, tmp_path: Path) -> None:
    assert octavo("inspect", alphabet, "--check").out.splitlines() == ["No NaN or Inf in any tensor."]
    weights = tiny.tensors()
    weights["blk.1.ffn_up.weight"][3, 4:7] = np.nan
    weights["output_norm.weight"][0] = -np.inf
    path = tiny.write(tmp_path / "nan.gguf", weights=weights)
    got = octavo("inspect", path, "--check")
    assert got.error() == (
        f"octavo: error: {path}: NaN or Inf in 2 of 25 tensors: "
        "output_norm.weight (1 values), blk.1.ffn_up.weight (3 values)"
    )
    assert "No NaN" not in got.out
    as_json = octavo("inspect", path, "--check", "--json")
    assert as_json.status == 2
    assert json.loads(as_json.out)["non_finite"] == {"output_norm.weight": 1, "blk.1.ffn_up.weight": 3}
    assert octavo("inspect", path).status == 0, "without --check the tensors are not read"
    path = tiny.write(tmp_path / "order.gguf", weights=tiny.tensors() | {
        "blk.0.attn_q.order": np.full(tiny.N_EMBD, 1e9, np.float32),
    })
    assert "tensor blk.0.attn_q.order: does not name each column once" in octavo("inspect", path, "--check").error()


ODD = {
    "general.name": "bad\x1b[31m name",
    "odd.nan": math.nan,
    "odd.inf": [math.inf, 1.0],
    "odd.markup": "[bold]not markup[/bold]",
    "odd.long": "x" * 500,
}


@pytest.fixture
def odd(tmp_path: Path) -> str:
    path = tmp_path / "odd.gguf"
    write_gguf(path, "llama", ODD, {"t[0]": np.zeros((2, 4), np.float32)})
    return str(path)


def test_odd_values_are_shown_harmlessly(octavo: Run, odd: str) -> None:
    got = octavo("inspect", odd, "--metadata", "--tensors")
    assert got.status == 0
    assert "\x1b" not in got.out
    text = " ".join(got.out.split())
    assert r"'bad\x1b[31m name'" in text
    assert "[bold]not markup[/bold]" in text
    assert "(500 characters)" in text
    assert "t[0]" in text


def test_odd_values_are_json(octavo: Run, odd: str) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not valid JSON")

    report = json.loads(octavo("inspect", odd, "--json").out, parse_constant=refuse)
    assert report["metadata"]["odd.nan"] == "nan"
    assert report["metadata"]["odd.inf"] == ["inf", 1.0]
    assert report["metadata"]["general.name"] == ODD["general.name"]


def test_arrays_of_arrays_are_cut_at_every_depth(octavo: Run, tmp_path: Path) -> None:
    inner = [array(U32, range(20)), array(U32, [7])]
    nested = raw_pair("odd.nested", ARRAY, struct.pack("<IQ", ARRAY, len(inner)) + b"".join(inner))
    path = tmp_path / "nested.gguf"
    path.write_bytes(gguf([ARCH, nested], [WEIGHT], DATA))
    report = json.loads(octavo("inspect", str(path), "--json").out)
    assert report["metadata"]["odd.nested"] == [{"length": 20, "first": list(range(8))}, [7]]
    assert octavo("inspect", str(path)).status == 0


def test_a_vocabulary_alone_is_shown_but_makes_no_graph(octavo: Run, tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "vocab.gguf", weights={})
    got = octavo("inspect", path)
    assert got.status == 0
    assert f"size {Path(path).stat().st_size / 1e3:.1f} kB, of which 0 B in 0 tensors" in squeezed(got.out)
    assert json.loads(octavo("inspect", path, "--json", "--tensors").out)["tensors"] == []
    assert "token_embd.weight" in octavo("inspect", path, "--graph").error()


def test_files_that_are_no_gguf(octavo: Run, tmp_path: Path) -> None:
    assert "there is no such file or folder" in octavo("inspect", str(tmp_path / "none")).error()
    (tmp_path / "text").write_text("not a model at all, but long enough for a header")
    assert str(tmp_path / "text") in octavo("inspect", str(tmp_path / "text")).error()


@pytest.mark.parametrize(
    ("nbytes", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (15_240_000, "15.2 MB"), (4.2e15, "4200.0 TB")]
)
def test_sizes(nbytes: float, shown: str) -> None:
    assert size(nbytes) == shown
