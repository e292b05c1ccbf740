"""Linear layers that are to stay as they are: in the file, in the configuration, and in what methods do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from octavo.calibrate import SchemeMethod
from octavo.errors import UsageError
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.models import read_model
from octavo.quantizers import Report, quantize_checkpoint
from octavo.quantizers.schemes.checkpoint_folder import ignored_layers
from tests.calibrate.test_scheme_experts import logits
from tests.runtime import tiny
from tests.sampling import slow

DOWN = [f"model.layers.{i}.mlp.down_proj" for i in range(2)]
FIRST = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]


def quantize(src: str, dst: Path, scheme: str, method: SchemeMethod | None, **options: Any) -> tuple[Report, Any]:
    report = quantize_checkpoint(src, dst, scheme, method=method, threads=1, **options)
    return report, json.loads((dst / "config.json").read_text())["quantization_config"]


def by(text: str, kind: str, **options: Any) -> SchemeMethod:
    return SchemeMethod(text, kind, **{"context": 32, "samples": 8, "device": "reference", "threads": 1, **options})


@pytest.mark.parametrize(("layout", "kind"), [
    ("compressed-tensors", "gptq"), ("gptq", "rtn"), slow(("compressed-tensors", "auto")), slow(("awq", "awq")),
])
def test_what_is_ignored_stays(layout: str, kind: str, source: str, text: str, tmp_path: Path) -> None:
    """By names in GGUF and in the checkpoint; other layers are quantized."""
    ignore = ["ffn_down", r"layers\.0\.self_attn\.[qkv]_"]
    report, config = quantize(source, tmp_path / "out", "w4a16-g128", by(text, kind), layout=layout, ignore=ignore)
    left = {f"blk.{i}.ffn_down.weight" for i in range(2)} | {f"blk.0.attn_{part}.weight" for part in "qkv"}
    made = {row.name: row for row in report.rows if row.error is not None}
    assert made.keys() == {
        f"blk.{i}.{end}.weight" for i in range(2)
        for end in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
    } - left
    with open_model_file(source) as was, open_model_file(tmp_path / "out") as file:
        for name in left if kind not in ("awq", "auto") else ():
            np.testing.assert_array_equal(dequantize(file.tensor(name)), dequantize(was.tensor(name)))
            assert file.tensors[name].type_name == "F32"
    if layout == "gptq":
        said = [name.removeprefix("-:").removesuffix("$").replace("\\", "") for name in config["dynamic"]]
    else:
        head, *said = config["ignore" if layout == "compressed-tensors" else "modules_to_not_convert"]
        assert head == "lm_head"
    assert sorted(said) == sorted([*DOWN, *FIRST])
    want = logits(Path(source))
    assert np.square(logits(tmp_path / "out") - want).sum() < 0.4 * np.square(want).sum()


def test_it_has_no_static_scale_and_is_in_no_group(source: str, text: str, tmp_path: Path) -> None:
    _, config = quantize(source, tmp_path / "out", "int8-w8a8", by(text, "rptq"), ignore=["down_proj"])
    assert config["ignore"] == ["lm_head", *DOWN]
    assert not {name for group in config["config_groups"].values() for name in group["targets"]} & set(DOWN)
    tensors = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    assert {name for name in tensors if "down_proj" in name} == {f"{name}.weight" for name in DOWN}
    assert "model.layers.0.mlp.up_proj.input_scale" in tensors
    assert np.isfinite(logits(tmp_path / "out")).all()


def test_experts_stay_each_a_tensor_of_its_own(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    source = tiny.write(tmp_path / "src.gguf", "qwen3moe")
    report, config = quantize(source, tmp_path / "out", "w4a16-g128", None, ignore=["blk.1.ffn_up_exps"])
    names = [f"model.layers.1.mlp.experts.{e}.up_proj" for e in range(4)]
    assert config["ignore"][-4:] == names
    tensors = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    with open_model_file(source) as was, open_model_file(tmp_path / "out") as file:
        name = "blk.1.ffn_up_exps.weight"
        want = dequantize(was.tensor(name))
        np.testing.assert_array_equal(dequantize(file.tensor(name)), want)
        np.testing.assert_array_equal(np.stack([tensors[f"{each}.weight"] for each in names]), want)
        (row,) = [row for row in report.rows if row.name == name]
        assert (row.type, row.nbytes) == ("F32", want.nbytes)


def test_rows_that_a_scheme_can_not_hold_can_be_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny.widen(monkeypatch)
    monkeypatch.setattr(tiny, "N_FF", 64)
    source = tiny.write(tmp_path / "src.gguf")
    _, config = quantize(source, tmp_path / "out", "w4a16-g128", None, ignore=["ffn_down"])
    assert config["ignore"] == ["lm_head", *DOWN]


def test_patterns_that_mean_nothing(source: str) -> None:
    with open_model_file(source) as file:
        model = read_model(file)
        assert ignored_layers(model, []) == frozenset()
        for pattern, said in (
            ("(", r"--ignore '\(' is not a valid regular expression"),
            ("a{99999999999}", r"--ignore 'a\{99999999999\}' is not a valid regular expression"),
            ("attn_norm", r"--ignore is 'attn_norm', which matches no linear layer \(allowed: .*attn_q.*q_proj"),
            ("lm_head", "matches no linear layer"),
            (".", r"--ignore is '\.', which leaves no layer to quantize"),
        ):
            with pytest.raises(UsageError, match=said):
                ignored_layers(model, [pattern])


@pytest.mark.parametrize(("arch", "patterns", "said"), [
    ("qwen3", ["attn_v"], [("attn_q, attn_k and attn_v", "attn_v in 2 layers")]),
    ("qwen3", [r"layers\.0\..*(q|k|gate)_proj"], [
        ("attn_q, attn_k and attn_v", "attn_q and attn_k in 1 layer"), ("ffn_gate and ffn_up", "ffn_gate in 1 layer"),
    ]),
    ("qwen3moe", ["blk.1.ffn_down_exps"], [
        ("ffn_gate_exps, ffn_up_exps and ffn_down_exps", "ffn_down_exps in 1 layer"),
    ]),
    ("qwen3", ["ffn_down", "attn_output", "attn_[qkv]", r"blk\.1\.ffn_(gate|up)"], []),
    ("qwen3moe", ["_exps"], []),
])
def test_layers_that_vllm_joins(
    arch: str, patterns: list[str], said: list[tuple[str, str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One of them without the others gets a warning, as vLLM does not load such a checkpoint."""
    with open_model_file(tiny.write(tmp_path / "src.gguf", arch)) as file:
        ignored_layers(read_model(file), patterns)
    assert [record.getMessage() for record in caplog.records] == [
        f"vLLM joins {joined} and wants all of them or none as they are: --ignore leaves {left}"
        for joined, left in said
    ]
