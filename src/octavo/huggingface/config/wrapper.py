"""Checkpoints of models that take pictures too: of these the text model runs, as if it were a checkpoint of its own."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.io.safetensors import Checkpoint
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.reader import brief

log = logging.getLogger("octavo")

TEXT = "language_model."
OTHERS = (
    "vision_tower.", "vision_model.", "vision_embedder.", "multi_modal_projector.", "visual.", "audio_tower.",
    "embed_vision.", "embed_audio.", "vit_large_projector.", "vit.", "mlp_AR.", "projector.",
)
"""What names of the other parts' tensors begin with, perhaps after "model."."""


@dataclass(frozen=True)
class Wrapper:
    """Classes of the text model by its `model_type`, and its values where `text_config` does not say.

    flat  older files have no `text_config`, and its values beside the others
    kept  words of other parts' configurations that keys of the text model are read of
    """

    texts: Mapping[str, str]
    defaults: Keys = field(default_factory=dict)
    flat: bool = False
    kept: tuple[str, ...] = ()


GEMMA3 = {
    "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
}
WRAPPERS = {
    "Gemma3ForConditionalGeneration": Wrapper({"gemma3_text": "Gemma3ForCausalLM"}, GEMMA3),
    "Gemma3nForConditionalGeneration": Wrapper({"gemma3n_text": "Gemma3nForCausalLM"}),
    "Gemma4ForConditionalGeneration": Wrapper({"gemma4_text": "Gemma4ForCausalLM"}),
    "Gemma4UnifiedForConditionalGeneration": Wrapper({"gemma4_unified_text": "Gemma4UnifiedForCausalLM"}),
    "Mistral3ForConditionalGeneration": Wrapper({
        "mistral": "MistralForCausalLM", "ministral3": "Ministral3ForCausalLM", "mistral4": "Mistral4ForCausalLM"}),
    "Step3p7ForConditionalGeneration": Wrapper({"step3p5": "Step3p7ForConditionalGeneration"}),
    "Llama4ForConditionalGeneration": Wrapper({"llama4_text": "Llama4ForCausalLM"}),
    "Qwen2VLForConditionalGeneration": Wrapper({"qwen2_vl_text": "Qwen2VLForConditionalGeneration"}, flat=True),
    "Qwen2_5_VLForConditionalGeneration": Wrapper({"qwen2_5_vl_text": "Qwen2_5_VLForConditionalGeneration"}, flat=True),
    "Qwen3_5ForConditionalGeneration": Wrapper({"qwen3_5_text": "Qwen3_5ForCausalLM"}),
    "Qwen3_5MoeForConditionalGeneration": Wrapper({"qwen3_5_moe_text": "Qwen3_5MoeForCausalLM"}),
    "Qwen3VLForConditionalGeneration": Wrapper({
        "qwen3_vl_text": "Qwen3VLForConditionalGeneration"}, kept=("vision_config",)),
    "Qwen3VLMoeForConditionalGeneration": Wrapper({
        "qwen3_vl_moe_text": "Qwen3VLMoeForConditionalGeneration"}, kept=("vision_config",)),
    "HunYuanVLForConditionalGeneration": Wrapper({"hunyuan_vl_text": "HunYuanVLForConditionalGeneration"}, flat=True),
    "PaddleOCRVLForConditionalGeneration": Wrapper(
        {"paddleocr_vl_text": "PaddleOCRVLForConditionalGeneration"}, flat=True),
}
"""By the class that config.json names under `architectures`."""


def wrapper_of(config: Config) -> Wrapper | None:
    """What is known of the class of a checkpoint; None for one of a text model alone."""
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    return WRAPPERS.get(name) if isinstance(name, str) else None


def text_part(checkpoint: Checkpoint, config: Config) -> Config:
    """The text model's configuration; `config` itself where the checkpoint has nothing else.

    Raises ModelError for a text model of another kind.
    """
    wrapper = wrapper_of(config)
    if wrapper is None:
        return config
    text = config.values.get("text_config", {} if wrapper.flat else None)
    kind = text.get("model_type", next(iter(wrapper.texts))) if isinstance(text, dict) else None
    if not isinstance(text, dict) or kind not in wrapper.texts:
        problem = f"is of kind {brief(kind)}" if isinstance(text, dict) else f"is {type(text).__name__}"
        raise config.error("text_config", problem, f"an object, model_type {' or '.join(wrapper.texts)}")
    outer = {
        key: value for key, value in config.values.items()
        if not key.endswith("_config") or key.startswith("q") or key in wrapper.kept
    }
    values = {**wrapper.defaults, **outer, **text, "architectures": [wrapper.texts[str(kind)]]}
    values["tie_word_embeddings"] = _is_tied(checkpoint, [config.values, text])
    return config.replaced(values)


def _is_tied(checkpoint: Checkpoint, said: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether the embedding is the output matrix: not where there is one, else as one of the configurations says."""
    if any(name.endswith("lm_head.weight") for name in checkpoint.tensors):
        return False
    flags = [values["tie_word_embeddings"] for values in said if values.get("tie_word_embeddings") is not None]
    return any(flags) if flags else None


def text_name(name: str) -> str | None:
    """The name that a tensor has in a checkpoint of the text model; None for one of another part."""
    plain = name.removeprefix("model.")
    if plain.startswith(OTHERS):
        return None
    return plain.removeprefix(TEXT) if plain.startswith(TEXT) else name


def log_others(checkpoint: Checkpoint) -> None:
    """Say which parts of a checkpoint are left out."""
    parts = Counter(name.removeprefix("model.").partition(".")[0] for name in checkpoint.tensors if not text_name(name))
    if parts:
        listed = ", ".join(f"{part} ({count} tensors)" for part, count in parts.items())
        log.warning("%s: text only, without %s", checkpoint.folder, listed)
