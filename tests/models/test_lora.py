"""A model with adapters computes what the model does whose weights are W + scale * B A."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.graph.protocol import Backend
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime import Engine, EngineConfig
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.engine.batch import Feed
from octavo.runtime.engine.placement import in_order
from octavo.runtime.lora_adapters import Chosen, with_adapters
from tests.models.adapters import (
    ALPHA,
    RANK,
    factors,
    merged_folder,
    merged_gguf,
    modules_of,
    write_lora_gguf,
    write_peft,
)
from tests.models.table import TOKENS, error, saved
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny

FEW = TOKENS[:12]
NAMES = ("llama", "phi3", "qwen3moe")
"""Rows of q and k in another order; q, k and v in one matrix, gate and up in another; experts."""


@dataclass
class Adapted:
    """A checkpoint, its GGUF file, an adapter, and what transformers computes with the merged weights."""

    folder: GGUFFile
    file: GGUFFile
    adapter: Path
    want: F32


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Adapted]]:
    made = {}
    with ExitStack() as stack:
        for name in NAMES:
            root = tmp_path_factory.mktemp(name)
            saved(root / "hf", TABLE[name])
            modules = {m: factors(n, k, seed=i) for i, (m, (n, k)) in enumerate(modules_of(root / "hf").items())}
            merged = transformers.AutoModelForCausalLM.from_pretrained(merged_folder(root / "hf", root / "m", modules))
            with torch.no_grad():
                want = merged(torch.tensor([FEW])).logits[0].numpy()
            convert_checkpoint(root / "hf", root / "m.gguf", "F32")
            folder, file = open_model_file(root / "hf"), GGUFFile.open(root / "m.gguf")
            made[name] = Adapted(
                stack.enter_context(folder), stack.enter_context(file), write_peft(root / "peft", modules), want
            )
        yield made


def engine(file: GGUFFile, backend: Backend, adapters: Chosen) -> Engine:
    config = EngineConfig(n_ctx=128, cache_type="f32", strict=True)
    return Engine(with_adapters(read_model(file), adapters), [backend], config)


def logits(file: GGUFFile, adapters: Chosen = (), backend: Backend | None = None, *, at_once: bool = True) -> F32:
    e = engine(file, backend or ReferenceBackend(), adapters)
    if at_once:
        return e.logits(FEW)
    sequence = Sequence()
    return np.stack([e.step([Feed(sequence, [token])])[0] for token in FEW])


@pytest.mark.few(3)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_merged_weights_of_transformers(adapted: dict[str, Adapted], name: str, device: str) -> None:
    """A prompt at once from the folder, token by token from the GGUF file."""
    made = adapted[name]
    backend = ReferenceBackend() if device == "reference" else CpuBackend()
    adapters = ((str(made.adapter), 1.0),)
    assert error(logits(made.folder), made.want) > 0.1
    assert error(logits(made.folder, adapters, backend), made.want) < 1e-5
    assert error(logits(made.file, adapters, backend, at_once=False), made.want) < 1e-5


COLUMNS = {"gpt2"}
"""Architectures of which layers' outputs are columns in a checkpoint, and rows in an adapter."""


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_every_class(name: str, tmp_path: Path) -> None:
    """All linear layers of a checkpoint, from the folder, and from its GGUF file where that says enough."""
    folder = tmp_path / "hf"
    saved(folder, TABLE[name])
    with open_model_file(folder) as file:
        architecture = read_model(file).architecture
        normalized = architecture.layout.unit_output is not None
        shapes = {m: s for m, s in modules_of(folder).items() if not (normalized and m == "lm_head")}
        columns = {m for m in shapes if ".h." in m} if architecture.name in COLUMNS else set()
        shapes = {m: (k, n) if m in columns else (n, k) for m, (n, k) in shapes.items()}
        modules = {m: factors(n, k, seed=i) for i, (m, (n, k)) in enumerate(shapes.items())}
        adapters = ((str(write_peft(tmp_path / "peft", modules)), 1.0),)
        with open_model_file(merged_folder(folder, tmp_path / "m", modules, columns=columns)) as merged:
            want = logits(merged)
        assert error(logits(file), want) > 0.1
        assert error(logits(file, adapters), want) < 1e-4
    convert_checkpoint(folder, tmp_path / "m.gguf", "F32")
    with GGUFFile.open(tmp_path / "m.gguf") as file:
        if architecture.layout.factors is not None:
            with pytest.raises(ModelError, match="multiplied by numbers that no GGUF file of the model has"):
                logits(file, adapters)
        else:
            assert error(logits(file, adapters), want) < 1e-4


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GGUFFile]:
    path = tiny.write(tmp_path_factory.mktemp("base") / "base.gguf", "qwen3moe", weights=tiny.tensors("qwen3moe"))
    with GGUFFile.open(path) as file:
        yield file


def shape_of(file: GGUFFile, name: str) -> tuple[int, ...]:
    return tuple(file.tensors[name].shape)


def of_experts(file: GGUFFile, name: str) -> tuple[F32, F32]:
    experts, n, k = shape_of(file, name)
    pairs = [factors(n, k, seed=i) for i in range(experts)]
    return np.stack([a for a, _ in pairs]), np.stack([b for _, b in pairs])


def test_gguf_adapters_add_up(base: GGUFFile, tmp_path: Path) -> None:
    """Two of them on experts, embedding and output, each with a scale of its own and another rank."""
    names = ("blk.0.attn_q.weight", "blk.1.attn_output.weight", "blk.0.ffn_gate_inp.weight", "output.weight")
    pairs = {name: factors(*shape_of(base, name), seed=3) for name in names}
    embedding, up = "token_embd.weight", "blk.1.ffn_up_exps.weight"
    a, b = factors(*shape_of(base, embedding), seed=4)
    pairs[embedding], pairs[up] = (b, np.ascontiguousarray(a.T)), of_experts(base, up)
    first = write_lora_gguf(tmp_path / "1.gguf", pairs, "qwen3moe")
    more = {name: factors(*shape_of(base, name), rank=3, seed=5) for name in names[:2]}
    second = write_lora_gguf(tmp_path / "2.gguf", more, "qwen3moe", alpha=None)
    deltas = {name: 0.5 * ALPHA / RANK * b @ a for name, (a, b) in pairs.items() if name != embedding}
    deltas[embedding] = 0.5 * ALPHA / RANK * b @ a
    for name, (a, b) in more.items():
        deltas[name] += -2.0 * b @ a
    with GGUFFile.open(merged_gguf(base, tmp_path / "m.gguf", deltas)) as merged:
        want = logits(merged)
    got = logits(base, ((str(first), 0.5), (str(second), -2.0)))
    assert error(logits(base), want) > 0.1
    assert error(got, want) < 1e-5
    assert np.array_equal(logits(base, ((str(first), 0.0),)), logits(base))


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0"])
def test_types_of_a_gguf_adapter(base: GGUFFile, tmp_path: Path, kind: str) -> None:
    """Factors of floats keep their type where their scale lets them; quantized ones come as their values."""
    name, fmt = "blk.0.attn_output.weight", by_name(kind)
    pair = factors(*shape_of(base, name), rank=32)
    adapter = write_lora_gguf(
        tmp_path / "a.gguf", {name: pair}, "qwen3moe", alpha=64.0, stored=lambda x, n: quantize_reference(x, fmt, n)
    )
    a, b = (dequantize(quantize_reference(x, fmt)) for x in pair)
    added = with_adapters(read_model(base), ((str(adapter), 1.0),)).added[name]
    assert added.a.format.name == added.b.format.name == (kind if fmt.is_float else "F32")
    assert np.array_equal(dequantize(added.b), 2 * b)
    with GGUFFile.open(merged_gguf(base, tmp_path / "m.gguf", {name: 2 * b @ a})) as merged:
        assert error(logits(base, ((str(adapter), 1.0),)), logits(merged)) < 1e-5
    added = with_adapters(read_model(base), ((str(adapter), 0.3),)).added[name]
    assert added.b.format.name == "F32"


def test_a_scale_of_the_weight_is_not_the_adapters(tmp_path: Path) -> None:
    weights, name = tiny.tensors("llama"), "blk.0.attn_output"
    weights[f"{name}.scale"] = np.array([0.25], np.float32)
    a, b = factors(*weights[f"{name}.weight"].shape)
    adapter = write_lora_gguf(tmp_path / "a.gguf", {f"{name}.weight": (a, b)})
    with GGUFFile.open(tiny.write(tmp_path / "b.gguf", "llama", weights=weights)) as file:
        got = logits(file, ((str(adapter), 1.0),))
    del weights[f"{name}.scale"]
    weights[f"{name}.weight"] = weights[f"{name}.weight"] / 4 + ALPHA / RANK * b @ a
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf", "llama", weights=weights)) as file:
        assert error(got, logits(file)) < 1e-5


def test_patterns_and_roots_of_ranks(adapted: dict[str, Adapted], tmp_path: Path) -> None:
    """As PEFT reads them: a pattern is a module's name, or an end of it behind a dot; the first one counts."""
    made, shapes = adapted["llama"], modules_of(adapted["llama"].adapter.parent / "hf")
    wide = {m for m in shapes if m.endswith("1.mlp.up_proj")}
    modules = {m: factors(n, k, rank=9 if m in wide else RANK) for m, (n, k) in shapes.items() if "mlp" in m}
    patterns = {"rank_pattern": {"layers.1.mlp.up_proj": 9}, "alpha_pattern": {r"^model\.layers\.0\..*proj": 3.0}}
    adapter = write_peft(tmp_path / "peft", modules, use_rslora=True, **patterns)
    merged = made.adapter.parent / "hf"
    for m, pair in modules.items():
        alpha = 3.0 if ".0." in m else ALPHA
        scale = alpha / np.sqrt(9 if m in wide else RANK)
        merged = merged_folder(merged, tmp_path / m, {m: pair}, scale)
    with open_model_file(merged) as file:
        assert error(logits(made.folder, ((str(adapter), 1.0),)), logits(file)) < 1e-5


def test_an_embedding_of_peft(adapted: dict[str, Adapted], tmp_path: Path) -> None:
    """Looked-up rows are changed; lora_embedding_A has them as columns."""
    from safetensors.torch import save_file

    made, name = adapted["llama"], "model.embed_tokens"
    with open_model_file(made.adapter.parent / "hf") as file:
        n, k = shape_of(file, "token_embd.weight")
    a, b = factors(n, k)  # of rows [n, k]
    adapter = write_peft(tmp_path / "peft", {})
    names = (f"base_model.model.{name}.lora_embedding_{kind}" for kind in "AB")
    columns = (torch.from_numpy(np.ascontiguousarray(x.T)) for x in (b, a))
    save_file(dict(zip(names, columns, strict=True)), adapter / "adapter_model.safetensors")
    with open_model_file(merged_folder(made.adapter.parent / "hf", tmp_path / "m", {name: (a, b)})) as file:
        assert error(logits(made.folder, ((str(adapter), 1.0),)), logits(file)) < 1e-5


def test_factors_lie_where_their_weight_does(base: GGUFFile, tmp_path: Path) -> None:
    names = ("blk.0.attn_q.weight", "blk.1.attn_q.weight", "output.weight")
    a, b = factors(*shape_of(base, "token_embd.weight"))
    pairs = {name: factors(*shape_of(base, name)) for name in names}
    pairs["token_embd.weight"] = b, np.ascontiguousarray(a.T)
    adapter = write_lora_gguf(tmp_path / "a.gguf", pairs, "qwen3moe")
    graph = with_adapters(read_model(base), ((str(adapter), 1.0),)).graph()
    for count in range(3):
        place = in_order(graph, 2, (count,))
        where = {i.name: place(i, node) for node in graph.nodes for i in node.inputs if i.op == "weight"}
        assert {where[f"{name}{end}"] == where[name] for name in pairs for end in (".lora_a", ".lora_b")} == {True}


def test_graphs_without_adapters_are_as_they_were(base: GGUFFile) -> None:
    plain = read_model(base)
    assert with_adapters(plain, ()) is plain
    assert not any("lora" in node.name for node in plain.graph().nodes)
