"""How much a weight matters, against quantizing it in the file; and the types that follow for a wished size."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import UsageError
from octavo.evals import collect_imatrix, divergence
from octavo.evals.sensitivity import PROBE, sensitivities
from octavo.formats import by_name, dequantize
from octavo.io.gguf import GGUFFile
from octavo.models import read_architecture
from octavo.quantizers.fit import fit_types, tensor_bytes
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job import Job, run
from octavo.quantizers.mixing import Choices
from octavo.quantizers.recode import recode
from octavo.quantizers.source import gguf_source
from octavo.runtime import Engine, EngineConfig, Model
from tests.models.checkpoints import CASES, VOCAB, Write, make, tensors

CONTEXT = 32
TOKENS = np.random.default_rng(2).integers(0, VOCAB, 2 * CONTEXT).tolist()
WEIGHTS = ["blk.0.attn_v.weight", "blk.1.ffn_down.weight", "token_embd.weight"]
CASE = CASES["qwen3"]


def model_of(file: GGUFFile, **config: Any) -> Model:
    options = EngineConfig(**{"n_ctx": CONTEXT, "cache_type": "f32", **config})
    engine = Engine(read_architecture(file), [ReferenceBackend()], options)
    return Model(file, engine, SimpleNamespace(add_bos=False, bos_id=None, texts=[]))  # type: ignore[arg-type]


@pytest.fixture
def file(gguf: Write) -> GGUFFile:
    return gguf(CASE, make(CASE))


@pytest.mark.parametrize("weighted", [False, True])
def test_a_weights_effect_is_that_of_quantizing_it_alone(file: GGUFFile, gguf: Write, weighted: bool) -> None:
    imatrix = collect_imatrix(model_of(file, fuse=False), TOKENS, context=CONTEXT) if weighted else None
    model = model_of(file)
    got = sensitivities(model, TOKENS, WEIGHTS, imatrix=imatrix, context=CONTEXT)
    for name in WEIGHTS:
        tensor = file.tensor(name)
        importance = imatrix.importance(name, tensor.shape) if imatrix else None
        made = recode(tensor, by_name(PROBE), importance=importance)
        changed = tensors(CASE, make(CASE)) | {name: dequantize(made.tensor)}
        other = model_of(gguf(CASE, make(CASE), tensors=changed))
        want = divergence(other, model, TOKENS, context=CONTEXT)
        assert 0 < got[name].kl.value == pytest.approx(want.kl.value, rel=1e-3)
        assert got[name].kl.error == pytest.approx(want.kl.error, rel=1e-3)
        assert got[name].squared_error == pytest.approx(made.error**2)
        assert got[name].slope == pytest.approx(got[name].kl.value / made.error**2)


def test_the_model_is_left_as_it_was(file: GGUFFile) -> None:
    model = model_of(file)
    before = model.logits(TOKENS[:CONTEXT])
    seen: list[tuple[int, int]] = []
    sensitivities(model, TOKENS, WEIGHTS, context=CONTEXT, progress=lambda *a: seen.append(a))
    np.testing.assert_array_equal(model.logits(TOKENS[:CONTEXT]), before)
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_what_can_not_be_probed(file: GGUFFile, gguf: Write) -> None:
    with pytest.raises(UsageError, match=r"no weight 'blk\.9\.attn_q\.weight'"):
        sensitivities(model_of(file), TOKENS, ["blk.9.attn_q.weight"], context=CONTEXT)
    with pytest.raises(UsageError, match="is Q8_0"):
        sensitivities(model_of(gguf(CASE, make(CASE), "Q8_0")), TOKENS, WEIGHTS, context=CONTEXT)


@pytest.mark.parametrize("bits", [3.0, 4.5, 6.0])
def test_a_fit_takes_no_more_than_its_size_and_nearly_all_of_it(file: GGUFFile, tmp_path: Path, bits: float) -> None:
    source = gguf_source(file)
    budget = tensor_bytes(source, bits_per_weight=bits)
    fit = fit_types(source, budget, {})
    assert 0.97 * budget < fit.nbytes <= budget
    run(Job(source, "fit", fit.types, None), tmp_path / "fit.gguf")
    with GGUFFile.open(tmp_path / "fit.gguf") as made:
        assert made.nbytes == fit.nbytes
        for info in made.tensors.values():
            assert info.type_name == (fit.types[info.name].name if info.name in fit.types else "F32")


def test_a_file_of_a_wished_size(file: GGUFFile, tmp_path: Path) -> None:
    source = gguf_source(file)
    size = 700_000
    fit = fit_types(source, tensor_bytes(source, file_size=size), {}, imatrix=Imatrix())
    run(Job(source, "fit", fit.types, None, Imatrix(datasets=("a text",), path="/a/path")), tmp_path / "fit.gguf")
    assert 0.95 * size < (tmp_path / "fit.gguf").stat().st_size <= size


def test_a_weight_that_matters_gets_more_bits(file: GGUFFile) -> None:
    source = gguf_source(file)
    budget = tensor_bytes(source, bits_per_weight=4.5)
    name, twin = "blk.1.ffn_down.weight", "blk.0.ffn_down.weight"
    plain, steep = (fit_types(source, budget, slopes).types for slopes in ({}, {name: 1000.0, twin: 0.001}))
    assert steep[name].bits > plain[name].bits
    assert steep[twin].bits < plain[twin].bits


def test_set_types_are_kept(file: GGUFFile) -> None:
    source = gguf_source(file)
    budget = tensor_bytes(source, bits_per_weight=5)
    choices = Choices(tensor_types=(("attn_k", "q8_0"),), embedding_type="q4_K")
    types = fit_types(source, budget, {}, choices=choices).types
    assert {types[f"blk.{i}.attn_k.weight"].name for i in range(2)} == {"Q8_0"}
    assert types["token_embd.weight"].name == "Q4_K"
    with pytest.raises(UsageError, match=r"attn_k.*can't be F32"):
        fit_types(source, budget, {}, choices=Choices(tensor_types=(("attn_k", "F32"),)))


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ({}, "one of the two"),
        ({"bits_per_weight": 4, "file_size": 4}, "one of the two"),
        ({"bits_per_weight": 0}, "bits a weight are 0"),
        ({"bits_per_weight": float("nan")}, "bits a weight are nan"),
        ({"file_size": 0}, "0 bytes"),
    ],
)
def test_no_size(file: GGUFFile, size: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tensor_bytes(gguf_source(file), **size)


def test_too_small_a_size(file: GGUFFile) -> None:
    source = gguf_source(file)
    for bits in (0.01, 2.5):
        with pytest.raises(UsageError, match="allowed"):
            fit_types(source, tensor_bytes(source, bits_per_weight=bits), {})
