"""Memory that methods announce: what a process really takes, and what it depends on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import pytest

from octavo.backends import select
from octavo.backends.cores import cores
from octavo.evals.layerwise import Layerwise, Samples, memory
from octavo.evals.method_memory import ENCODER, compensation_bytes
from octavo.evals.scheme_run import SchemeRun
from octavo.formats import DeferredQTensor, QTensor, by_name
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.io.gguf import GGUFFile, PlainMetadata, TensorInfo
from octavo.models import read_model

GIB = 1 << 30
LLAMA_70B: dict[str, Any] = {
    "context_length": 8192, "embedding_length": 8192, "feed_forward_length": 28672, "attention.head_count": 64,
    "attention.head_count_kv": 8, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0,
    "vocab_size": 128256,
}


class Shapes(GGUFFile):
    """A Llama of bfloat16 numbers that nobody reads."""

    def __init__(self, layers: int, sizes: dict[str, Any]) -> None:
        pairs = {f"llama.{key}": value for key, value in {**sizes, "block_count": layers}.items()}
        self.path, self.version, self.alignment, self._sources = "shapes", 3, 32, {}
        self.metadata = PlainMetadata(self.path, {"general.architecture": "llama", **pairs})
        d, ff, kv = sizes["embedding_length"], sizes["feed_forward_length"], 128 * sizes["attention.head_count_kv"]
        table = {
            "token_embd.weight": (sizes["vocab_size"], d),
            "output_norm.weight": (d,),
            "output.weight": (sizes["vocab_size"], d),
        }
        for i in range(layers):
            of_layer = {
                "attn_norm": (d,), "attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d),
                "ffn_norm": (d,), "ffn_gate": (ff, d), "ffn_up": (ff, d), "ffn_down": (d, ff),
            }
            table |= {f"blk.{i}.{name}.weight": shape for name, shape in of_layer.items()}
        bf16 = by_name("BF16").gguf
        assert bf16 is not None
        self.tensors = {n: TensorInfo(n, shape, bf16, 0, 2 * prod(shape), self.path) for n, shape in table.items()}

    def tensor(self, name: str, *, copy: bool = False) -> QTensor:
        return DeferredQTensor(by_name("BF16"), self.tensors[name].shape, partial(pytest.fail, "was read"), name)


def takes(file: GGUFFile, ways: tuple[str, ...] = ("gptq",), scales: str | None = None, **more: Any) -> int:
    options: dict[str, Any] = {"scheme": "w4a16-g128", "tokens": 2048, "threads": 2, **more}
    run = SchemeRun(
        file, CHECKPOINT_SCHEMES[options["scheme"]], Samples([[0] * 512] * (options["tokens"] // 512)), select("cpu"),
        scales, ways, None, options["threads"], None,
    )
    return run.needs().memory


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "own", lambda: 60 << 20)
    monkeypatch.setattr("octavo.evals.scheme_run.seconds", lambda run, hessians: 0.0)


@pytest.mark.usefixtures("alone")
def test_a_model_of_70_billion_weights_fits_in_20_gib() -> None:
    two = takes(Shapes(2, LLAMA_70B))
    k = 28672
    assert 8 * k * k < two < 10 * GIB
    assert takes(Shapes(3, LLAMA_70B)) == two
    assert takes(Shapes(2, LLAMA_70B), tokens=128 * 512) == two
    for scales in ("awq", "smoothquant", "qqq", "rptq"):
        assert takes(Shapes(2, LLAMA_70B), ("gptq",), scales, scheme="int8-w8a8") < 20 * GIB
    assert takes(Shapes(2, LLAMA_70B), threads=16) > two


@pytest.mark.usefixtures("alone")
def test_matrices_on_a_device_take_none_of_the_hosts_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is written is the most then: here the embedding, as it is in the file."""
    file, embedding = Shapes(2, LLAMA_70B), 2 * 128256 * 8192
    monkeypatch.setattr("octavo.evals.layerwise.runner.placed", lambda *given: ("cuda", True))
    made, searched = takes(file), takes(file, ("gptq",), "awq")
    process = (60 << 20) + memory.LATER + cores() * memory.THREAD + memory.DRIVER + memory.MAKERS
    assert made - embedding == process
    assert takes(file, ("nearest",)) == made - memory.MAKERS
    assert takes(file, ("gptq", "qronos")) == made
    assert searched > made
    k, spec = 28672, read_model(file)
    run = Layerwise(spec, select("cpu"), Samples([[0] * 512]))
    down = {"blk.0.ffn_down.weight": (8192, k)}
    assert compensation_bytes(run, down, 1, 0, 1) == process + ENCODER + 4 * 8192 * k


@pytest.mark.usefixtures("alone")
def test_what_is_tried_beside_takes_more() -> None:
    file = Shapes(1, {**LLAMA_70B, "embedding_length": 1024, "feed_forward_length": 4096, "attention.head_count": 8,
                      "vocab_size": 4096})
    plain, made, both = takes(file, ("nearest",)), takes(file), takes(file, ("gptq", "qronos"))
    assert plain < made < both
    assert made - plain > 12 * 4096**2


@pytest.mark.usefixtures("alone")
def test_what_a_stage_of_a_gguf_file_is_run_with_counts() -> None:
    """Weights that were made before, as floats, and kernels of formats."""
    spec = read_model(Shapes(1, LLAMA_70B))
    run = Layerwise(spec, select("cpu"), Samples([[0] * 512]))
    shapes = {f"blk.0.ffn_{part}.weight": (28672, 8192) for part in ("up", "gate")}
    both, alone = (compensation_bytes(run, dict(list(shapes.items())[:n]), 1, 0, 1) for n in (2, 1))
    assert both - alone == 4 * 28672 * 8192
    assert compensation_bytes(run, shapes, 2, 0, 1) == both + ENCODER


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell")
@pytest.mark.parametrize("method", [["int8-w8a8", "--method", "rtn"], ["w4a16-g128", "--method", "gptq"]])
def test_a_process_takes_what_was_announced(method: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "octavo", "quantize", "demo", str(tmp_path / "made"), "--scheme", *method,
               "--calibration", "demo", "--samples", "2", "--json"]
    said = json.loads(subprocess.run([*command, "--dry-run"], stdout=subprocess.PIPE, check=True).stdout)["memory"]
    peaks = [_peak(command, tmp_path / "made", tmp_path / str(i)) for i in range(2)]  # the first compiles kernels
    assert 0.85 < peaks[1] / said < 1.15


def _peak(command: list[str], made: Path, moved: Path) -> int:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as child:
        most = 0
        while child.poll() is None:
            lines = Path(f"/proc/{child.pid}/status").read_text().split("\n")
            most = max(most, sum(1024 * int(x.split()[1]) for x in lines if x.startswith(("RssAnon", "RssShmem"))))
            time.sleep(0.003)
    assert not child.returncode
    made.rename(moved)
    return most
