"""Well-formed files that make no model: each is a typed error that names file and field, soon and in little memory."""

from __future__ import annotations

import math
import re
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import FileError, GGUFError, ModelError
from octavo.io.gguf import GGUFFile, TypedValue, ValueType, write_gguf
from octavo.models import read_model
from octavo.models.shared.refusal import unknown
from octavo.quantizers.job.quantize import quantize_file
from tests.limits import processor_time
from tests.runtime import tiny

SECONDS, BYTES = 5.0, 64 << 20


@contextmanager
def bounded() -> Iterator[None]:
    """Fails what takes 64 MiB, or five seconds of which counting memory takes most."""
    tracemalloc.start()
    try:
        with processor_time(SECONDS):
            yield
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()


def refused(path: str, kind: type[FileError], *parts: str, most: int = 500) -> None:
    """Reading the model at `path` raises an error of this kind, shorter than `most`, that names the file and says
    `parts`."""
    with bounded(), pytest.raises(FileError) as caught, GGUFFile.open(path) as file:
        read_model(file)
    assert type(caught.value) is kind
    for part in (path, *parts):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < most


@pytest.fixture(scope="session", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is imported at the first model does not count."""
    path = tiny.write(tmp_path_factory.mktemp("warm") / "m.gguf")
    octavo.load(path, device="reference", n_ctx=64).close()


U32_MAX = 2**32 - 1
SIZES = {
    "block_count": "", "embedding_length": "", "feed_forward_length": "", "attention.head_count": "",
    "attention.head_count_kv": "", "attention.key_length": "", "context_length": "",
}


@pytest.mark.parametrize("value", [0, -1, U32_MAX, 2**63])
@pytest.mark.parametrize("field", SIZES)
def test_sizes_out_of_range(tmp_path: Path, field: str, value: int) -> None:
    path = tiny.write(tmp_path / "m.gguf", keys={f"qwen3.{field}": value})
    refused(path, ModelError, f"qwen3.{field}", f"{value} is out of range", "allowed: 1 to")


@pytest.mark.parametrize("field", ["block_count", "embedding_length", "feed_forward_length", "attention.head_count"])
def test_sizes_that_are_missing(tmp_path: Path, field: str) -> None:
    refused(tiny.write(tmp_path / "m.gguf", keys={f"qwen3.{field}": None}), GGUFError, f"qwen3.{field}", "missing")


CONTRADICTIONS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "heads do not divide the width": (
        {"attention.head_count": 5, "attention.head_count_kv": 5, "attention.key_length": None,
         "attention.value_length": None},
        ("qwen3.attention.head_count", "5 heads do not divide a width of 264"),
    ),
    "more heads than width": (
        {"attention.head_count": 528, "attention.key_length": None}, ("attention.head_count", "528 heads"),
    ),
    "K/V heads do not divide": (
        {"attention.head_count_kv": 3}, ("attention.head_count_kv", "3 does not divide 4 heads"),
    ),
    "more K/V heads": ({"attention.head_count_kv": 8}, ("attention.head_count_kv", "8 does not divide 4")),
    "values of another length": (
        {"attention.value_length": 8}, ("attention.value_length", "8 differs from the key length", "allowed: 16"),
    ),
    "odd rope": ({"rope.dimension_count": 7}, ("rope.dimension_count", "7 is out of range", "even")),
    "no rope": ({"rope.dimension_count": 0}, ("rope.dimension_count", "0 is out of range")),
    "rope over the head": ({"rope.dimension_count": 18}, ("rope.dimension_count", "18", "up to 16")),
    "unknown rope scaling": (
        {"rope.scaling.type": "spiral\n" * 100}, ("rope.scaling.type", "unknown kind 'spiral\\n", "longrope"),
    ),
    "rope factor 0": ({"rope.scaling.factor": 0.0}, ("rope.scaling.factor", "0.0 is out of range")),
    "rope factor NaN": ({"rope.scaling.factor": math.nan}, ("rope.scaling.factor", "nan")),
    "rope base 1": ({"rope.freq_base": 1.0, "rope.scaling.type": "yarn"}, ("rope.freq_base", "over 1")),
    "rope base Inf": ({"rope.freq_base": math.inf}, ("rope.freq_base", "inf is out of range")),
    "yarn that turns never": (
        {"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_fast": TypedValue(ValueType.F64, 5e-324)},
        ("rope.scaling.yarn_beta_fast", "5e-324 is out of range"),
    ),
    "no original context": (
        {"rope.scaling.original_context_length": 0}, ("rope.scaling.original_context_length", "0"),
    ),
    "epsilon 0": ({"attention.layer_norm_rms_epsilon": 0.0}, ("layer_norm_rms_epsilon", "0.0")),
    "epsilon NaN": ({"attention.layer_norm_rms_epsilon": math.nan}, ("layer_norm_rms_epsilon", "nan")),
    "layers that differ": (
        {"attention.head_count_kv": [2, 1]}, ("head_count_kv", "differs from layer to layer (1 to 2)"),
    ),
    "experts in a dense model": ({"expert_count": 4}, ("qwen3.expert_count", "4 experts in qwen3")),
    "another width": ({"embedding_length": 272}, ("tensor ", "contradicts", "272")),
    "another feed-forward": ({"feed_forward_length": 64}, ("tensor blk.0.ffn_gate.weight", "[64, 264]")),
    "more layers than tensors": ({"block_count": 3}, ("tensor blk.2.attn_norm.weight", "is missing")),
    "the most layers": ({"block_count": 4096}, ("tensor blk.2.attn_norm.weight", "is missing")),
    "the largest heads": (
        {"attention.key_length": 1 << 14, "attention.value_length": 1 << 14}, ("tensor blk.0.attn_q.weight",),
    ),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradictions(tmp_path: Path, name: str) -> None:
    keys, parts = CONTRADICTIONS[name]
    refused(tiny.write(tmp_path / "m.gguf", keys={f"qwen3.{k}": v for k, v in keys.items()}), ModelError, *parts)


EXPERTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "none": ({"expert_count": 0}, ("qwen3moe.expert_count", "0 experts in qwen3moe")),
    "not said": ({"expert_count": None}, ("qwen3moe.expert_count", "0 experts")),
    "negative": ({"expert_count": -4}, ("qwen3moe.expert_count", "-4 is out of range")),
    "none used": ({"expert_used_count": 0}, ("expert_used_count", "0 is out of range")),
    "more used than there are": ({"expert_used_count": 5}, ("expert_used_count", "5 of 4 experts", "1 to 4")),
    "more than there are": ({"expert_count": 5}, ("tensor blk.0.ffn_gate_inp.weight", "[5, 264]")),
    "of another size": ({"expert_feed_forward_length": 32}, ("tensor blk.0.ffn_gate_exps.weight", "[4, 32, 264]")),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_experts(tmp_path: Path, name: str) -> None:
    keys, parts = EXPERTS[name]
    path = tiny.write(tmp_path / "m.gguf", "qwen3moe", keys={f"qwen3moe.{k}": v for k, v in keys.items()})
    refused(path, ModelError, *parts)


WRONG_TYPES = [
    ("block_count", "2"), ("block_count", 2.0), ("block_count", True), ("embedding_length", ["264"]),
    ("attention.head_count", [4.0, 4.0]), ("attention.value_length", "16"), ("rope.freq_base", 10000),
    ("rope.dimension_count", 16.0), ("rope.scaling.type", 1), ("rope.scaling.original_context_length", "4"),
    ("attention.layer_norm_rms_epsilon", "small"), ("expert_count", 0.0),
]


@pytest.mark.parametrize(("field", "value"), WRONG_TYPES, ids=str)
def test_metadata_of_the_wrong_type(tmp_path: Path, field: str, value: object) -> None:
    path = tiny.write(tmp_path / "m.gguf", keys={f"qwen3.{field}": value})
    refused(path, GGUFError, f"qwen3.{field}", "stored as")


@pytest.mark.parametrize("arch", ["gptoss", "llama2", "../llama", "architecture", "a" * 900, "\x1b[2J\n"])
def test_unknown_architectures(tmp_path: Path, arch: str) -> None:
    path = tiny.write(tmp_path / "m.gguf", arch, weights=tiny.tensors())
    refused(path, ModelError, "can't run architecture", "docs/models.md lists what it runs")


def test_names_near_an_unknown_one() -> None:
    known = ("gpt2", "gpt-oss", "llama", "Qwen3ForCausalLM", "Qwen2ForCausalLM", "OlmoForCausalLM")
    assert unknown("gptoss", known, "architecture ") == (
        "Octavo can't run architecture 'gptoss' yet (nearest: gpt-oss); docs/models.md lists what it runs"
    )
    assert "(nearest: Qwen3ForCausalLM, Qwen2ForCausalLM);" in unknown("Qwen3ForTokenClassification", known)
    plain = "Octavo can't run 'T5ForConditionalGeneration' yet; docs/models.md lists what it runs"
    assert unknown("T5ForConditionalGeneration", known) == plain


@pytest.mark.parametrize(
    ("arch", "keys", "said"),
    [
        (
            "llama",
            {"general.type": "adapter"},
            "is an adapter (LoRA), no model: run its base model with --lora and this",
        ),
        (
            "qwen3",
            {"general.type": "adapter", "general.base_model.0.name": "Q"},
            "run its base model, 'Q', with --lora and this",
        ),
        ("clip", {}, "is a projector (mmproj), which makes of pictures or sounds what a model reads"),
        ("gemma4v", {"general.type": "mmproj"}, "give the GGUF file of the text model"),
        (
            "imatrix",
            {"general.type": "imatrix"},
            "is an importance matrix, no model: `octavo quantize --imatrix` takes it",
        ),
        ("controlvector", {}, "is a control vector, no model"),
    ],
)
def test_files_that_hold_no_model(tmp_path: Path, arch: str, keys: dict[str, str], said: str) -> None:
    path = str(tmp_path / "m.gguf")
    write_gguf(path, arch, keys, {"t": np.zeros((2, 4), np.float32)})
    refused(path, ModelError, said)
    with pytest.raises(ModelError, match=re.escape(said)):
        quantize_file(path, tmp_path / "out.gguf", "Q8_0")


def reshaped(name: str, change: Callable[[np.ndarray], np.ndarray]) -> dict[str, np.ndarray]:
    weights = tiny.tensors()
    return weights | {name: np.ascontiguousarray(change(weights[name]))}


@pytest.mark.parametrize("name", [n for n in tiny.tensors(n_layer=1) if n != "output.weight"])
def test_tensors_that_are_missing_or_of_another_shape(tmp_path: Path, name: str) -> None:
    refused(tiny.write(tmp_path / "missing.gguf", without=[name]), ModelError, f"tensor {name}", "is missing")
    shorter = tiny.write(tmp_path / "shorter.gguf", weights=reshaped(name, lambda w: w[..., :-1]))
    refused(shorter, ModelError, f"tensor {name}" if name != "token_embd.weight" else "tensor ", "contradicts")
    deeper = tiny.write(tmp_path / "deeper.gguf", weights=reshaped(name, lambda w: w[None]))
    refused(deeper, ModelError, f"tensor {name}")


def test_a_file_without_tensors(tmp_path: Path) -> None:
    refused(tiny.write(tmp_path / "m.gguf", weights={}), ModelError, "tensor token_embd.weight", "missing")


def test_an_output_of_another_size(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "m.gguf", weights=reshaped("output.weight", lambda w: w[:-1]))
    refused(path, ModelError, "tensor output.weight", "[260, 264]")


def test_a_vocabulary_over_the_embedding(tmp_path: Path) -> None:
    weights = {n: w[:256] if n in ("token_embd.weight", "output.weight") else w for n, w in tiny.tensors().items()}
    path = tiny.write(tmp_path / "m.gguf", weights=weights)
    with bounded(), pytest.raises(ModelError) as caught:
        octavo.load(path, device="reference")
    assert str(caught.value) == f"{path}, tokenizer.ggml.tokens: 259 tokens, but the embedding has 256 rows"


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_rope_divisors_that_are_no_numbers_load_and_end_in_an_error(tmp_path: Path, value: float) -> None:
    weights = tiny.tensors() | {"rope_freqs.weight": np.full(tiny.HEAD_DIM // 2, value, np.float32)}
    path = tiny.write(tmp_path / "m.gguf", weights=weights)
    with (
        octavo.load(path, device="reference", n_ctx=64) as model,
        pytest.raises(octavo.OctavoError, match="NaN or Inf"),
    ):
        model.logits([1, 2, 3])


def test_a_model_that_is_right_is_not_refused(tmp_path: Path) -> None:
    for arch in ("qwen3", "qwen3moe"):
        with GGUFFile.open(tiny.write(tmp_path / f"{arch}.gguf", arch)) as file:
            assert read_model(file).hparams.n_vocab == tiny.N_VOCAB
    path = tiny.write(tmp_path / "layers.gguf", keys={"qwen3.attention.head_count_kv": [2, 2]})
    with GGUFFile.open(path) as file:
        assert read_model(file).hparams.n_head_kv == 2, "an array of equal values is one value"
