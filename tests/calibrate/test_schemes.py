"""Methods of checkpoints: what each makes of a small model, that codes are the paper's, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.backends.cpu import CpuBackend
from octavo.backends.reference import ReferenceBackend
from octavo.calibrate import collect_statistics
from octavo.calibrate.methods.gptq.gptq_schemes import gptq_row
from octavo.calibrate.schemes import scheme_method as schemes
from octavo.calibrate.schemes.scheme_method import KINDS, SchemeMethod
from octavo.errors import UsageError
from octavo.evals.report.quality import those_there_are, ways
from octavo.formats import dequantize
from octavo.huggingface import CheckpointFile, open_model_file
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.models import read_model
from octavo.quantizers import Report, quantize_checkpoint
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.runtime import tiny
from tests.sampling import slow

TOKENS = list(range(97, 120)) * 2
MADE_UP = {name for name, scheme in CHECKPOINT_SCHEMES.items() if gptq_row(scheme, 512) is not None}


def quantize(src: str | Path, dst: Path, scheme: str, text: str, kind: str, **options: Any) -> Report:
    method = SchemeMethod(text, kind, **{"context": 32, "device": "reference", "threads": 1, **options})
    return quantize_checkpoint(src, dst, scheme, method=method, threads=1)


def logits(model: str | Path) -> np.ndarray:
    with open_model_file(model) as file:
        return Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64)).logits(TOKENS)


def off(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.square(got - want).mean() / np.square(want).mean())


CASES = [("w4a16-g128", "gptq"), *(slow((s, "gptq")) for s in sorted(MADE_UP - {"w4a16-g128"})),
         *(slow(("w4a8-g128", kind)) for kind in KINDS)]


@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_errors_fall_and_what_is_read_is_what_was_made(
    scheme: str, kind: str, source: str, text: str, tmp_path: Path
) -> None:
    plain = quantize_checkpoint(source, tmp_path / "plain", scheme, threads=1)
    report = quantize(source, tmp_path / "made", scheme, text, kind)
    assert [(r.name, r.type, r.nbytes) for r in report.rows] == [(r.name, r.type, r.nbytes) for r in plain.rows]
    made = [row for row in report.rows if row.before is not None]
    assert len(made) == 14
    assert {row.how for row in made} <= set(KINDS[kind].ways)
    before, after = (sum(getattr(row, end) ** 2 for row in made) for end in ("before", "error"))
    assert after <= before
    want = logits(source)
    assert off(logits(tmp_path / "made"), want) < (1.2 if kind in ("rtn", "smoothquant", "awq") else 1.0) * off(
        logits(tmp_path / "plain"), want
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["smoothquant", "auto"])
def test_channels_with_outliers_are_repaired(kind: str, source: str, text: str, tmp_path: Path) -> None:
    spoiled = with_outliers(source, tmp_path)
    want = logits(source)
    assert off(logits(spoiled), want) < 1e-8
    report = quantize(spoiled, tmp_path / "made", "int8-w8a8", text, kind)
    lost = rounded_tokens(tmp_path / "made", want)
    plain, spoilt = (
        rounded_tokens(quantized(path, tmp_path / f"{Path(path).stem}-int8"), want) for path in (source, spoiled)
    )
    assert spoilt > 20 * plain
    assert lost < 1.2 * plain
    norms = [row for row in report.scaled if row.fold.endswith("norm")]
    assert len(norms) == 4
    assert all(row.after < 0.1 * row.before and row.setting is not None for row in norms)


@pytest.mark.slow
def test_clusters_repair_what_one_static_scale_loses(source: str, text: str, tmp_path: Path) -> None:
    spoiled, want = with_outliers(source, tmp_path), logits(source)
    lost = {}
    for kind in ("gptq", "rptq"):
        quantize(spoiled, tmp_path / kind, "int8-w8a8", text, kind, activations="static")
        lost[kind] = rounded_tokens(tmp_path / kind, want)
    assert lost["rptq"] < 0.1 * lost["gptq"]


def with_outliers(source: str, folder: Path) -> Path:
    """Three channels of what a norm gives made 100 times larger, and the columns that read them smaller."""
    with open_model_file(source) as file:
        tensors = {name: dequantize(file.tensor(name)) for name in file.tensors}
    for norm, readers in (("attn_norm", ("attn_q", "attn_k", "attn_v")), ("ffn_norm", ("ffn_gate", "ffn_up"))):
        for layer in range(2):
            tensors[f"blk.{layer}.{norm}.weight"][[3, 11, 17]] *= 100
            for reader in readers:
                tensors[f"blk.{layer}.{reader}.weight"][:, [3, 11, 17]] /= 100
    return tiny.write(folder / "spoiled.gguf", weights=tensors)


def quantized(src: str | Path, dst: Path) -> Path:
    quantize_checkpoint(src, dst, "int8-w8a8", threads=1)
    return dst


def rounded_tokens(model: Path, want: np.ndarray) -> float:
    """What logits err where activations are rounded as the scheme has it."""
    with open_model_file(model) as file:
        return off(Engine(read_model(file), [CpuBackend(threads=1)], EngineConfig(n_ctx=64)).logits(TOKENS), want)


def test_a_model_that_is_turned_has_an_output_matrix_of_its_own(source: str, text: str, tmp_path: Path) -> None:
    tied = {name: values for name, values in tiny.tensors().items() if name != "output.weight"}
    tiny.write(Path(source), weights=tied)
    quantize_checkpoint(source, tmp_path / "folder", "w8a16")  # so that config.json is one that says they are tied
    for origin in (Path(source), tmp_path / "folder"):
        method = SchemeMethod(text, "rtn", context=32, device="reference", threads=1, rotate=True)
        quantize_checkpoint(origin, tmp_path / f"{origin.stem}-made", "w8a16", method=method, allow_requantize=True)
        config = json.loads((tmp_path / f"{origin.stem}-made/config.json").read_text())
        assert config["tie_word_embeddings"] is False
    with open_model_file(tmp_path / "src-made") as file, open_model_file(source) as was:
        assert ("output.weight" in file.tensors, "output.weight" in was.tensors) == (True, False)
        assert file.tensors["token_embd.weight"].type_name == was.tensors["token_embd.weight"].type_name
        assert (dequantize(file.tensor("blk.0.attn_norm.weight")) == 1).all()
    for name in ("src", "folder"):
        assert off(logits(tmp_path / f"{name}-made"), logits(source)) < 0.01


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "kind"), [("int8-w8a8", "rptq"), ("fp8", "rtn"), ("w4a8-g128", "rptq")])
def test_static_scales_are_of_what_products_were_given(
    scheme: str, kind: str, source: str, text: str, tmp_path: Path
) -> None:
    report = quantize(source, tmp_path / "made", scheme, text, kind, activations="static", samples=4)
    assert {found.scheme for found in report.inputs} == {scheme}
    said = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]
    tokens = said["config_groups"]["group_0"]["input_activations"]
    assert (tokens["strategy"], tokens["dynamic"], tokens["num_bits"]) == ("tensor", False, 8)
    assert len(report.inputs) == 8
    assert sum(len(found.names) for found in report.inputs) == 14
    with open_model_file(tmp_path / "made") as file:
        assert isinstance(file, CheckpointFile)
        graph = read_model(file).graph()
        for found in report.inputs:
            assert found.after <= found.before < 0.1
            assert found.scale <= found.largest * (64 / 448 if scheme == "fp8" else 1 / 127) * (1 + 1e-6)
            for name in found.names:
                assert dequantize(file.tensor(name.replace("weight", "input_scale"))).tolist() == [found.scale]
        given = {node.name: node.static_scale for node in graph.leaves("weight") if node.static_scale is not None}
        assert given == {name: found.scale for found in report.inputs for name in found.names}
    assert rounded_tokens(tmp_path / "made", logits(source)) < 0.05


def test_of_mixed_activations_those_are_static_that_err_little(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = quantize(source, tmp_path / "all", "int8-w8a8", text, "rtn", activations="static", samples=1).inputs
    ratios = [found.after / found.dynamic for found in every]
    monkeypatch.setattr(schemes, "MIXED", float(np.median(ratios)) * (1 + 1e-9))
    report = quantize(source, tmp_path / "made", "int8-w8a8", text, "rtn", activations="mixed", samples=1)
    used = [found.used for found in report.inputs]
    assert used == [ratio <= schemes.MIXED for ratio in ratios]
    assert 0 < sum(used) < len(used)
    groups = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]["config_groups"]
    rest = [name for found in report.inputs if not found.used for name in found.names]
    assert len(groups["group_1"]["targets"]) == len(rest)
    tokens = [groups[f"group_{i}"]["input_activations"] for i in (0, 1)]
    assert [(part["strategy"], part["dynamic"]) for part in tokens] == [("tensor", False), ("token", True)]
    with open_model_file(tmp_path / "made") as file:
        given = {
            n.name: n.static_scale for n in read_model(file).graph().leaves("weight") if n.static_scale is not None
        }
    assert given == {name: found.scale for found in report.inputs if found.used for name in found.names}


def test_inputs_that_static_codes_spoil_become_e4m3_numbers(
    source: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channels that are 100 times larger leave the others a few codes of 8 bits, and e4m3 numbers as many as before."""
    spoiled, want = with_outliers(source, tmp_path), logits(source)
    monkeypatch.setattr(schemes, "MIXED", 0.0)  # a scale for each token is spoiled, too
    report = quantize(spoiled, tmp_path / "made", "int8-w8a8", text, "rtn", activations="static-fp8", samples=1)
    found_in = {name: found.scheme for found in report.inputs for name in found.names}
    numbers = {name for name, scheme in found_in.items() if scheme == "fp8"}
    assert {name.split(".")[2] for name in numbers} == {"attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"}
    assert len(found_in) == 14
    said = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]
    first, second = (said["config_groups"][f"group_{i}"] for i in (0, 1))
    assert (said["format"], first["format"], second["format"]) == (
        "mixed-precision",
        "int-quantized",
        "float-quantized",
    )
    assert (second["weights"]["type"], second["input_activations"]["dynamic"]) == ("float", False)
    assert len(second["targets"]) == len(numbers) == 10
    with open_model_file(tmp_path / "made") as file:
        assert {name for name, info in file.tensors.items() if info.type_name == "FP8"} == numbers
        given = {n.name: n.static_scale for n in read_model(file).graph().leaves("weight") if n.static_scale}
    assert given == {name: found.scale for found in report.inputs for name in found.names}
    quantize(spoiled, tmp_path / "codes", "int8-w8a8", text, "rtn", activations="static", samples=1)
    lost, spoilt = (rounded_tokens(tmp_path / name, want) for name in ("made", "codes"))
    assert lost < 0.1 * spoilt
    with pytest.raises(UsageError, match="'static-fp8' with w4a8: they need int8-w8a8"):
        quantize(source, tmp_path / "no", "w4a8", text, "gptq", activations="static-fp8")


@pytest.mark.parametrize("kv", ["fp8", "int8"])
def test_scales_of_caches_are_of_what_these_held(kv: Any, source: str, text: str, tmp_path: Path) -> None:
    quantize(source, tmp_path / "made", "w8a16", text, "rtn", kv=kv, samples=2)
    stats = collect_statistics(source, text, tmp_path / "stats", samples=2, context=32, device="reference", threads=1)
    with open_model_file(tmp_path / "made") as file:
        assert isinstance(file, CheckpointFile)
        scales = file.kv_scales()
    assert len(scales) == 4
    for i in range(2):
        for end in "kv":
            largest = stats.caches[f"blk.{i}.cache_{end}"].absmax.max(axis=1)
            want = largest.max() / 448 if kv == "fp8" else largest / 127
            np.testing.assert_allclose(scales[f"model.layers.{i}.self_attn.{end}_scale"], want, rtol=0.02)
    config = json.loads((tmp_path / "made/config.json").read_text())["quantization_config"]["kv_cache_scheme"]
    assert (config["type"], config["num_bits"], config["dynamic"]) == ({"fp8": "float", "int8": "int"}[kv], 8, False)
    with pytest.raises(UsageError, match=r"--kv .* with layout gptq"):
        quantize_checkpoint(source, tmp_path / "no", "w8a16", layout="gptq", method=SchemeMethod(text, "rtn", kv=kv))


@pytest.mark.slow
def test_what_a_report_compares_is_written_as_it_says(source: str, text: str, tmp_path: Path) -> None:
    found = ways(["q4_0"], ["int8-w8a8"], ["rtn", "gptq", "smoothquant"])
    assert [(way.name, way.role) for way in found] == [
        ("Q4_0", "preset"), ("Q4_0", "preset, gptq"), ("int8-w8a8", "scheme"), ("int8-w8a8", "scheme, gptq"),
        ("int8-w8a8", "scheme, smoothquant"),
    ]
    made = {}
    for way in found:
        folder = tmp_path / way.role
        folder.mkdir()
        with open_model_file(way.write(source, str(folder), text, "reference", 1)) as file:
            made[way.role] = {name: file.tensor(name, copy=True).data for name in file.tensors}
            assert file.tensors["blk.1.ffn_up.weight"].type_name == ("INT8" if way.kind == "scheme" else "Q4_0")
    by_kind = [[made[role]["blk.1.ffn_up.weight"].tobytes() for role in made if role.startswith(kind)]
               for kind in ("preset", "scheme")]
    assert [len(set(bytes_)) for bytes_ in by_kind] == [2, 3]


def test_a_report_compares_what_there_is_of_a_model(source: str) -> None:
    found = ways(["IQ3_M", "Q4_K_M"], ["w4a16", "w4a8", "fp8-block"], ["gptq", "awq", "rptq", "auto"])
    made, left_out = those_there_are(source, found)
    assert [way.title for way in made] == [
        "IQ3_M", "Q4_K_M", "Q4_K_M by gptq", "w4a16", "w4a16 by gptq", "w4a16 by awq", "w4a16 by auto",
        "w4a8", "w4a8 by gptq", "w4a8 by awq", "w4a8 by rptq", "w4a8 by auto",
        "fp8-block", "fp8-block by awq", "fp8-block by auto",
    ]
    assert [said.split(":")[0] for said in left_out] == [
        "IQ3_M by gptq", "w4a16 by rptq", "fp8-block by gptq", "fp8-block by rptq",
    ]
    assert "becomes IQ3_S, a format that GPTQ has no levels for" in left_out[0]


def test_a_dry_run_writes_nothing(source: str, text: str, tmp_path: Path) -> None:
    method, before = SchemeMethod(text, "qronos", True, context=32, device="reference"), set(tmp_path.iterdir())
    found = quantize_checkpoint(source, tmp_path / "made", "w4a8", method=method, dry_run=True)
    assert set(tmp_path.iterdir()) == before
    assert all(row.error is None for row in found.rows)
    assert sum(row.type == "INT4" for row in found.rows) == 14


def test_what_does_not_go_together_is_refused(source: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"method 'gtpq' \(allowed: rtn, gptq, qronos, awq"):
        SchemeMethod(text, "gtpq")
    with pytest.raises(
        UsageError, match=r"method gptq does not apply to fp8-block, .* \(allowed: rtn, awq"
    ):
        quantize(source, tmp_path / "made", "fp8-block", text, "gptq")
    with pytest.raises(
        UsageError, match=r"static activations with scheme w4a16 \(allowed: int8-w8a8, w4a8, w4a8-g128, fp8"
    ):
        quantize(source, tmp_path / "made", "w4a16", text, "rptq")
    method = SchemeMethod(text, "rtn", activations="static")
    with pytest.raises(UsageError, match="static activations with layout qqq: they need compressed-tensors"):
        quantize_checkpoint(source, tmp_path / "made", "w4a8", layout="qqq", method=method)
    with pytest.raises(UsageError, match=r"'dynamic' with method rptq \(allowed: static, mixed, static-fp8\)"):
        SchemeMethod(text, "rptq", activations="dynamic")
    with pytest.raises(UsageError, match="context is 1000"):
        quantize(source, tmp_path / "made", "w4a8", text, "rtn", context=1000)
    with pytest.raises(UsageError, match=r"kv is 'int4' \(allowed: int8, fp8"):
        SchemeMethod(text, kv="int4")  # type: ignore[arg-type]
    assert not (tmp_path / "made").exists()
