"""Checkpoints that are broken, contradict themselves, or are of another kind: one error that names the place."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from octavo.convert import convert_checkpoint
from octavo.errors import FileError, ModelError, OctavoError, TemplateError, TokenizerError
from octavo.huggingface import CheckpointFile
from octavo.text import Tokenizer
from tests.convert import folders
from tests.convert.folders import edit, write
from tests.models.checkpoints import CASES


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("checkpoints")
    for name in ("qwen3", "qwen3moe", "llama3-rope", "qwen2-yarn"):
        folders.save(root / name, CASES[name])
    folders.save(root / "shards", CASES["qwen3"], shards="2MB")
    return {path.name: path for path in root.iterdir()}


@pytest.fixture
def folder(made: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint, to break."""

    def copy(name: str) -> Path:
        return shutil.copytree(made[name], tmp_path / "hf")

    return copy


@pytest.mark.parametrize("beside", [{}, {"config.json": "{}"}])
def test_the_folder_of_an_adapter(tmp_path: Path, beside: dict[str, str]) -> None:
    for name, text in {"adapter_config.json": '{"base_model_name_or_path": "Qwen/Qwen3-0.6B"}', **beside}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    refused(tmp_path, FileError, "is an adapter (LoRA), no model", "run its base model, 'Qwen/Qwen3-0.6B', with --lora")


def refused(path: Path, kind: type[OctavoError], *says: str) -> None:
    out = path.parent / "out.gguf"
    with pytest.raises(kind) as error:
        convert_checkpoint(path, out, "F16")
    for text in says:
        assert text in str(error.value)
    assert not out.exists()


@pytest.mark.parametrize(("values", "says"), [
    ({"architectures": ["NoSuchForCausalLM"]},
     ["architectures", "NoSuchForCausalLM", "docs/models.md lists what it runs"]),
    ({"architectures": ["Qwen4ForCausalLM"]}, ["(nearest: Qwen3ForCausalLM, Qwen2ForCausalLM, Qwen3VLForCondi"]),
    ({"architectures": None}, ["architectures: is missing (allowed: the model's class, as in [\"LlamaForCausalLM\"])"]),
    ({"architectures": [["x"]]}, ["architectures"]),
    ({"hidden_size": 0}, ["hidden_size", "1 to"]),
    ({"hidden_size": 255}, ["token_embd.weight", "[320, 256]", "[320, 255]"]),
    ({"num_hidden_layers": True}, ["num_hidden_layers"]),
    ({"num_hidden_layers": 1 << 40}, ["num_hidden_layers", "1 to 4096"]),
    ({"num_hidden_layers": 3}, ["blk.2.attn_norm.weight", "is missing"]),
    ({"num_hidden_layers": 1}, ["blk.1.", "not part of this architecture"]),
    ({"num_key_value_heads": 3}, ["num_key_value_heads", "does not divide"]),
    ({"vocab_size": 321}, ["token_embd.weight", "[321, 256]"]),
    ({"intermediate_size": "wide"}, ["intermediate_size", "wide"]),
    ({"tie_word_embeddings": False}, ["lm_head.weight", "tie_word_embeddings"]),
    ({"tie_word_embeddings": "no"}, ["tie_word_embeddings", "true or false"]),
    ({"rms_norm_eps": -1}, ["rms_norm_eps"]),
    ({"hidden_act": "gelu"}, ["hidden_act", "silu"]),
    ({"quantization_config": {"quant_method": "gptq"}}, ["quantization_config"]),
    ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, ["rope_type", "dynamic", "linear, yarn"]),
    ({"rope_parameters": {"rope_type": "linear"}}, ["factor", "is missing"]),
    ({"rope_parameters": [1]}, ["rope_parameters", "list"]),
    ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, ["original_max_position_embeddings"]),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, ["rope_type", "llama3"]),
])
def test_configurations(folder: Callable[[str], Path], values: dict[str, Any], says: list[str]) -> None:
    path = folder("qwen3")
    edit(path, "config.json", **values)
    refused(path, ModelError, *says)


@pytest.mark.parametrize(("values", "says"), [
    ({"num_local_experts": 9}, ["ffn_gate_inp", "[8, 256]", "[9, 256]"]),
    ({"num_local_experts": 0}, ["num_local_experts", "1 to"]),
    ({"num_experts_per_tok": 9}, ["num_experts_per_tok", "1 to 8"]),
    ({"norm_topk_prob": False}, ["norm_topk_prob"]),
    ({"mlp_only_layers": [0]}, ["mlp_only_layers"]),
])
def test_experts(folder: Callable[[str], Path], values: dict[str, Any], says: list[str]) -> None:
    path = folder("qwen3moe")
    edit(path, "config.json", **values)
    refused(path, ModelError, *says)


def test_rope_that_can_not_be_said(folder: Callable[[str], Path]) -> None:
    path = folder("llama3-rope")
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    edit(path, "config.json", rope_parameters=rope | {"low_freq_factor": 4.0})
    refused(path, ModelError, "high_freq_factor", "over low_freq_factor")


def test_yarn_of_another_ramp(folder: Callable[[str], Path]) -> None:
    path = folder("qwen2-yarn")
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    edit(path, "config.json", rope_parameters=rope | {"truncate": False})
    refused(path, ModelError, "truncate", "False")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "consolidated.00.pth"])
def test_pickles_are_refused(folder: Callable[[str], Path], name: str) -> None:
    path = folder("qwen3")
    (path / "model.safetensors").unlink()
    (path / name).write_bytes(b"\x80\x04.")
    refused(path, FileError, name, "is a pickle", "model.safetensors")


def test_a_pickle_in_the_index_is_refused(folder: Callable[[str], Path]) -> None:
    path = folder("shards")
    write(path, "model.safetensors.index.json", {"weight_map": {"a": "pytorch_model.bin"}})
    refused(path, FileError, "pytorch_model.bin", "is a pickle")


def test_folders_without_what_it_takes(folder: Callable[[str], Path], tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", FileError, "nowhere", "there is no such file or folder")
    path = folder("qwen3")
    (path / "tokenizer.json").unlink()
    refused(path, TokenizerError, "has no tokenizer", "tokenizer.json or tokenizer.model")
    (path / "model.safetensors").unlink()
    refused(path, FileError, "has no weights")
    (path / "config.json").unlink()
    refused(path, FileError, "has no config.json")


@pytest.mark.parametrize(("text", "says"), [
    (b"", "not valid JSON"), (b"[]", "is list"), (b'{"a": 1, "a": 2}', "'a' occurs twice"), (b"\xff{}", "not UTF-8"),
    (b"[" * 100_000, "JSON"), (b'{"a": ' + b"9" * 9000 + b"}", "9000 digits"),
])
def test_json_that_is_none(folder: Callable[[str], Path], text: bytes, says: str) -> None:
    path = folder("qwen3")
    (path / "config.json").write_bytes(text)
    refused(path, FileError, "config.json", says)


def test_shards(folder: Callable[[str], Path]) -> None:
    path = folder("shards")
    index = json.loads((path / "model.safetensors.index.json").read_text())["weight_map"]
    first, second, *_ = sorted(set(index.values()))

    def mapped(changed: Any) -> None:
        write(path, "model.safetensors.index.json", {"weight_map": changed})

    mapped({**index, "more": first})
    refused(path, FileError, first, "'more'", "is missing")
    moved = next(name for name, file in index.items() if file == first)
    mapped({**index, moved: second})
    refused(path, FileError, moved, "belongs to")
    mapped({**index, moved: "../outside.safetensors"})
    refused(path, FileError, "../outside.safetensors", "not in the folder")
    mapped([1])
    refused(path, FileError, "weight_map")
    mapped(index)
    (path / second).unlink()
    refused(path, FileError, second, "not in the folder")


UP = "model.layers.1.mlp.experts.5.up_proj.weight"


@pytest.mark.parametrize(("change", "says"), [
    (lambda w: w.pop(UP), ["blk.1.ffn_up_exps.weight", "experts 0, 1, 2, 3, ... (7)", "0 to 7"]),
    (lambda w: w.update({UP: w[UP].half()}), ["blk.1.ffn_up_exps.weight", "different"]),
    (lambda w: w.update({UP: w[UP][:5]}), ["blk.1.ffn_up_exps.weight", "different"]),
    (lambda w: w.update({UP.replace("5", "8"): w[UP]}), ["blk.1.ffn_up_exps.weight", "0 to 7"]),
    (lambda w: w.update({"model.norm.weight": w["model.norm.weight"].int()}), ["model.norm.weight", "I32", "BF16"]),
    (lambda w: w.update({"model.norm.bias": w["model.norm.weight"]}), ["model.norm.bias", "not part of"]),
    (lambda w: w.pop("model.norm.weight"), ["output_norm.weight", "is missing"]),
    (lambda w: w.update({"model.norm.weight": w["model.norm.weight"][:0]}), ["output_norm.weight", "[0]"]),
])
def test_tensors(folder: Callable[[str], Path], change: Callable[[Any], Any], says: list[str]) -> None:
    path = folder("qwen3moe")
    weights = load_file(path / "model.safetensors")
    change(weights)
    save_file({name: w.clone() for name, w in weights.items()}, path / "model.safetensors")
    refused(path, ModelError, *says)


@pytest.mark.parametrize(("change", "says"), [
    (lambda t: t["model"].update(type="WordLevel"), ["model.type", "WordLevel", "BPE"]),
    (lambda t: t.update(model=None), ["model.type"]),
    (lambda t: t["model"].update(vocab=[]), ["model.vocab"]),
    (lambda t: t["model"]["vocab"].update(a=-1), ["model.vocab", "'a'", "-1"]),
    (lambda t: t["model"]["vocab"].update(a=12), ["one id"]),
    (lambda t: t["model"]["vocab"].update(far=400), ["401 tokens", "320"]),
    (lambda t: t["model"]["merges"].append("a"), ["model.merges", "'a'"]),
    (lambda t: t["model"]["merges"].append(["zz", "qq"]), ["tokenizer.json"]),
    (lambda t: t["added_tokens"].append({"id": "1"}), ["added_tokens"]),
    (lambda t: t.update(pre_tokenizer={"type": "Whitespace"}), ["pre_tokenizer", "qwen2"]),
    (lambda t: t.update(pre_tokenizer=None), ["pre_tokenizer"]),
    (lambda t: t.update(normalizer={"type": "Lowercase"}), ["normalizer", "Lowercase"]),
    (lambda t: t.update(pre_tokenizer={"type": "Nothing"}), ["can't be used"]),
])
def test_tokenizers(folder: Callable[[str], Path], change: Callable[[Any], None], says: list[str]) -> None:
    path = folder("qwen3")
    values = json.loads((path / "tokenizer.json").read_text())
    change(values)
    write(path, "tokenizer.json", values)
    refused(path, TokenizerError, "tokenizer.json", *says)


@pytest.mark.parametrize("change", [
    lambda t: t["model"].update(continuing_subword_prefix="##"),
    lambda t: t.update(pre_tokenizer={
        "type": "Split", "pattern": {"Regex": "(?:a?){40}a{40}|(?:.*.*.*.*.*.*)=Q"}, "behavior": "Isolated",
        "invert": False}),
])
def test_panics_of_the_tokenizers_package(
    folder: Callable[[str], Path], change: Callable[[Any], None], capfd: pytest.CaptureFixture[str]
) -> None:
    path = folder("qwen3")
    values = json.loads((path / "tokenizer.json").read_text())
    change(values)
    write(path, "tokenizer.json", values)
    refused(path, TokenizerError, "tokenizer.json: can't", "what the tokenizers package reads")
    assert capfd.readouterr().err == ""


SIDE_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja",
              "chat_template.json", "tokenizer.model", "model.safetensors", "model.safetensors.index.json")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes")
@pytest.mark.parametrize("name", SIDE_FILES)
def test_pipes_are_not_waited_for(folder: Callable[[str], Path], name: str) -> None:
    path = folder("qwen3")
    edit(path, "tokenizer_config.json", chat_template=None)
    if name == "tokenizer.model":
        (path / "tokenizer.json").unlink()
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    refused(path, FileError, name, "not a regular file")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "chat_template.jinja", "tokenizer.json"])
def test_side_files_that_are_too_large(folder: Callable[[str], Path], name: str) -> None:
    path = folder("qwen3")
    edit(path, "tokenizer_config.json", chat_template=None)
    (path / name).touch()
    os.truncate(path / name, 1 << 40)
    refused(path, FileError, name, "is too large: 1,099,511,627,776 bytes", "at most")


@pytest.mark.parametrize(("name", "values", "says"), [
    ("config.json", {"rms_norm_eps": 10**400}, ["401 digits", "at most 100"]),
    ("config.json", {"rope_theta": 10**400}, ["401 digits"]),
    ("config.json", {"rms_norm_eps": 10**90}, ["does not fit F32"]),
    ("config.json", {"vocab_size": 1 << 24}, ["vocab_size", "1 to 2097152"]),
    ("generation_config.json", {"temperature": -(10**400)}, ["402 digits"]),
    ("generation_config.json", {"temperature": 10**60}, ["general.sampling.temp", "does not fit F32"]),
    ("generation_config.json", {"top_k": 1e300}, ["general.sampling.top_k", "does not fit I32"]),
])
def test_numbers_out_of_range(
    folder: Callable[[str], Path], name: str, values: dict[str, Any], says: list[str]
) -> None:
    path = folder("qwen3")
    rope = json.loads((path / "config.json").read_text())["rope_parameters"]
    if "rope_theta" in values:
        values = {"rope_parameters": rope | values}
    (path / name).exists() or write(path, name, {})
    edit(path, name, **values)
    with pytest.raises(FileError) as error:
        CheckpointFile.open(path)
    for text in says:
        assert text in str(error.value)


def test_numbers_that_mean_no_limit(folder: Callable[[str], Path]) -> None:
    path = folder("qwen3")
    edit(path, "tokenizer_config.json", model_max_length=int(1e30))
    CheckpointFile.open(path)


@pytest.mark.parametrize("change", [
    {"truncation": {"max_length": 4, "stride": 10, "strategy": "LongestFirst", "direction": "Right"}},
    {"padding": {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                 "pad_type_id": 0, "pad_token": "!"}},
])
def test_what_training_scripts_save_is_no_part_of_a_tokenizer(
    folder: Callable[[str], Path], change: dict[str, Any]
) -> None:
    path = folder("qwen3")
    tokens = CheckpointFile.open(path).metadata["tokenizer.ggml.tokens"]
    edit(path, "tokenizer.json", **change)
    assert CheckpointFile.open(path).metadata["tokenizer.ggml.tokens"] == tokens


def test_a_vocabulary_without_merges(folder: Callable[[str], Path]) -> None:
    path = folder("qwen3")
    values = json.loads((path / "tokenizer.json").read_text())
    values["model"]["merges"] = []
    write(path, "tokenizer.json", values)
    tokenizer = Tokenizer.from_gguf(CheckpointFile.open(path))
    ids = tokenizer.encode("abc", add_special=False)
    assert len(ids) == 3
    assert tokenizer.decode(ids) == "abc"
    refused(path, TokenizerError, "has no merges", "octavo run")


def test_keys_that_are_no_ids(folder: Callable[[str], Path]) -> None:
    path = folder("qwen3")
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.model").write_bytes(b"")
    for key in ("9" * 5000, "2097153", "-1", "\u0665"):
        edit(path, "tokenizer_config.json", added_tokens_decoder={key: {"content": "<x>"}})
        refused(path, TokenizerError, "added_tokens_decoder", repr(key[:40]), "0 to 2097152")


def piece(kind: int) -> bytes:
    """A SentencePiece model of one piece of this type."""
    rest, varint = kind, b""
    while rest > 0x7F:
        varint, rest = varint + bytes([rest & 0x7F | 0x80]), rest >> 7
    fields = b"\x0a\x01a" + b"\x18" + varint + bytes([rest])
    return b"\x0a" + bytes([len(fields)]) + fields


@pytest.mark.parametrize("kind", [0, 7, 1 << 31, 1 << 64])
def test_pieces_of_no_type(folder: Callable[[str], Path], kind: int) -> None:
    path = folder("qwen3")
    (path / "tokenizer.json").unlink()
    (path / "tokenizer.model").write_bytes(piece(kind) + b"\x12\x02\x18\x02")
    refused(path, TokenizerError, "tokenizer.model", f"piece 0 is of type {kind}", "1 to 6")


def test_special_tokens_out_of_range(folder: Callable[[str], Path]) -> None:
    path = folder("qwen3")
    edit(path, "tokenizer_config.json", bos_token=None)
    edit(path, "config.json", bos_token_id=320)
    refused(path, TokenizerError, "bos_token_id", "token 320", "0 to 319")


def test_templates_that_are_no_text(folder: Callable[[str], Path]) -> None:
    path = folder("qwen3")
    edit(path, "tokenizer_config.json", chat_template=5)
    refused(path, TemplateError, "chat_template is int")
