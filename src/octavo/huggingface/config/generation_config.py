"""generation_config.json: what a model recommends for replies, as GGUF's keys; what is not done is named."""

from __future__ import annotations

import logging
import math
from typing import Any

from octavo.huggingface.tokenizer.ends import GENERATION, KEY
from octavo.io.gguf import TypedValue, ValueType
from octavo.io.safetensors import Checkpoint

log = logging.getLogger("octavo")

SAMPLING = {
    "temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "repetition_penalty": "penalty_repeat",
}
"""Values that a model recommends, and the ends of their keys under `general.sampling.`."""
READ = frozenset({*SAMPLING, KEY, "do_sample"})
HARMLESS = frozenset(
    """_from_model_config transformers_version bos_token_id pad_token_id decoder_start_token_id use_cache
    max_length max_new_tokens cache_implementation return_dict_in_generate output_scores output_attentions
    output_hidden_states output_logits trust_remote_code chat_format max_window_size max_context_size
    num_return_sequences assistant_confidence_threshold num_assistant_tokens num_assistant_tokens_schedule
    is_assistant""".split()
)
"""Keys that say nothing of which tokens come; how many may is up to the caller."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1), "typical_p": (None, 1), "epsilon_cutoff": (None, 0), "eta_cutoff": (None, 0),
    "diversity_penalty": (None, 0), "length_penalty": (None, 1), "no_repeat_ngram_size": (None, 0),
    "encoder_no_repeat_ngram_size": (None, 0), "encoder_repetition_penalty": (None, 1), "min_length": (None, 0),
    "renormalize_logits": (None, False),
    "early_stopping": (None, False), "num_beam_groups": (None, 1), "remove_invalid_values": (None, False),
    "token_healing": (None, False), "presence_penalty": (None, 0), "frequency_penalty": (None, 0),
}
"""Keys that change nothing with these values."""


def sampling_keys(checkpoint: Checkpoint) -> dict[str, Any]:
    """What generation_config.json recommends; values that are not numbers are left out, and so is what has no key here.

    A warning names the latter. `do_sample` false is temperature 0, whatever the temperature beside it: transformers
    takes the most likely token then.
    """
    config = checkpoint.json(GENERATION) or {}
    values = config | ({"temperature": 0.0} if config.get("do_sample") is False else {})
    keys: dict[str, Any] = {}
    for name, end in SAMPLING.items():
        value = values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            continue
        kind = ValueType.I32 if name == "top_k" else ValueType.F32
        keys[f"general.sampling.{end}"] = TypedValue(kind, int(value) if name == "top_k" else float(value))
    if left := [f"{key} {str(config[key])[:40]}" for key in config if _matters(key, config[key])]:
        log.warning("%s: ignored settings: %s", checkpoint.path(GENERATION), ", ".join(left))
    return keys


def _matters(key: str, value: Any) -> bool:
    return value is not None and key not in READ | HARMLESS and value not in NEUTRAL.get(key, (None,))
