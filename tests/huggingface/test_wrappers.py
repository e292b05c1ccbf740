"""Checkpoints of models that take pictures too: their text model gives the logits of transformers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from octavo.backends.reference import ReferenceBackend
from octavo.convert import convert_checkpoint
from octavo.errors import ModelError
from octavo.huggingface import open_model_file
from octavo.huggingface.config.wrapper import GEMMA3, WRAPPERS
from tests.convert.folders import byte_level, edit, write
from tests.models.checkpoints import PICTURES, QWEN_VISION
from tests.models.table import TOKENS, error, logits
from tests.models.tiny_checkpoints import TABLE
from tests.models.tiny_options import (
    DELTA_NET,
    DELTA_NET_EXPERTS,
    GEMMA4_SMALL,
    LLAMA4,
    MINISTRAL3_ROPE,
    SMALL,
    WINDOW,
)
from tests.sampling import slow

VISION = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}
OF_LLAMA4 = {
    "vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32,
    "vision_feature_select_strategy": "default",
}
PIXTRAL = {**VISION, "model_type": "pixtral", "head_dim": 16}
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "gemma3": ("Gemma3", {"head_dim": 64, "sliding_window": WINDOW}, VISION, "gemma3"),
    "mistral": ("Mistral3", {"model_type": "mistral", "head_dim": 64, "sliding_window": None}, PIXTRAL, "llama"),
    "ministral3": ("Mistral3", {"model_type": "ministral3", "head_dim": 64, "rope_parameters": MINISTRAL3_ROPE},
                   PIXTRAL, "mistral3"),
    "mistral4": ("Mistral3", {"model_type": "mistral4", **TABLE["mistral4"].options}, PIXTRAL, "mistral4"),
    "llama4": ("Llama4", LLAMA4, {**VISION, **OF_LLAMA4}, "llama4"),
    "gemma4": ("Gemma4", GEMMA4_SMALL, {**VISION, "num_key_value_heads": 2, "head_dim": 16}, "gemma4"),
    "qwen2.5-vl": ("Qwen2_5_VL", TABLE["qwen2vl-2.5"].options, PICTURES["Qwen2_5_VLConfig"], "qwen2vl"),
    "qwen3.5": ("Qwen3_5", DELTA_NET, QWEN_VISION, "qwen35"),
    "qwen3.5-moe": ("Qwen3_5Moe", DELTA_NET_EXPERTS, QWEN_VISION, "qwen35moe"),
    "qwen3-vl": ("Qwen3VL", TABLE["qwen3vl"].options, PICTURES["Qwen3VLConfig"], "qwen3vl"),
    "qwen3-vl-moe": ("Qwen3VLMoe", TABLE["qwen3vlmoe"].options, PICTURES["Qwen3VLMoeConfig"], "qwen3vlmoe"),
    "hunyuan-vl": ("HunYuanVL", TABLE["hunyuan_vl"].options, PICTURES["HunYuanVLConfig"], "hunyuan_vl"),
    "paddleocr-vl": ("PaddleOCRVL", TABLE["paddleocr"].options, PICTURES["PaddleOCRVLConfig"], "paddleocr"),
}


def save(folder: Path, kind: str) -> Any:
    """Save a random model of a kind to `folder`."""
    name, text, vision, _ = KINDS[kind]
    torch.manual_seed(0)
    sizes = copy.deepcopy({**SMALL, **text})  # some configurations put values into what they are given
    config = getattr(transformers, f"{name}Config")(text_config=sizes, vision_config=vision)
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    byte_level().save(str(folder / "tokenizer.json"))
    write(folder, "tokenizer_config.json", {})
    return model


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    save(tmp_path, "gemma3")
    return tmp_path


@pytest.mark.parametrize("kind", [kind if kind == "gemma3" else slow(kind) for kind in KINDS])
def test_logits(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    model = save(tmp_path / "hf", kind)
    convert_checkpoint(tmp_path / "hf", tmp_path / "m.gguf", "F32")
    assert "text only, without " in caplog.text
    others = {"gemma4": "vision_tower", "hunyuan-vl": "vit", "paddleocr-vl": "mlp_AR"}
    part = "visual" if kind.startswith("qwen") else others.get(kind, "multi_modal_projector")
    assert f"{part} (" in caplog.text
    with torch.no_grad():
        given = model.language_model if kind == "llama4" else model  # whose own forward is broken in transformers 5.24
        want = given(torch.tensor([TOKENS])).logits[0].numpy()
    for path in (tmp_path / "hf", tmp_path / "m.gguf"):
        with open_model_file(path) as file:
            assert file.metadata.get_str("general.architecture") == KINDS[kind][3]
            assert error(logits(file, ReferenceBackend(), TOKENS, at_once=True), want) < 1e-4


def test_the_newer_names_of_tensors(gemma: Path) -> None:
    with open_model_file(gemma) as file:
        want = logits(file, ReferenceBackend(), TOKENS[:9], at_once=True)
    path = gemma / "model.safetensors"
    renamed = {}
    for name, tensor in load_file(path).items():
        moved = name.startswith("language_model.model.")
        renamed[f"model.language_model.{name[21:]}" if moved else f"model.{name}"] = tensor
    save_file(renamed, path)
    with open_model_file(gemma) as file:
        np.testing.assert_array_equal(logits(file, ReferenceBackend(), TOKENS[:9], at_once=True), want)


def test_values_of_the_text_model_beside_the_others(tmp_path: Path) -> None:
    """Older folders of Qwen 2 and 2.5: no text_config, a rope called mrope, and no name for the text model's part."""
    save(tmp_path, "qwen2.5-vl")
    with open_model_file(tmp_path) as file:
        want = logits(file, ReferenceBackend(), TOKENS[:9], at_once=True)
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    rope = {"type": "mrope", "mrope_section": text.pop("rope_parameters")["mrope_section"]}
    flat = {**text, **config, "rope_theta": 1e4, "rope_scaling": rope, "use_sliding_window": False}
    write(tmp_path, "config.json", {key: value for key, value in flat.items() if key != "layer_types"})
    path = tmp_path / "model.safetensors"
    save_file({
        name.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
        for name, tensor in load_file(path).items()
    }, path)
    with open_model_file(tmp_path) as file:
        np.testing.assert_array_equal(logits(file, ReferenceBackend(), TOKENS[:9], at_once=True), want)


@pytest.mark.parametrize(("kind", "rope"), [
    ("hunyuan-vl", {"type": "xdrope", "alpha": 50.0, "beta_fast": 32, "factor": 1.0, "xdrope_section": [8, 8, 8, 8]}),
    ("paddleocr-vl", {"type": "default", "rope_type": "default", "mrope_section": [8, 12, 12]}),
])
def test_published_words(tmp_path: Path, kind: str, rope: dict[str, Any]) -> None:
    """Those of the text model beside the others, and the rope as it is called there."""
    save(tmp_path, kind)
    with open_model_file(tmp_path) as file:
        want = logits(file, ReferenceBackend(), TOKENS[:9], at_once=True)
    config = json.loads((tmp_path / "config.json").read_text())
    text = config.pop("text_config")
    theta = text.pop("rope_parameters")["rope_theta"]
    flat = {**text, **config, "rope_theta": theta, "rope_scaling": rope, "model_type": "any", "pad_token_id": -1}
    own = {"attention_head_dim": flat.pop("head_dim"), "num_experts": 1} if kind == "hunyuan-vl" else {}
    write(tmp_path, "config.json", flat | own)
    with open_model_file(tmp_path) as file:
        np.testing.assert_array_equal(logits(file, ReferenceBackend(), TOKENS[:9], at_once=True), want)


@pytest.mark.parametrize(("kind", "values", "field"), [
    ("hunyuan-vl", {"use_qk_norm": False}, "use_qk_norm"), ("hunyuan-vl", {"num_experts": 2}, "num_experts"),
    ("hunyuan-vl", {"rope_parameters": {"rope_type": "xdrope", "xdrope_section": [32], "rope_theta": 1e4}}, "alpha"),
    ("paddleocr-vl", {"sliding_window": 4}, "sliding_window"),
    ("paddleocr-vl", {"rope_is_neox_style": False}, "rope_is_neox_style"),
    ("paddleocr-vl", {"rope_parameters": {"mrope_section": [8, 8, 8]}}, "paddleocr.rope.dimension_sections"),
])
def test_text_models_that_are_not_computed(tmp_path: Path, kind: str, values: dict[str, Any], field: str) -> None:
    save(tmp_path, kind)
    config = json.loads((tmp_path / "config.json").read_text())
    write(tmp_path, "config.json", config | {"text_config": config["text_config"] | values})
    with pytest.raises(ModelError) as caught, open_model_file(tmp_path):
        pass
    assert caught.value.field == field


def test_an_output_matrix_that_is_no_embedding(gemma: Path) -> None:
    path = gemma / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "language_model.lm_head.weight": torch.randn(320, 128)}, path)
    with open_model_file(gemma) as file:
        assert file.tensors["output.weight"].shape == (320, 128)


@pytest.mark.parametrize(("config", "says"), [
    ({"text_config": {"model_type": "gemma2"}}, r"text_config: is of kind .*gemma2.*model_type gemma3_text"),
    ({"text_config": [1]}, "text_config: is list"),
])
def test_what_is_no_text_model(gemma: Path, config: dict[str, Any], says: str) -> None:
    edit(gemma, "config.json", **config)
    with pytest.raises(ModelError, match=says):
        open_model_file(gemma)


def test_tensors_of_no_part_are_refused(gemma: Path) -> None:
    path = gemma / "model.safetensors"
    save_file({**load_file(path), "video_tower.weight": torch.zeros(1)}, path)
    with pytest.raises(ModelError, match=r"video_tower.weight.*not part of this architecture"):
        open_model_file(gemma)


def test_defaults_are_those_of_transformers() -> None:
    theirs = transformers.Gemma3TextConfig()
    assert {key: getattr(theirs, key) for key in GEMMA3} == GEMMA3
    classes = {name for wrapper in WRAPPERS.values() for name in wrapper.texts.values()}
    assert all(hasattr(transformers, name) for name in classes)
