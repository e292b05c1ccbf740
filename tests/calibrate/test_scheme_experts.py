"""Schemes of models with experts: a linear layer for each, in every layout; methods, and experts of few tokens."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from octavo.backends.reference import ReferenceBackend
from octavo.calibrate.schemes.scheme_method import KINDS, SchemeMethod
from octavo.errors import UsageError
from octavo.formats import dequantize
from octavo.huggingface import open_model_file
from octavo.huggingface.scheme_weight import nearest, values_of
from octavo.huggingface.schemes import CHECKPOINT_SCHEMES
from octavo.huggingface.tokenizer.tokenizer_out import tokenizer_files
from octavo.huggingface.writers import WRITERS
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.quantizers import quantize_checkpoint
from octavo.quantizers.job.quantization_record import FILE
from octavo.runtime.engine.engine import Engine, EngineConfig
from tests.runtime import tiny
from tests.sampling import slow

EXPERTS, LAYERS = 4, 2
NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "ffn_gate_inp": "mlp.gate",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm",
    **{f"ffn_{part}_exps": f"mlp.experts.*.{part}_proj" for part in ("gate", "up", "down")},
}
OUTER = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a tiny Qwen3-MoE, a tensor for each expert's weight, all rows of 256 values."""
    tiny.widen(monkeypatch)
    weights, out = tiny.tensors("qwen3moe"), dict[str, np.ndarray]()
    for name, values in weights.items():
        if name in OUTER:
            out[OUTER[name]] = values
            continue
        _, layer, part, _ = name.split(".")
        full = f"model.layers.{layer}.{NAMES[part]}.weight"
        experts = enumerate(values) if "*" in full else [(0, values)]
        out |= {full.replace("*", str(i)): np.ascontiguousarray(each) for i, each in experts}
    folder = tmp_path / "hf"
    folder.mkdir()
    safetensors.numpy.save_file(out, folder / "model.safetensors")
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "hidden_size": 256,
        "intermediate_size": 256, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 64, "vocab_size": tiny.N_VOCAB, "max_position_embeddings": 512, "rope_theta": 10000.0,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "attention_bias": False, "num_experts": EXPERTS,
        "num_experts_per_tok": 2, "moe_intermediate_size": 256, "norm_topk_prob": True,
    }
    with GGUFFile.open(tiny.write(tmp_path / "words.gguf")) as words:
        for file, content in ({"config.json": config} | tokenizer_files(words)).items():
            (folder / file).write_text(json.dumps(content))
    return folder


@pytest.fixture
def text(tmp_path: Path) -> str:
    return tiny.write_letters(tmp_path / "text.txt", 900)


def stored(model: Path, name: str) -> np.ndarray:
    """A weight's values as products have them, its scales in it."""
    with open_model_file(model) as file:
        values, scale = dequantize(file.tensor(name)), name.removesuffix("weight") + "scale"
        if scale in file.tensors:
            values *= dequantize(file.tensor(scale))[:, None, None]
        return values


def logits(model: Path) -> np.ndarray:
    with open_model_file(model) as file:
        return Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64)).logits(list(range(97, 120)))


HELD = [(layout, scheme) for layout, writer in WRITERS.items() for scheme in writer.rows]
QUICK = {("compressed-tensors", "int8-w8a8"), ("gptq", "w4a16-g128")}


@pytest.mark.parametrize(("layout", "scheme"), [case if case in QUICK else slow(case) for case in HELD])
def test_each_expert_is_a_linear_layer(layout: str, scheme: str, source: Path, tmp_path: Path) -> None:
    """Weights are those of rounding each expert's matrix alone, and the folder's model computes with them."""
    report = quantize_checkpoint(source, tmp_path / "out", scheme, layout=layout, threads=1)
    kind = WRITERS[layout].scheme(CHECKPOINT_SCHEMES[scheme])
    for part in ("gate", "up", "down"):
        name = f"blk.1.ffn_{part}_exps.weight"
        want = [values_of(kind, nearest(kind, expert)) for expert in stored(source, name)]
        np.testing.assert_allclose(stored(tmp_path / "out", name), np.stack(want), rtol=1e-6)
        row = next(row for row in report.rows if row.name == name)
        assert (row.type, row.error is not None) == (kind.format(256).name, True)
    want_logits, got = logits(source), logits(tmp_path / "out")
    assert np.square(got - want_logits).sum() < 0.4 * np.square(want_logits).sum()


@pytest.mark.parametrize("layout", ["compressed-tensors", "gptq", "awq"])
def test_routers_and_the_output_matrix_stay(layout: str, source: Path, tmp_path: Path) -> None:
    """Under the names that vLLM asks for, and the configuration says so."""
    quantize_checkpoint(source, tmp_path / "out", "w4a16-g128", layout=layout, threads=1)
    tensors = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    said = json.loads((tmp_path / "out/config.json").read_text())["quantization_config"]
    routers = [f"model.layers.{i}.mlp.gate" for i in range(LAYERS)]
    was = safetensors.numpy.load_file(source / "model.safetensors")
    for name in ("lm_head", *routers):
        assert np.array_equal(tensors[f"{name}.weight"], was[f"{name}.weight"])
    end = "weight_packed" if layout == "compressed-tensors" else "qweight"
    packed = {name for name in tensors if ".experts." in name and name.endswith(end)}
    assert packed == {
        f"model.layers.{i}.mlp.experts.{e}.{part}_proj.{end}"
        for i in range(LAYERS) for e in range(EXPERTS) for part in ("gate", "up", "down")
    }
    key = {"compressed-tensors": "ignore", "gptq": "dynamic", "awq": "modules_to_not_convert"}[layout]
    if layout == "gptq":
        assert list(said[key]) == [f"-:model\\.layers\\.{i}\\.mlp\\.gate$" for i in range(LAYERS)]
    else:
        assert said[key] == ["lm_head", *routers]


CASES = [("w4a16-g128", "gptq"), *(slow(("w4a16-g128", kind)) for kind in KINDS if kind not in ("gptq", "rptq")),
         slow(("int8-w8a8", "rptq")),
         *(slow((scheme, "auto")) for scheme in CHECKPOINT_SCHEMES)]


@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_methods_make_each_expert_by_its_own_tokens(
    scheme: str, kind: str, source: Path, text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Experts with fewer tokens than inputs are listed, and rounded to nearest where Hessians are asked for."""
    options = {"context": 32, "device": "reference", "threads": 1}
    method = SchemeMethod(text, kind, samples=16, **options)  # type: ignore[arg-type]
    report = quantize_checkpoint(source, tmp_path / "out", scheme, method=method, threads=1)
    made = [row for row in report.rows if row.before is not None]
    assert len(made) == 7 * LAYERS
    before, after = (sum((getattr(row, end) or 0) ** 2 for row in made) for end in ("before", "error"))
    assert after <= before
    if "gptq" in KINDS[kind].ways and scheme != "fp8-block":
        (told,) = [line for line in caplog.messages if "experts with too few tokens are made by nearest: " in line]
        record = json.loads((tmp_path / "out" / FILE).read_text())
        assert record["starved"] == [asdict(found) for found in report.starved]
        assert f"{report.starved[0].input} expert {report.starved[0].expert} ({report.starved[0].tokens})" in told
        hows = {row.how for row in made if "_exps" in row.name and row.how}
        assert any("nearest" in how for how in hows)
        if (scheme, kind) == ("w4a16-g128", "gptq"):
            assert hows == {"gptq, nearest"}
    assert np.isfinite(logits(tmp_path / "out")).all()


@pytest.mark.parametrize(("scheme", "kind"), [("nvfp4a16", "rtn"), ("w4a16-g128", "gptq")])
def test_a_run_with_experts_goes_on(scheme: str, kind: str, source: Path, text: str, tmp_path: Path) -> None:
    """After an end in the middle, to the same bytes: what is kept has an expert's codes each."""

    def stop(what: str, done: int, total: int) -> None:
        if what == "calibration" and done > total // 2:
            raise KeyboardInterrupt

    def quantize(out: str, **options: object) -> bytes:
        given = {"context": 32, "device": "reference", "threads": 1, "samples": 4, **options}
        method = SchemeMethod(text, kind, **given)  # type: ignore[arg-type]
        quantize_checkpoint(source, tmp_path / out, scheme, method=method, threads=1)
        return (tmp_path / out / "model.safetensors").read_bytes() + (tmp_path / out / FILE).read_bytes()

    whole = quantize("whole")
    with pytest.raises(KeyboardInterrupt):
        quantize("again", progress=stop)
    assert quantize("again", resume=True) == whole


@pytest.mark.slow
@pytest.mark.parametrize("case", ["mixtral", "qwen2moe", "llama4", "gpt-oss", "granitemoe"])
def test_architectures(case: str, tmp_path: Path) -> None:
    """Experts that lie stacked in a folder are written one by one where the architecture has names for that."""
    from tests.convert.folders import save
    from tests.models.checkpoints import Case
    from tests.models.tiny_checkpoints import TABLE

    found = TABLE[case]
    wide = {"hidden_size": 128, "intermediate_size": 128, "moe_intermediate_size": 128, "intermediate_size_mlp": 128,
            "shared_expert_intermediate_size": 128}
    options = {key: value for key, value in wide.items() if key in found.options or key in ("hidden_size",)}
    save(tmp_path / "hf", Case(found.arch, found.config, found.options | options, found.metadata))
    if case in ("gpt-oss", "granitemoe"):
        with pytest.raises(UsageError, match=r"ffn_\w+_exps.*no place in a checkpoint of \S+ with a scheme"):
            quantize_checkpoint(tmp_path / "hf", tmp_path / "out", "int8-w8a8")
        assert not (tmp_path / "out").exists()
        return
    for scheme, most in (("int8-w8a8", 0.01), ("w4a16-g128", 0.2)):
        report = quantize_checkpoint(tmp_path / "hf", tmp_path / scheme, scheme)
        rows = [row for row in report.rows if row.error is not None]
        assert sum("_exps" in row.name for row in rows) >= 3
        for row in rows:
            want, got = (stored(tmp_path / name, row.name) for name in ("hf", scheme))
            assert np.square(got - want).sum() < most**2 * np.square(want).sum()
    names = set(safetensors.numpy.load_file(tmp_path / "int8-w8a8/model.safetensors"))
    assert sum(".experts.0." in name and name.endswith("weight_scale") for name in names) > 0
