"""Models into checkpoints of 8-bit schemes: from GGUF files and from folders, whole or not at all."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import transformers

from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import FileError, ModelError, NonFiniteError, QuantFormatError, UsageError
from octavo.formats import by_name, dequantize, quantize_reference
from octavo.huggingface import SCHEMES, open_model_file
from octavo.io.gguf import GGUFFile, write_gguf
from octavo.models import read_model
from octavo.quantizers import quantize_file
from octavo.quantizers.schemes import checkpoint_folder
from octavo.quantizers.schemes.checkpoint_folder import quantize_checkpoint
from octavo.runtime import resolve
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.text import Tokenizer
from tests.convert.folders import save, spm
from tests.convert.folders import write as write_json
from tests.models.checkpoints import CASES, make, metadata, tensors
from tests.models.table import save_only
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny
from tests.sampling import slow, some

BYTES = {"int8-w8a8": 1.0, "w4a8": 0.5, "w4a8-g128": 0.5, "fp8": 1.0}
LOST = {"int8-w8a8": 1e-3, "w4a8": 0.25, "w4a8-g128": 0.2, "fp8": 0.01}
"""Of the logits of tiny random models, whose 4-bit weights cost a tenth; of models that have nothing in common 2."""
NVFP4, F16 = by_name("NVFP4"), by_name("F16")
ERRORS = {"int8-w8a8": 0.01, "w4a8": 0.2, "w4a8-g128": 0.15, "fp8": 0.03}


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a checkpoint as bytes, for float8 has no NumPy type in the safetensors package."""
    with open(folder / "model.safetensors", "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    header.pop("__metadata__")
    return {name: np.frombuffer(data[slice(*t["data_offsets"])], np.uint8) for name, t in header.items()}


@pytest.mark.few(2)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_demo_model(tmp_path: Path, scheme: str) -> None:
    report = quantize_checkpoint(resolve("demo"), tmp_path / "out", scheme)
    linear = [row for row in report.rows if row.error is not None]
    assert len(linear) == 70
    assert max(row.error for row in linear) < ERRORS[scheme]
    assert {row.type for row in linear} == {SCHEMES[scheme].format}
    values = sum(np.prod(row.shape) for row in linear)
    assert 1 <= sum(row.nbytes for row in linear) / (values * BYTES[scheme]) < 1.1
    assert report.nbytes < os.path.getsize(tmp_path / "out/model.safetensors") < report.nbytes + 30_000
    with open_model_file(tmp_path / "out") as made, GGUFFile.open(resolve("demo")) as source:
        assert set(made.tensors) == set(source.tensors)
        for row in linear[::7]:
            want, got = (dequantize(file.tensor(row.name)).astype(np.float64) for file in (source, made))
            lost = np.sqrt(((got - want) ** 2).sum() / (want**2).sum())
            assert lost == pytest.approx(row.error, rel=1e-4)
        for name in ("token_embd.weight", "output_norm.weight"):
            assert np.array_equal(made.tensor(name).data, source.tensor(name).data)
        kept = [key for key in source.metadata if key.startswith(("qwen3.", "tokenizer."))]
        assert not [key for key in kept if not np.array_equal(made.metadata.get(key), source.metadata[key])
                    and key != "tokenizer.ggml.eot_token_id"]
        texts = ["What is 12 times 7?", "<|im_start|>user\n3.5 km in miles?<|im_end|>", " a  b\n\n c "]
        mine, theirs = Tokenizer.from_gguf(made), Tokenizer.from_gguf(source)
        assert [mine.encode(t) for t in texts] == [theirs.encode(t) for t in texts]
        assert mine.stop_ids == theirs.stop_ids


FAMILIES = [("llama3-rope", scheme) for scheme in SCHEMES]
FAMILIES += [(case, "int8-w8a8") for case in ("llama-biased", "mistral", "qwen2", "qwen3", "phi3-long", "gemma3")]
QUICK = {
    ("llama3-rope", "w4a8-g128"),
    ("llama3-rope", "fp8"),
    ("llama-biased", "int8-w8a8"),
    ("phi3-long", "int8-w8a8"),
}
"""Groups, numbers, biases, and matrices that are several at once."""


@pytest.mark.few(3)
@pytest.mark.parametrize(("case", "scheme"), [c if c in QUICK else slow(c) for c in FAMILIES])
def test_a_folder_of_each_family_computes_much_the_same(tmp_path: Path, case: str, scheme: str) -> None:
    save(tmp_path / "hf", CASES[case])
    quantize_checkpoint(tmp_path / "hf", tmp_path / "out", scheme)
    before, after = (logits(tmp_path / name) for name in ("hf", "out"))
    assert nmse(after, before) < LOST[scheme]


def logits(model: Path) -> np.ndarray:
    """Logits of some tokens by definition, activations not quantized."""
    with open_model_file(model) as file:
        return Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=64)).logits([3, 17, 250, 4, 4])


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.square(got - want).sum() / np.square(want).sum())


def test_scales_beside_weights_go_into_them(tmp_path: Path) -> None:
    """Of NVFP4 weights with a scale, and of an output matrix with one, which stays a float."""
    save(tmp_path / "hf", CASES["llama-tied"])
    with open_model_file(tmp_path / "hf") as file:
        tensors = {name: dequantize(file.tensor(name)) for name in file.tensors}
        keys = {key: file.metadata[key] for key in file.metadata}
    tensors["output.weight"] = tensors["token_embd.weight"]
    attention = {n: w for n, w in tensors.items() if ".attn_" in n and w.ndim > 1}
    plain = tensors | {n: dequantize(quantize_reference(w, NVFP4)) for n, w in attention.items()}
    beside: dict[str, Any] = dict(plain)
    for name, w in plain.items():
        if w.ndim > 1 and name != "token_embd.weight":
            beside[name] = quantize_reference(w, NVFP4 if ".attn_" in name else F16, name)
            beside[name.replace("weight", "scale")] = np.array([0.25], np.float32)
    for name, tensors in (("plain", plain), ("beside", beside)):
        write_gguf(tmp_path / f"{name}.gguf", "llama", keys, tensors)
    quantize_checkpoint(tmp_path / "beside.gguf", tmp_path / "out", "int8-w8a8", allow_requantize=True)
    assert nmse(logits(tmp_path / "out"), logits(tmp_path / "beside.gguf")) < LOST["int8-w8a8"]
    assert nmse(logits(tmp_path / "plain.gguf"), logits(tmp_path / "beside.gguf")) > 0.5


def test_biases_that_config_json_has_no_words_for(tmp_path: Path) -> None:
    save(tmp_path / "hf", CASES["llama-biased"])
    with open_model_file(tmp_path / "hf") as file:
        tensors = {name: dequantize(file.tensor(name)) for name in file.tensors if name != "blk.1.attn_output.bias"}
        write_gguf(tmp_path / "m.gguf", "llama", {key: file.metadata[key] for key in file.metadata}, tensors)
    with pytest.raises(ModelError, match=r"blk\.1\.attn_output\.bias: is missing, and attention_bias"):
        quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "out", "int8-w8a8")


@pytest.mark.parametrize("case", some(["llama", "qwen2", "qwen3", "llama-linear", "qwen2-yarn", "mistral"], 3))
def test_a_file_and_a_folder_give_the_same(tmp_path: Path, case: str) -> None:
    """Rows of q and k are where the checkpoint had them, whichever way they came."""
    model = save(tmp_path / "hf", CASES[case])
    words = {key: value for key, value in open_model_file(tmp_path / "hf").metadata.items() if "tokenizer" in key}
    keys = metadata(CASES[case], model.config) | words
    write_gguf(tmp_path / "m.gguf", CASES[case].arch, keys, tensors(CASES[case], model))
    for name in ("hf", "m.gguf"):
        quantize_checkpoint(tmp_path / name, tmp_path / f"{name}-out", "int8-w8a8")
    first, second = arrays(tmp_path / "hf-out"), arrays(tmp_path / "m.gguf-out")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    stored = safetensors.numpy.load_file(tmp_path / "hf-out/model.safetensors")
    w = model.state_dict()["model.layers.1.self_attn.k_proj.weight"].numpy()
    got = stored["model.layers.1.self_attn.k_proj.weight"] * stored["model.layers.1.self_attn.k_proj.weight_scale"]
    assert np.abs(got - w).max() <= 0.501 * stored["model.layers.1.self_attn.k_proj.weight_scale"].max()
    loaded = [transformers.AutoConfig.from_pretrained(tmp_path / f"{name}-out") for name in ("hf", "m.gguf")]
    for key in ("hidden_size", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings", "rope_parameters"):
        assert getattr(loaded[0], key) == getattr(loaded[1], key), key


OWN_KEYS = {
    "qwen3moe": ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    "qwen2moe": ("num_experts", "num_experts_per_tok", "shared_expert_intermediate_size", "norm_topk_prob"),
    "mixtral": ("num_local_experts", "num_experts_per_tok", "intermediate_size", "sliding_window"),
    "seed_oss-odd": ("attention_bias", "attention_out_bias", "mlp_bias"),
    "ernie4_5-odd": ("use_bias", "tie_word_embeddings"),
}


@pytest.mark.parametrize("case", [case if case == "qwen3moe" else slow(case) for case in OWN_KEYS])
def test_weights_and_words_of_a_file_and_of_a_folder_give_the_same(tmp_path: Path, case: str) -> None:
    sizes = {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96} if case == "qwen2moe" else {}
    of = CASES.get(case) or TABLE[case]
    save(tmp_path / "hf", replace(of, options={**of.options, **sizes}))
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    for name in ("hf", "m.gguf"):
        quantize_checkpoint(tmp_path / name, tmp_path / f"{name}-out", "int8-w8a8")
    first, second = arrays(tmp_path / "hf-out"), arrays(tmp_path / "m.gguf-out")
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    loaded = [transformers.AutoConfig.from_pretrained(tmp_path / f"{name}-out") for name in ("hf", "m.gguf")]
    assert loaded[0].model_type == loaded[1].model_type
    for key in ("architectures", *OWN_KEYS[case]):
        assert getattr(loaded[0], key) == getattr(loaded[1], key), key
    assert np.array_equal(*(logits(tmp_path / f"{name}-out") for name in ("hf", "m.gguf")))


def test_the_folder_keeps_what_went_with_the_weights(tmp_path: Path) -> None:
    save(tmp_path / "hf", CASES["llama"], dtype="bfloat16")
    write_json(tmp_path / "hf", "generation_config.json", {"temperature": 0.6})
    (tmp_path / "hf/chat_template.jinja").write_text("{{ messages }}")
    (tmp_path / "hf/additional_chat_templates").mkdir()
    (tmp_path / "hf/additional_chat_templates/rag.jinja").write_text("{{ documents }}")
    quantize_checkpoint(tmp_path / "hf", tmp_path / "out", "w4a8-g128")
    names = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
    for name in (*names, "additional_chat_templates/rag.jinja"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "hf" / name).read_bytes()
    before, after = (json.loads((tmp_path / f / "config.json").read_text()) for f in ("hf", "out"))
    found = after.pop("quantization_config")
    assert after == before
    group = found["config_groups"]["group_0"]
    assert (found["quant_method"], found["format"], found["ignore"]) == (
        "compressed-tensors", "pack-quantized", ["lm_head"],
    )
    assert group["weights"] | {"num_bits": 4, "strategy": "group", "group_size": 128} == group["weights"]
    assert (
        group["input_activations"] | {"num_bits": 8, "strategy": "token", "dynamic": True}
        == (group["input_activations"])
    )
    assert arrays(tmp_path / "out")["lm_head.weight"].nbytes == 320 * 256 * 2


@pytest.mark.parametrize("case", ["rwkv7"])
def test_folders_with_other_tensors_are_not_written(tmp_path: Path, case: str) -> None:
    """Not even rounded: what is written would be in no form that others read."""
    save_only(tmp_path / "hf", TABLE[case])
    with pytest.raises(
        UsageError, match=r"one tensor in GGUF, and several in folders: it has no place in a checkpoint"
    ):
        quantize_checkpoint(tmp_path / "hf", tmp_path / "out", "int8-w8a8")
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_a_sentencepiece_vocabulary_comes_back(tmp_path: Path) -> None:
    case = CASES["llama"]
    model = make(case)
    model.config.vocab_size = 512
    model.resize_token_embeddings(512)
    model.save_pretrained(tmp_path / "hf")
    spm().save(str(tmp_path / "hf/tokenizer.json"))
    write_json(
        tmp_path / "hf", "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    )
    with open_model_file(tmp_path / "hf") as file:
        words = {key: file.metadata[key] for key in file.metadata if "tokenizer" in key}
    keys = metadata(case, model.config) | words
    write_gguf(tmp_path / "m.gguf", "llama", keys, tensors(case, model))
    quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "out", "fp8")
    hf = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    with open_model_file(tmp_path / "out") as file:
        ours = Tokenizer.from_gguf(file)
    for text in ("Licensed under the License, Version 2.0", "é café", "a  b"):
        assert ours.encode(text) == hf.encode(text) == spm().encode(text).ids


def test_a_dry_run_says_what_would_be(tmp_path: Path) -> None:
    dry = quantize_checkpoint(resolve("demo"), tmp_path / "out", "w4a8", dry_run=True)
    assert not list(tmp_path.iterdir())
    real = quantize_checkpoint(resolve("demo"), tmp_path / "out", "w4a8")
    assert [(r.name, r.type, r.nbytes) for r in dry.rows] == [(r.name, r.type, r.nbytes) for r in real.rows]
    assert dry.dry_run
    assert all(row.error is None for row in dry.rows)


def test_threads_and_progress_change_nothing(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    for threads in (1, 3):
        quantize_checkpoint(
            resolve("demo"), tmp_path / str(threads), "int8-w8a8", threads=threads,
            progress=lambda *args: told.append(args),
        )
    assert told[-1][1] == told[-1][2] == 7_477_760
    first, second = arrays(tmp_path / "1"), arrays(tmp_path / "3")
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("place", ["a file", "a folder with a file", "a folder that is not there"])
def test_places_where_nothing_is_written(tmp_path: Path, place: str) -> None:
    dst = tmp_path / "out"
    if place == "a file":
        dst.write_text("mine")
    elif place == "a folder with a file":
        dst.mkdir()
        (dst / "mine").write_text("mine")
    else:
        dst = tmp_path / "no" / "out"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileError, match="there is no folder" if place == "a folder that is not there" else "new"):
        quantize_checkpoint(resolve("demo"), dst, "fp8")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    quantize_checkpoint(resolve("demo"), tmp_path / "out", "fp8")
    assert (tmp_path / "out/config.json").exists()


@pytest.mark.parametrize("step", ["write_safetensors", "_write_others", "read_folder"])
def test_what_is_interrupted_leaves_nothing(tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = getattr(checkpoint_folder, step)

    def interrupted(*arguments: Any) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_folder, step, interrupted)
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(resolve("demo"), tmp_path / "out", "int8-w8a8")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(checkpoint_folder.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FileError, match="bytes of disk space, but only 1,000 are free"):
        quantize_checkpoint(resolve("demo"), tmp_path / "out", "int8-w8a8")
    assert not list(tmp_path.iterdir())


def test_values_that_are_not_finite(tmp_path: Path) -> None:
    kept = tiny.tensors()
    kept["blk.1.ffn_down.weight"][3, 5] = np.nan
    write_gguf(tmp_path / "m.gguf", "qwen3", tiny.metadata(), kept)
    with pytest.raises(NonFiniteError, match=r"blk\.1\.ffn_down\.weight"):
        quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "out", "int8-w8a8")
    assert [p.name for p in tmp_path.iterdir()] == ["m.gguf"]


def test_models_that_no_scheme_takes(tmp_path: Path) -> None:
    write_gguf(tmp_path / "odd.gguf", "qwen3", tiny.metadata(), tiny.tensors())
    said = r"attn_q\.weight'.*a row of 264 values \(allowed: multiples of 128; schemes of such rows: int8-w8a8, fp8"
    with pytest.raises(QuantFormatError, match=said):
        quantize_checkpoint(tmp_path / "odd.gguf", tmp_path / "out", "w4a8")
    write_gguf(tmp_path / "moe.gguf", "qwen3moe", tiny.metadata("qwen3moe"), tiny.tensors("qwen3moe"))
    with pytest.raises(QuantFormatError, match=r"ffn_gate_exps.*rows of 264 values \(allowed: multiples of 32\)"):
        quantize_checkpoint(tmp_path / "moe.gguf", tmp_path / "out", "int8-w8a8")
    quantize_checkpoint(resolve("demo"), tmp_path / "once", "int8-w8a8")
    with pytest.raises(UsageError, match=r"is quantized already.*--allow-requantize"):
        quantize_checkpoint(tmp_path / "once", tmp_path / "out", "int8-w8a8")
    model = make(CASES["llama3-rope"])
    words = tiny.TOKENIZER
    keys = metadata(CASES["llama3-rope"], model.config) | words
    write_gguf(tmp_path / "l3.gguf", "llama", keys, tensors(CASES["llama3-rope"], model))
    with pytest.raises(ModelError, match=r"no exact words for.*the checkpoint itself"):
        quantize_checkpoint(tmp_path / "l3.gguf", tmp_path / "out", "int8-w8a8")
    with pytest.raises(UsageError, match=r"'int4'.*int8-w8a8, w4a8, w4a8-g128, fp8"):
        quantize_checkpoint(resolve("demo"), tmp_path / "out", "int4")


def test_a_quantized_file_is_taken_when_it_is_asked_for(tmp_path: Path) -> None:
    quantize_file(resolve("demo"), tmp_path / "q8.gguf", "Q8_0")
    with pytest.raises(UsageError, match=r"is Q8_0, and quantizing it again would add error.*--allow-requantize"):
        quantize_checkpoint(tmp_path / "q8.gguf", tmp_path / "out", "int8-w8a8")
    report = quantize_checkpoint(tmp_path / "q8.gguf", tmp_path / "out", "int8-w8a8", allow_requantize=True)
    assert {row.type for row in report.rows} == {"INT8", "F16", "F32"}


def test_a_quantized_folder_is_taken_when_it_is_asked_for(tmp_path: Path) -> None:
    """What int8 holds exactly, 4 bits by 8 with groups, is the same model afterwards."""
    quantize_checkpoint(resolve("demo"), tmp_path / "once", "w4a8-g128")
    report = quantize_checkpoint(tmp_path / "once", tmp_path / "again", "int8-w8a8", allow_requantize=True)
    linear = [row for row in report.rows if row.error is not None]
    assert {(row.source_type, row.type) for row in linear} == {("INT4_G128", "INT8")}
    assert max(row.error for row in linear if row.error is not None) < 1e-6
    with open_model_file(tmp_path / "once") as once, open_model_file(tmp_path / "again") as again:
        for name in ("blk.3.attn_q.weight", "token_embd.weight"):
            np.testing.assert_allclose(dequantize(again.tensor(name)), dequantize(once.tensor(name)), rtol=1e-6)


def test_templates_with_names_go_into_the_folder(tmp_path: Path) -> None:
    with GGUFFile.open(resolve("demo")) as file:
        metadata = {key: file.metadata.typed(key) for key in file.metadata if key != "general.architecture"}
        metadata["tokenizer.chat_template.rag"] = "{{ messages[0].content }}!"
        write_gguf(tmp_path / "m.gguf", "qwen3", metadata, {n: file.tensor(n, copy=True) for n in file.tensors})
    quantize_checkpoint(tmp_path / "m.gguf", tmp_path / "out", "int8-w8a8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "Hi"}]
    assert theirs.apply_chat_template(messages, chat_template="rag", tokenize=False) == "Hi!"
    with open_model_file(tmp_path / "out") as folder:
        found = Tokenizer.from_gguf(folder)
        assert found.chat_template("rag").render(messages) == "Hi!"
        assert found.chat_template().render(messages, False) == theirs.apply_chat_template(messages, tokenize=False)


def test_transformers_takes_the_tokenizer_and_the_template(tmp_path: Path) -> None:
    quantize_checkpoint(resolve("demo"), tmp_path / "out", "int8-w8a8")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    messages = [{"role": "user", "content": "What is 12 times 7?"}]
    text = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    with open_model_file(tmp_path / "out") as file:
        ours = Tokenizer.from_gguf(file)
        assert ours.chat_template().render(messages) == text
        assert ours.encode(text) == theirs.encode(text)
