"""Checkpoints converted: the logits are transformers', the ids are the tokenizer's, the file says what it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import NonFiniteError, UsageError
from octavo.formats import dequantize
from octavo.huggingface.tokenizer.pretokenizer import PROBE
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine, EngineConfig
from octavo.text import Tokenizer
from tests.convert import folders
from tests.models.checkpoints import CASES, Case, scaled
from tests.sampling import some

TOKENS = np.random.default_rng(7).integers(0, folders.VOCAB, 90).tolist()
YARN = {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0,
                            "original_max_position_embeddings": 64}}
ALL = CASES | {
    "qwen2-yarn": Case("qwen2", "Qwen2Config", YARN),
    "mistral": Case("llama", "MistralConfig", {"sliding_window": None, "num_key_value_heads": 1, "head_dim": 32}),
}


def logits(path: Path) -> np.ndarray:
    with GGUFFile.open(path) as file:
        engine = Engine(read_model(file), [ReferenceBackend()], EngineConfig(n_ctx=128, cache_type="f32"))
        return engine.logits(TOKENS)


def wanted(model: Any) -> np.ndarray:
    with torch.no_grad():
        out: np.ndarray = model(torch.tensor([TOKENS])).logits[0].numpy()
    return out


def error(got: np.ndarray, want: np.ndarray) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("name", some(ALL, 5))
def test_logits_match(name: str, tmp_path: Path) -> None:
    model = folders.save(tmp_path / "hf", ALL[name])
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "F32")
    assert error(logits(tmp_path / "out.gguf"), wanted(model)) < 1e-4


@pytest.mark.parametrize(("dtype", "kind"), [("bfloat16", "BF16"), ("float16", "F16"), ("float32", "F16")])
def test_auto_keeps_16_bits_as_they_are(dtype: str, kind: str, tmp_path: Path) -> None:
    model = folders.save(tmp_path / "hf", CASES["mixtral"], dtype=dtype)
    report = convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf")
    assert report.preset == kind
    types = {row.name: row.type for row in report.rows}
    assert types["blk.0.ffn_gate_exps.weight"] == types["output.weight"] == kind
    assert types["blk.0.ffn_gate_inp.weight"] == types["blk.1.attn_norm.weight"] == "F32"
    assert {row.error for row in report.rows} == {None} or dtype == "float32"
    assert error(logits(tmp_path / "out.gguf"), wanted(model)) < (1e-4 if dtype != "float32" else 1e-2)


def test_shards_are_one_model(tmp_path: Path) -> None:
    folders.save(tmp_path / "one", CASES["qwen3"])
    folders.save(tmp_path / "many", CASES["qwen3"], shards="500KB")
    assert len(list((tmp_path / "many").glob("model-*.safetensors"))) > 2
    for name in ("one", "many"):
        convert_checkpoint(tmp_path / name, tmp_path / f"{name}.gguf", "F32")
    with GGUFFile.open(tmp_path / "one.gguf") as one, GGUFFile.open(tmp_path / "many.gguf") as many:
        assert list(one.tensors) == list(many.tensors)
        for tensor in one.tensors:
            np.testing.assert_array_equal(one.tensor(tensor).data, many.tensor(tensor).data)


def test_any_preset(tmp_path: Path) -> None:
    model = folders.save(tmp_path / "hf", CASES["qwen3"], dtype="bfloat16")
    report = convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "q4_k_m")
    types = {row.name: row.type for row in report.rows}
    assert (types["token_embd.weight"], types["blk.0.attn_q.weight"]) == ("Q6_K", "Q4_K")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        assert file.metadata["general.file_type"] == 15
    assert error(logits(tmp_path / "out.gguf"), wanted(model)) < 0.5
    assert convert_checkpoint(tmp_path / "hf", tmp_path / "dry.gguf", "Q8_0", dry_run=True).nbytes
    assert not (tmp_path / "dry.gguf").exists()


def test_metadata(tmp_path: Path) -> None:
    folder = tmp_path / "My-Model"
    folders.save(folder, CASES["qwen3moe"], tokenizer=folders.byte_level("llama-bpe", bos=True))
    folders.write(
        folder, "generation_config.json", {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [1]}
    )
    convert_checkpoint(folder, tmp_path / "out.gguf")
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        got = {k: file.metadata[k] for k in file.metadata if not k.startswith("tokenizer.")}
        words = Tokenizer.from_gguf(file)
    assert got == {
        "general.architecture": "qwen3moe", "general.type": "model", "general.name": "My-Model",
        "general.size_label": "8x956K",
        "general.file_type": 1, "general.quantization_version": 2, "general.sampling.temp": pytest.approx(0.6),
        "general.sampling.top_k": 20, "general.sampling.top_p": pytest.approx(0.95), "qwen3moe.block_count": 2,
        "qwen3moe.context_length": 512, "qwen3moe.embedding_length": 256, "qwen3moe.feed_forward_length": 512,
        "qwen3moe.attention.head_count": 4, "qwen3moe.attention.head_count_kv": 2,
        "qwen3moe.attention.layer_norm_rms_epsilon": pytest.approx(1e-5), "qwen3moe.attention.key_length": 64,
        "qwen3moe.attention.value_length": 64, "qwen3moe.vocab_size": 320, "qwen3moe.rope.dimension_count": 64,
        "qwen3moe.rope.freq_base": 10000.0, "qwen3moe.expert_count": 8, "qwen3moe.expert_used_count": 3,
        "qwen3moe.expert_feed_forward_length": 256,
    }
    assert (words.model, words.pre, words.add_bos, words.n_vocab) == ("gpt2", "llama-bpe", True, 320)
    assert [words.texts[i] for i in (words.bos_id, words.eos_id)] == ["<|begin|>", "<|end|>"]
    assert words.texts[305:307] == ["[PAD305]", "[PAD306]"]
    assert words.chat_template().source == folders.TEMPLATE


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe", "gpt-2", "tekken", "smollm"])
def test_byte_level_ids_match(pre: str, tmp_path: Path) -> None:
    original = folders.byte_level(pre, bos=pre == "llama-bpe")
    folders.save(tmp_path / "hf", CASES["qwen2"], tokenizer=original)
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf")
    check_ids(Tokenizer.from_gguf(tmp_path / "out.gguf"), original, "<|im_start|>Hi user defined<|end|> there")


@pytest.mark.parametrize("metaspace", [False, True])
def test_sentencepiece_ids_match(metaspace: bool, tmp_path: Path) -> None:
    original = folders.spm(metaspace=metaspace)
    case = Case("llama", "LlamaConfig", {"vocab_size": folders.SPM_VOCAB})
    folders.save(tmp_path / "hf", case, tokenizer=original, config={"bos_token": "<s>", "eos_token": "</s>"})
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf")
    words = Tokenizer.from_gguf(tmp_path / "out.gguf")
    assert (words.model, words.bos_id, words.eos_id, words.unk_id, words.add_bos) == ("llama", 1, 2, 0, True)
    check_ids(words, original, None)


def test_ids_of_gemmas_tokenizer_match(tmp_path: Path) -> None:
    original = folders.spm(prefix=False)
    case = Case("gemma3", "Gemma3TextConfig", CASES["gemma3"].options | {"vocab_size": folders.SPM_VOCAB + 2})
    folders.save(tmp_path / "hf", case, tokenizer=original, config={"bos_token": "<s>", "eos_token": "</s>"})
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf")
    words = Tokenizer.from_gguf(tmp_path / "out.gguf")
    assert (words.model, words.add_bos, words.add_space_prefix) == ("llama", True, False)
    for text in (PROBE, *folders.TEXT[:60], "<start_of_turn>user\n\n  Hi"):
        assert words.encode(text) == original.encode(text).ids, text
        assert words.decode(original.encode(text, add_special_tokens=False).ids) == text


def check_ids(words: Tokenizer, original: Any, special: str | None) -> None:
    for text in (PROBE, *(line.strip() for line in folders.TEXT[:60]), *([special] if special else [])):
        assert words.encode(text) == original.encode(text).ids, text
        ids = original.encode(text, add_special_tokens=False).ids
        assert words.decode(ids) == text


def test_yarn_and_linear_rope_are_said(tmp_path: Path) -> None:
    for name, kind in (("qwen2-yarn", "yarn"), ("llama-linear", "linear")):
        folders.save(tmp_path / name, ALL[name])
        convert_checkpoint(tmp_path / name, tmp_path / "out.gguf")
        with GGUFFile.open(tmp_path / "out.gguf") as file:
            arch = file.metadata["general.architecture"]
            assert file.metadata[f"{arch}.rope.scaling.type"] == kind
            assert ("rope_freqs.weight" in file.tensors) is False


@pytest.mark.few(4)
@pytest.mark.parametrize("more", [
    {"attention_factor": 1.5}, {"mscale": 1.0, "mscale_all_dim": 0.5}, {"mscale": 0.7}, {"attention_factor": 1.0},
])
@pytest.mark.parametrize("config", ["Qwen2Config", "Olmo2Config", "LlamaConfig"])
def test_yarn_of_another_strength(tmp_path: Path, config: str, more: dict[str, float]) -> None:
    arch = config.removesuffix("Config").lower()
    rope = scaled("yarn", factor=4.0, original_max_position_embeddings=64, **more)
    model = folders.save(tmp_path / "hf", Case(arch, config, rope))
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "F32")
    assert error(logits(tmp_path / "out.gguf"), wanted(model)) < 1e-4


def test_rope_scaling_of_older_configs(tmp_path: Path) -> None:
    model = folders.save(tmp_path / "hf", CASES["llama3-rope"])
    rope = dict(model.config.rope_parameters)
    base = rope.pop("rope_theta")
    folders.edit(tmp_path / "hf", "config.json", rope_parameters=None, rope_theta=base, rope_scaling=rope)
    convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "F32")
    assert error(logits(tmp_path / "out.gguf"), wanted(model)) < 1e-4
    with GGUFFile.open(tmp_path / "out.gguf") as file:
        factors = dequantize(file.tensor("rope_freqs.weight"))
    assert (factors.min(), factors.max()) == (1, 8)


def test_a_file_of_the_checkpoint_is_no_target(tmp_path: Path) -> None:
    folders.save(tmp_path / "hf", CASES["llama"])
    (tmp_path / "link.gguf").symlink_to(tmp_path / "hf" / "model.safetensors")
    before = (tmp_path / "hf" / "model.safetensors").read_bytes()
    for name in ("hf/model.safetensors", "hf/config.json", "link.gguf"):
        with pytest.raises(UsageError, match="is the model that is read"):
            convert_checkpoint(tmp_path / "hf", tmp_path / name)
    assert (tmp_path / "hf" / "model.safetensors").read_bytes() == before


def test_nothing_is_left_after_an_error(tmp_path: Path) -> None:
    model = folders.save(tmp_path / "hf", CASES["llama"])
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight[3, 4] = float("nan")
    model.save_pretrained(tmp_path / "hf")
    with pytest.raises(NonFiniteError, match=r"blk\.1\.ffn_up\.weight.*\[3, 4\]"):
        convert_checkpoint(tmp_path / "hf", tmp_path / "out.gguf", "Q8_0")
    assert os.listdir(tmp_path) == ["hf"]
