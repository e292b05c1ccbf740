"""What a folder and a GGUF file say and nothing reads is named, in one line a file; tiny models give none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf.constants import Keys

from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.models.shared import keys
from octavo.runtime.options import recommended
from tests.convert import folders
from tests.models import embedding_checkpoints
from tests.models.checkpoints import CASES
from tests.models.table import save_only
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny

SAID = "nothing here reads"


def _with(folder: Path, name: str, values: dict[str, Any]) -> None:
    path = folder / name
    old = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(old | values))


def _lines(folder: Path, caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with open_model_file(folder):
        return [r.getMessage() for r in caplog.records if SAID in r.getMessage()]


@pytest.mark.parametrize(("file", "values", "named"), [
    ("config.json", {"hidden_shift": 2.5, "logit_cap": "x", "my_note": "", "my_flag": False, "initializer_range": 1,
                     "vision_depth": 3, "use_cache": True, "torch_dtype": "bfloat16"}, "hidden_shift 2.5, logit_cap x"),
    ("config.json", {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}, ""),
    ("config.json", {"unsloth_version": "2025.1", "rope_theta": 10000.0, "rope_scaling": {"rope_type": "default"},
                     "is_llama_config": True, "transformers.js_config": {"dtype": "q4"}}, ""),
    ("config.json", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "ramp": 3, "cut": None}},
     "rope_parameters.ramp 3"),
    ("config.json", {"rope_parameters": None, "rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 4}},
     "rope_scaling.beta_fast 4"),
    ("config.json", {"rope_parameters": None, "rope_scaling": {
        "rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5, "mscale": 1.0,
        "original_max_position_embeddings": 64}}, ""),
    ("config.json", {"rope_scaling": {"type": "default"}, "rope_parameters": {"rope_type": "default"}}, ""),
    ("config.json", {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {
        "rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}, ""),
    ("config.json", {"vision_config": {"depth": 3}, "quantization_config": None}, ""),
    ("config.json", {"num_local_experts": 8, "norm_topk_prob": True}, ""),  # Qwen3 has none
    ("config.json", {"temperature": 0.3, "num_beams": 4}, "temperature 0.3, num_beams 4"),
    ("tokenizer_config.json", {"cut_words": True, "padding_side": "left", "image_token": "<i>"}, "cut_words True"),
    ("special_tokens_map.json", {"pad_token": "<|end|>", "roles": ["a"]}, "roles ['a']"),
    ("config.json", {f"own_{i}": 1 for i in range(20)}, "own_15 1 and 4 more"),
])
def test_what_nothing_reads_is_named_once(
    tmp_path: Path, file: str, values: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    folders.save(tmp_path, CASES["qwen3"])
    assert not _lines(tmp_path, caplog)
    _with(tmp_path, file, values)
    lines = _lines(tmp_path, caplog)
    assert len(lines) == bool(named)
    assert not named or (lines[0].endswith(named) and file in lines[0])


@pytest.mark.parametrize(("name", "values", "named"), [
    ("plamo3", {"my_note": 3}, "my_note 3"),  # whose configuration is read in other words
    ("step35", {"my_note": 3}, "my_note 3"),
])
def test_objects_of_other_kinds(
    name: str, values: dict[str, Any], named: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_only(tmp_path, TABLE[name])
    _with(tmp_path, "config.json", values)
    (line,) = _lines(tmp_path, caplog)
    assert line.endswith(f"{SAID} {named}")


SCALED = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}, "sliding_attention": {
    "rope_type": "linear", "rope_theta": 1e4, "factor": 8.0}}


@pytest.mark.parametrize(("name", "values", "problem"), [
    ("plamo3", {"rope_parameters": SCALED}, "sliding_attention: has rope_type 'linear' .allowed: default"),
    ("mistral4", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.9}},
     r"partial_rotary_factor: is 0.9 .allowed: 0\.4"),
    ("step35", {"per_layer_config": {"1": {"num_attention_heads": 9}}}, "per_layer_config: is "),
])
def test_parts_of_objects_that_are_refused(name: str, values: dict[str, Any], problem: str, tmp_path: Path) -> None:
    save_only(tmp_path, TABLE[name])
    old = json.loads((tmp_path / "config.json").read_text())
    inner = {"text_config": old["text_config"] | values} if "text_config" in old else values
    _with(tmp_path, "config.json", inner)
    with pytest.raises(ModelError, match=problem):
        open_model_file(tmp_path)


def test_a_scaled_rope_of_modern_berts_windows(tmp_path: Path) -> None:
    embedding_checkpoints.save(tmp_path, embedding_checkpoints.KINDS["modern-bert"])
    _with(tmp_path, "config.json", {"rope_parameters": SCALED})
    with pytest.raises(ModelError, match="sliding_attention: has rope_type 'linear'"):
        open_model_file(tmp_path)


def test_names_are_shown_without_control_characters(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders.save(tmp_path, CASES["qwen3"])
    _with(tmp_path, "config.json", {"a\x1b[2J\n": "\x1b]0;"})
    assert _lines(tmp_path, caplog)[0].isprintable()


@pytest.mark.slow
def test_folders_of_all_kinds_say_nothing_that_is_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name, case in TABLE.items():
        save_only(tmp_path / name, case)
        assert not _lines(tmp_path / name, caplog), name


def test_keys_of_gguf_are_named_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = {"general.mine": 1, "tokenizer.ggml.mine": 1, "qwen3.mine": 1, "general.sampling.mirostat": 2}
    known = {"general.license.name": "x", "general.source.url": "x", "tokenizer.chat_template.tools": "x",
             "general.base_model.0.name": "x", "split.mine": 1, "general.sampling.xtc_probability": 0.0}
    with GGUFFile.open(tiny.write(tmp_path / "m.gguf", keys=known | mine)) as file:
        assert read_model(file).hparams == read_model(file).hparams
    (line,) = [r.getMessage() for r in caplog.records if SAID in r.getMessage()]
    assert sorted(line.partition(f"{SAID} ")[2].split(", ")) == sorted(mine)


def test_what_the_gguf_package_lists_is_known() -> None:
    """But samplers that there are none of, which are named."""
    listed = {v for group in (Keys.General, Keys.Tokenizer) for n, v in vars(group).items() if n.isupper()}
    known = keys.is_in((*keys.READ, *keys.HARMLESS, *keys.OFF))
    assert {key for key in listed if not known(key)} == {"general.sampling.sequence"}


@pytest.mark.parametrize(("said", "temperature"), [
    ({"do_sample": False}, 0.0), ({"do_sample": False, "temperature": 0.6}, 0.0),
    ({"do_sample": True, "temperature": 0.5}, 0.5), ({"do_sample": None}, None), ({"top_k": 5}, None),
])
def test_a_model_that_does_not_draw_takes_the_most_likely_token(
    tmp_path: Path, said: dict[str, Any], temperature: float | None
) -> None:
    folders.save(tmp_path, CASES["qwen3"])
    (tmp_path / "generation_config.json").write_text(json.dumps(said))
    with open_model_file(tmp_path) as file:
        assert recommended(file).get("temperature") == temperature
