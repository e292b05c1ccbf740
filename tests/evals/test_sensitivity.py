"""How much a weight matters, against quantizing it in the file."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.errors import FileError, UsageError
from octavo.evals import collect_imatrix, divergence
from octavo.evals.probe_model import WorkingCopy
from octavo.evals.scores import compare
from octavo.evals.sensitivity import PROBE, MeasuredSlopes, Sensitivity, _Prober, layer_groups, sensitivities
from octavo.evals.windows import logits, windows
from octavo.formats import by_name, dequantize
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers.job.job_source import gguf_source
from octavo.quantizers.job.recode import recode
from octavo.runtime import Engine, EngineConfig, Model, resolve
from tests.models.checkpoints import CASES, VOCAB, Write, make, tensors
from tests.sampling import slow

CONTEXT = 32
TOKENS = np.random.default_rng(2).integers(0, VOCAB, 2 * CONTEXT).tolist()
WEIGHTS = ["blk.0.attn_v.weight", "blk.1.ffn_down.weight", "token_embd.weight"]
CASE = CASES["qwen3"]


def model_of(file: GGUFFile, **config: Any) -> Model:
    options = EngineConfig(**{"n_ctx": CONTEXT, "cache_type": "f32", **config})
    engine = Engine(read_model(file), [ReferenceBackend()], options)
    return Model(file, engine, SimpleNamespace(add_bos=False, bos_id=None, texts=[], n_vocab=0, unused_ids=[]))  # type: ignore[arg-type]


@pytest.fixture
def file(gguf: Write) -> GGUFFile:
    return gguf(CASE, make(CASE))


@pytest.mark.parametrize("weighted", [slow(False), True])
def test_a_weights_effect_is_that_of_quantizing_it_alone(file: GGUFFile, gguf: Write, weighted: bool) -> None:
    imatrix = collect_imatrix(model_of(file, fuse=False), TOKENS, context=CONTEXT) if weighted else None
    model = model_of(file)
    got = sensitivities(model, TOKENS, WEIGHTS, imatrix=imatrix, context=CONTEXT)
    random = make(CASE)
    for name in WEIGHTS:
        tensor = file.tensor(name)
        importance = imatrix.importance(name, tensor.shape) if imatrix else None
        made = recode(tensor, by_name(PROBE), importance=importance)
        changed = tensors(CASE, random) | {name: dequantize(made.tensor)}
        other = model_of(gguf(CASE, random, tensors=changed))
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
    with pytest.raises(UsageError, match="is Q4_0"):
        sensitivities(model_of(gguf(CASE, make(CASE), "Q4_0")), TOKENS, WEIGHTS, context=CONTEXT)


def test_weights_measured_together_share_what_they_bring_about(file: GGUFFile, gguf: Write) -> None:
    names = [f"blk.{i}.{kind}.weight" for i in range(2) for kind in ("attn_v", "ffn_down")]
    model = model_of(file)
    got = sensitivities(model, TOKENS, names, context=CONTEXT, probes=2)
    together = ["blk.0.attn_v.weight", "blk.1.attn_v.weight"]
    made = {name: recode(file.tensor(name), by_name(PROBE)) for name in together}
    changed = tensors(CASE, make(CASE)) | {name: dequantize(m.tensor) for name, m in made.items()}
    want = divergence(model_of(gguf(CASE, make(CASE), tensors=changed)), model, TOKENS, context=CONTEXT)
    for name in together:
        assert got[name].kl.value == pytest.approx(want.kl.value, rel=1e-3)
        assert got[name].squared_error == pytest.approx(sum(m.error**2 for m in made.values()))
    assert got["blk.0.ffn_down.weight"] == got["blk.1.ffn_down.weight"] != got[together[0]]


def test_a_weights_effect_within_a_model_that_is_quantized(file: GGUFFile, gguf: Write) -> None:
    """What the whole diverges less with the weight as it was, by files of both."""
    model, types = model_of(file), {name: by_name("Q4_0") for name in WEIGHTS}
    before = model.logits(TOKENS[:CONTEXT])
    known: dict[str, Sensitivity] = {}
    got = sensitivities(model, TOKENS, WEIGHTS, context=CONTEXT, every=True, within=types, known=known)
    np.testing.assert_array_equal(model.logits(TOKENS[:CONTEXT]), before)
    made = {name: recode(file.tensor(name), types[name]) for name in WEIGHTS}

    def kl(names: list[str]) -> float:
        changed = tensors(CASE, make(CASE)) | {name: dequantize(made[name].tensor) for name in names}
        other, found = model_of(gguf(CASE, make(CASE), tensors=changed)), []
        for window in windows(model, TOKENS, CONTEXT, 2, every=True):
            pairs = zip(logits(other.engine, window, 64, 64), logits(model.engine, window, 64, 64), strict=True)
            found += [compare(rows, base, targets).kl for (rows, targets), (base, _) in pairs]
        return float(np.concatenate(found).mean())

    whole = kl(WEIGHTS)
    for name in WEIGHTS:
        want = whole - kl([other for other in WEIGHTS if other != name])
        assert 0 < got[name].kl.value == pytest.approx(want, rel=1e-3)
        assert got[name].squared_error == pytest.approx(made[name].error ** 2)
    assert known == got
    told: list[tuple[int, int]] = []
    again = sensitivities(model, TOKENS, WEIGHTS, context=CONTEXT, known=known, progress=lambda *a: told.append(a))
    assert again == got
    assert not told


def test_errors_that_are_known_otherwise(file: GGUFFile) -> None:
    got = sensitivities(model_of(file), TOKENS, WEIGHTS[:2], context=CONTEXT,
                        squared_error=lambda name, kind: 0.5 if name == WEIGHTS[0] else None)
    assert got[WEIGHTS[0]].squared_error == 0.5
    assert 0 < got[WEIGHTS[1]].squared_error < 0.5


def test_a_working_copy_in_q8_0_finds_the_same(file: GGUFFile) -> None:
    names = [f"blk.{i}.{kind}.weight" for i in range(2) for kind in ("attn_v", "ffn_down", "ffn_up")]
    exact = sensitivities(model_of(file), TOKENS, names, context=CONTEXT)
    with WorkingCopy.open(file.path) as copy:
        model = model_of(copy)
        got = sensitivities(model, TOKENS, names, weights=file.tensor, context=CONTEXT)
    kinds = {leaf.tensor.name: leaf.tensor.format.name for leaf in model.engine.schedule.graph.leaves("weight")}
    assert {kinds[name] for name in names} == {"Q8_0"}
    assert kinds["output_norm.weight"] == "F32"
    for name in names:
        assert got[name].squared_error > exact[name].squared_error  # it probes with a coarser type
        assert got[name].slope == pytest.approx(exact[name].slope, rel=0.5)


def test_what_is_the_rounding_of_activations_is_taken_off(file: GGUFFile) -> None:
    with WorkingCopy.open(file.path) as copy:
        model = model_of(copy)
    own = {leaf.tensor.name: leaf.tensor for leaf in model.engine.schedule.graph.leaves("weight")}
    prober = _Prober(model, own, file.tensor, None, windows(model, TOKENS, CONTEXT))
    noise = prober.noise([["token_embd.weight"], WEIGHTS[:1]])
    plain, _ = prober.probe(WEIGHTS[:1])
    assert 0 <= noise < plain.value
    got = sensitivities(model, TOKENS, WEIGHTS[:1], weights=file.tensor, context=CONTEXT)
    assert got[WEIGHTS[0]].kl.value == pytest.approx(plain.value - noise, rel=1e-6)


def test_groups_of_layers() -> None:
    names = [f"blk.{i}.{kind}.weight" for i in range(10) for kind in ("ffn_up", "attn_q")] + ["output.weight"]
    assert sorted(map(len, layer_groups(names, 21))) == [1] * 21
    groups = layer_groups(names, 9)
    assert len(groups) == 9
    assert ["output.weight"] in groups
    assert ["blk.3.attn_q.weight", "blk.4.attn_q.weight", "blk.5.attn_q.weight"] in groups
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert sorted(map(len, layer_groups(names, 1))) == [1, 10, 10]
    assert layer_groups([], 5) == []


def test_measured_on_a_text(tmp_path: Path) -> None:
    with GGUFFile.open(resolve("demo")) as file:
        source = gguf_source(file)
        short = tmp_path / "short.txt"
        short.write_text("12 + 7")
        with pytest.raises(UsageError, match=r"has \d+ tokens \(allowed: 512 or more"):
            MeasuredSlopes(str(short))(source, ["blk.0.attn_v.weight"])
        with pytest.raises(FileError, match=r"none\.txt: can't be opened"):
            MeasuredSlopes(str(tmp_path / "none.txt"))(source, ["blk.0.attn_v.weight"])
        seen: list[tuple[str, int, int]] = []
        names = ["blk.0.attn_v.weight", "blk.9.ffn_up.weight", "blk.3.attn_k.weight", "blk.99.other.weight"]
        slopes = MeasuredSlopes("demo", chunks=1, progress=lambda *a: seen.append(a))(source, names)
    assert slopes["blk.9.ffn_up.weight"] > slopes["blk.0.attn_v.weight"] > slopes["blk.3.attn_k.weight"] > 0
    assert slopes["blk.99.other.weight"] == slopes["blk.0.attn_v.weight"]  # the median
    assert [done for _, done, _ in seen] == [1, 2, 3]
