"""The rope of a checkpoint as GGUF says it: keys for linear, yarn and longrope, frequency factors for some kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from octavo.formats.spec import F32
from octavo.models import Architecture, Hyperparams
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.reader import LIMITS, brief
from octavo.models.shared.rope import LOG_MULTIPLIER, Rope

ORIGINAL = "original_max_position_embeddings"
LENGTHS = ("long", "short")
UNTURNED = 1e30
"""What llama.cpp's converter divides frequencies by of pairs that stay as they are."""


def rope_kind(config: Config, architecture: Architecture) -> str:
    """The kind of scaling. Raises ModelError for one that the architecture does not have."""
    found = rope_parameters(config)
    kind = found.get("rope_type", found.get("type", "default"))
    # The first name of longrope; a rope of three positions, which are one where there is nothing but text.
    kind = {"su": "longrope", "mrope": "default"}.get(str(kind), kind)
    if kind not in architecture.ropes:
        raise config.error("rope_type", f"is {brief(kind)}", ", ".join(architecture.ropes))
    return str(kind)


def rope_keys(config: Config, architecture: Architecture) -> Keys:
    """Fields under `rope.`, without the dimensions."""
    found, kind = rope_parameters(config), rope_kind(config, architecture)
    base = config.real("rope_theta", of=found) if "rope_theta" in found else config.real("rope_theta", 10000.0)
    keys: Keys = {"freq_base": base}
    if kind in ("linear", "yarn"):
        keys |= {"scaling.type": kind, "scaling.factor": config.real("factor", of=found)}
    if kind == "yarn":
        if (strength := _yarn_strength(config, found, architecture)) != 1:
            keys["scaling.attn_factor"] = strength
        keys["scaling.original_context_length"] = original_context(config)
        keys |= {f"scaling.yarn_{k}": config.real(k, of=found) for k in ("beta_fast", "beta_slow") if found.get(k)}
    if kind == "longrope":
        keys |= {"scaling.type": kind, "scaling.original_context_length": original_context(config)}
        keys["scaling.attn_factor"] = _longrope_factor(config)
    return {f"rope.{key}": value for key, value in keys.items()}


def _yarn_strength(config: Config, found: Mapping[str, Any], architecture: Architecture) -> float:
    """How much stronger values are rotated than yarn does it by itself, 1 + 0.1 log(factor), as transformers has it.

    Raises ModelError for a ramp that begins and ends otherwise than the architecture's.
    """
    if (truncate := found.get("truncate")) not in (None, architecture.whole_pairs):
        raise config.error("truncate", f"is {brief(truncate)}", "none, which is yarn's own")
    stretch = math.log(max(1.0, config.real("factor", of=found)))
    usual = wanted = 1 + 0.1 * stretch
    if found.get("attention_factor") is not None:
        wanted = config.real("attention_factor", of=found)
    elif found.get("mscale") and found.get("mscale_all_dim") and LOG_MULTIPLIER not in architecture.fields:
        rotated, scores = (1 + 0.1 * config.real(key, of=found) * stretch for key in ("mscale", "mscale_all_dim"))
        wanted = rotated / scores
    if LOG_MULTIPLIER in architecture.fields and not math.isclose(wanted, usual, rel_tol=1e-5):
        raise config.error("attention_factor", f"is {wanted:g}", "none, which is yarn's own")
    return 1.0 if math.isclose(wanted, usual, rel_tol=1e-5) else wanted / usual


def original_context(config: Config) -> int:
    """Tokens of context before it was stretched, beside the rope's parameters or among them."""
    inner = Config({ORIGINAL: config.values.get(ORIGINAL, rope_parameters(config).get(ORIGINAL))}, config.file)
    return inner.size(ORIGINAL, LIMITS["context_length"])


def rope_tensors(config: Config, architecture: Architecture, hp: Hyperparams) -> dict[str, F32]:
    """What config.json says of the rope that is a tensor in GGUF: frequency factors, float32 [pairs].

    Pairs that layers of another rope alone have are divided by 1.
    """
    rope = hp.rope
    if rope_kind(config, architecture) == "llama3":
        freq_factors = np.ones(hp.freq_factor_pairs, np.float32)
        freq_factors[: rope.dims // 2] = _llama3_factors(config, rope)
        return {"rope_freqs.weight": freq_factors}
    if rope_kind(config, architecture) == "proportional":
        return {"rope_freqs.weight": _proportional_factors(config, rope)}
    if rope_kind(config, architecture) == "longrope":
        return {f"rope_factors_{length}.weight": _factors(config, f"{length}_factor", rope) for length in LENGTHS}
    return {}


def _longrope_factor(config: Config) -> float:
    """What longrope multiplies rotated values by: sqrt(1 + ln(stretch) / ln(original context)) (arXiv 2402.13753)."""
    found, original = rope_parameters(config), original_context(config)
    if found.get("attention_factor") is not None:
        return config.real("attention_factor", of=found)
    stretch = config.size("max_position_embeddings", LIMITS["context_length"]) / original
    if found.get("factor") is not None:
        stretch = config.real("factor", of=found)
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 and original > 1 else 1.0


def _factors(config: Config, key: str, rope: Rope) -> F32:
    """A list of frequency factors, one for each pair."""
    values, pairs = rope_parameters(config).get(key), rope.dims // 2
    if not (isinstance(values, list) and len(values) == pairs and all(map(_is_divisor, values))):
        raise config.error(key, f"is {brief(values)}", f"{pairs} numbers over 0")
    return np.array(values, np.float32)


def _is_divisor(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


def _proportional_factors(config: Config, rope: Rope) -> F32:
    """1 for the first pairs, and so much for the others that they turn no further than float32 tells."""
    found = rope_parameters(config)
    part = config.real("partial_rotary_factor", 1.0, of=found)
    if part > 1:
        raise config.error("partial_rotary_factor", f"is {part:g}", "over 0, up to 1")
    freq_factors = np.full(rope.dims // 2, UNTURNED, np.float32)
    freq_factors[: int(part * rope.dims // 2)] = config.real("factor", 1.0, of=found)
    return freq_factors


def _llama3_factors(config: Config, rope: Rope) -> F32:
    """What Llama 3.1 divides each frequency by.

    Pairs that turn more than `high_freq_factor` times over the original context keep their frequency, those that turn
    less than `low_freq_factor` times get it divided by `factor`, and those between something between.
    """
    found = rope_parameters(config)
    factor = config.real("factor", of=found)
    low, high = (config.real(f"{end}_freq_factor", of=found) for end in ("low", "high"))
    if not low < high:
        raise config.error("high_freq_factor", f"is {high}", f"over low_freq_factor, {low}")
    frequency = rope.base ** (-np.arange(0, rope.dims, 2, dtype=np.float64) / rope.dims)
    turns = original_context(config) * frequency / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)
