"""Collecting importance matrices: sums against transformers, experts, quantized activations, going on from a file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.errors import NonFiniteError, UsageError
from octavo.evals import collect_imatrix
from octavo.evals.activation_squares import by_expert
from octavo.graph.protocol import Backend
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.imatrix import Imatrix
from octavo.runtime import Engine, EngineConfig, Model
from tests.evals.conftest import Open
from tests.models.checkpoints import CASES, NAMES, VOCAB, Write, make
from tests.runtime import tiny
from tests.sampling import slow

CONTEXT = 24
TOKENS = np.random.default_rng(11).integers(0, VOCAB, 3 * CONTEXT).tolist()
TINY_TOKENS = np.random.default_rng(12).integers(0, tiny.N_VOCAB, 5 * CONTEXT).tolist()


def model_of(file: GGUFFile, *, quantize: bool = False, backend: Backend | None = None, **config: Any) -> Model:
    backend = backend or ReferenceBackend(quantize_activations=quantize)
    options = EngineConfig(**{"n_ctx": CONTEXT, "cache_type": "f32", "fuse": False, **config})
    engine = Engine(read_model(file), [backend], options)
    return Model(file, engine, SimpleNamespace(add_bos=False, bos_id=None))  # type: ignore[arg-type]


def squares_by_hooks(model: Any, tokens: list[int]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What transformers' products are given, squared and summed, by GGUF name."""
    sums: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def add(name: str, x: torch.Tensor) -> None:
        flat = x.reshape(-1, x.shape[-1]).double().numpy()
        old = sums.get(name, (0, 0))
        sums[name] = old[0] + (flat**2).sum(axis=0), old[1] + len(flat)

    def experts(layer: str, module: Any, hidden: torch.Tensor, ids: torch.Tensor) -> None:
        n = module.gate_up_proj.shape[0]
        gate = np.zeros((n, hidden.shape[-1])), np.zeros(n)
        down = np.zeros((n, module.down_proj.shape[-1])), np.zeros(n)
        for token, chosen in zip(hidden, ids, strict=True):
            for e in chosen.tolist():
                g, u = (module.gate_up_proj[e] @ token).chunk(2)
                inner = torch.nn.functional.silu(g) * u
                for (total, count), x in ((gate, token), (down, inner)):
                    total[e] += x.double().numpy() ** 2
                    count[e] += 1
        for name, found in (("ffn_gate_exps", gate), ("ffn_up_exps", gate), ("ffn_down_exps", down)):
            old = sums.get(f"{layer}.{name}.weight", (0, 0))
            sums[f"{layer}.{name}.weight"] = old[0] + found[0], old[1] + found[1]

    for name, module in model.named_modules():
        parts = name.split(".", 3)
        layer = f"blk.{parts[2]}" if name.startswith("model.layers.") else ""
        if name == "lm_head":
            module.register_forward_pre_hook(lambda m, args: add("output.weight", args[0]))
        elif name.endswith("mlp.experts"):
            module.register_forward_pre_hook(lambda m, args, layer=layer: experts(layer, m, args[0], args[1]))
        elif layer and len(parts) == 4 and "norm" not in name and parts[3] in NAMES:
            gguf_name = f"{layer}.{NAMES[parts[3]]}.weight"
            module.register_forward_pre_hook(lambda m, args, n=gguf_name: add(n, args[0]))
    with torch.no_grad():
        for start in range(0, len(tokens), CONTEXT):
            model(torch.tensor([tokens[start : start + CONTEXT]]))
    return sums


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3moe"])
def test_sums_are_those_of_transformers(name: str, gguf: Write) -> None:
    case = CASES[name]
    model = make(case)
    got = collect_imatrix(model_of(gguf(case, model)), TOKENS, context=CONTEXT, output=True)
    want = squares_by_hooks(model, TOKENS)
    assert got.entries.keys() == want.keys()
    for weight, (sums, counts) in want.items():
        entry = got.entries[weight]
        assert entry.counts.reshape(np.shape(counts)).tolist() == np.asarray(counts).tolist(), weight
        np.testing.assert_allclose(entry.sums.reshape(sums.shape), sums, rtol=2e-4, atol=1e-4, err_msg=weight)


def test_the_output_weight_is_left_out_unless_asked_for(open_tiny: Open) -> None:
    model = open_tiny(fuse=False)
    names = collect_imatrix(model, TINY_TOKENS, context=CONTEXT, chunks=1).entries.keys()
    assert all(n.startswith("blk.") for n in names)
    assert len(names) == 2 * 7
    more = collect_imatrix(model, TINY_TOKENS, context=CONTEXT, chunks=1, output=True).entries.keys()
    assert more - names == {"output.weight"}


@pytest.mark.parametrize("limits", [{"n_batch": 7}, {"n_outputs": 5}, {"n_batch": 10, "n_outputs": 1}])
def test_steps_do_not_matter(open_tiny: Open, limits: dict[str, int]) -> None:
    want = collect_imatrix(open_tiny(fuse=False), TINY_TOKENS, context=CONTEXT, output=True)
    got = collect_imatrix(open_tiny(fuse=False, **limits), TINY_TOKENS, context=CONTEXT, output=True)
    for name, entry in want.entries.items():
        np.testing.assert_array_equal(got.entries[name].counts, entry.counts)
        np.testing.assert_allclose(got.entries[name].sums, entry.sums, rtol=1e-3)


def test_activations_are_read_before_they_are_quantized(gguf: Write) -> None:
    case = CASES["qwen3"]
    file = gguf(case, make(case), "Q8_0")
    exact, quantized = (
        collect_imatrix(model_of(file, quantize=q), TOKENS, context=CONTEXT).entries for q in (False, True)
    )
    np.testing.assert_array_equal(quantized["blk.0.attn_q.weight"].sums, exact["blk.0.attn_q.weight"].sums)
    deep = "blk.1.ffn_down.weight"
    np.testing.assert_allclose(quantized[deep].sums, exact[deep].sums, rtol=0.2)
    assert (quantized[deep].sums != exact[deep].sums).any(), "products see quantized activations"


@pytest.mark.parametrize("name", [slow("qwen3"), "qwen3moe"])
def test_the_cpu_collects_the_same(name: str, gguf: Write) -> None:
    case = CASES[name]
    file = gguf(case, make(case))
    want = collect_imatrix(model_of(file), TOKENS, context=CONTEXT, output=True)
    got = collect_imatrix(model_of(file, backend=CpuBackend(threads=2)), TOKENS, context=CONTEXT, output=True)
    assert got.entries.keys() == want.entries.keys()
    for weight, entry in want.entries.items():
        assert got.entries[weight].counts.tolist() == entry.counts.tolist(), weight
        np.testing.assert_allclose(got.entries[weight].sums, entry.sums, rtol=1e-3, atol=1e-3, err_msg=weight)


def test_by_expert() -> None:
    rng = np.random.default_rng(0)
    ids = np.stack([*(rng.permutation(6)[:2] for _ in range(9)), [4, 4]])  # of groups of experts one may be named twice
    for squares in (rng.random((10, 4), np.float32), rng.random((10, 2, 4), np.float32)):
        sums, counts = by_expert(squares, ids, 6)
        for e in range(6):
            at = [(t, j) for t in range(10) for j in range(2) if ids[t, j] == e]
            want = sum((squares[t] if squares.ndim == 2 else squares[t, j] for t, j in at), np.zeros(4))
            np.testing.assert_allclose(sums[e], want, rtol=1e-5)
            assert counts[e] == len(at)


def test_a_file_of_the_run(open_tiny: Open, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    made = collect_imatrix(open_tiny(fuse=False), TINY_TOKENS, name="text.txt", context=CONTEXT, path=path)
    read = Imatrix.load(path)
    assert (read.datasets, read.chunk_count, read.chunk_size) == (("text.txt",), 5, CONTEXT)
    np.testing.assert_array_equal(
        read.importance("blk.1.ffn_up.weight", (tiny.N_FF, tiny.N_EMBD)), made.importance("blk.1.ffn_up.weight")
    )


class StoppedError(Exception):
    pass


@pytest.mark.parametrize("arch", ["qwen3", "qwen3moe"])
def test_a_run_that_was_stopped_goes_on(open_tiny: Open, tmp_path: Path, arch: str) -> None:
    model = open_tiny(arch=arch, weights=tiny.tensors(arch), fuse=False)
    collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=tmp_path / "whole.gguf")

    def stop(done: int, total: int) -> None:
        if done % 2 == 0:
            raise StoppedError

    runs = []
    for _ in range(3):
        try:
            collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=tmp_path / "parts.gguf", progress=stop)
        except StoppedError:
            runs.append(Imatrix.load(tmp_path / "parts.gguf").chunk_count)
    assert runs == [2, 4]
    assert (tmp_path / "parts.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_stopped_within_a_window_nothing_of_it_is_kept(
    open_tiny: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = open_tiny(fuse=False)
    want = collect_imatrix(model, TINY_TOKENS, context=CONTEXT, chunks=1)
    step, calls = model.engine.step, []

    def step_once(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(model.engine, "step", step_once)
    with pytest.raises(KeyboardInterrupt):
        collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=tmp_path / "m.gguf")
    got = Imatrix.load(tmp_path / "m.gguf")
    assert got.chunk_count == 1
    for name, entry in want.entries.items():
        np.testing.assert_array_equal(got.entries[name].sums, entry.sums)


def test_saved_as_often_as_asked(open_tiny: Open, tmp_path: Path) -> None:
    counts = []

    def look(done: int, total: int) -> None:
        path = tmp_path / "m.gguf"
        counts.append(Imatrix.load(path).chunk_count if path.exists() else 0)

    collect_imatrix(
        open_tiny(fuse=False), TINY_TOKENS, context=CONTEXT, path=tmp_path / "m.gguf", save_every=2, progress=look
    )
    assert counts == [0, 2, 2, 4, 4]


@pytest.mark.parametrize("what", ["text", "context", "model", "output"])
def test_a_file_of_another_run_is_not_gone_on_from(open_tiny: Open, tmp_path: Path, what: str) -> None:
    path = tmp_path / "m.gguf"
    collect_imatrix(open_tiny(fuse=False), TINY_TOKENS, context=CONTEXT, path=path, chunks=1)
    other = open_tiny(arch="qwen3moe", weights=tiny.tensors("qwen3moe"), fuse=False) if what == "model" else None
    model = other or open_tiny(fuse=False)
    tokens = TINY_TOKENS[::-1] if what == "text" else TINY_TOKENS
    context = 16 if what == "context" else CONTEXT
    before = path.read_bytes()
    part = "context or option" if what in ("context", "output") else what
    with pytest.raises(UsageError, match=rf"m\.gguf is the importance matrix of another {part} \("):
        collect_imatrix(model, tokens, context=context, path=path, output=what == "output")
    assert path.read_bytes() == before
    again = collect_imatrix(model, tokens, context=context, path=path, output=what == "output", chunks=2, restart=True)
    assert again.chunk_count == 2


def test_more_chunks_of_the_same_text_go_on(open_tiny: Open, tmp_path: Path) -> None:
    model, path = open_tiny(fuse=False), tmp_path / "m.gguf"
    collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=path, chunks=2)
    seen: list[tuple[int, int]] = []
    collect_imatrix(model, TINY_TOKENS, context=CONTEXT, path=path, progress=lambda *a: seen.append(a))
    assert seen == [(3, 5), (4, 5), (5, 5)]


def test_not_a_number(open_tiny: Open) -> None:
    weights = tiny.tensors()
    weights["blk.1.attn_norm.weight"][5] = np.nan
    with pytest.raises(NonFiniteError, match=r"blk\.1\.attn_q"):
        collect_imatrix(open_tiny(weights, fuse=False), TINY_TOKENS, context=CONTEXT)


@pytest.mark.parametrize(
    ("config", "options", "message"),
    [
        ({"fuse": True}, {}, "fused"),
        ({"fuse": False}, {"save_every": 0}, "save_every is 0"),
        ({"fuse": False}, {"chunks": 0}, "chunks is 0"),
    ],
)
def test_bad_arguments(open_tiny: Open, config: dict[str, bool], options: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        collect_imatrix(open_tiny(**config), TINY_TOKENS, context=CONTEXT, **options)  # type: ignore[arg-type]
