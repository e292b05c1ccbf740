"""The rope of a checkpoint as GGUF says it: keys for linear and yarn, a tensor of divisors for Llama 3."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from octavo.errors import shown
from octavo.formats.spec import F32
from octavo.huggingface.config import Config, rope_parameters
from octavo.models.hparams import LIMITS, Hyperparams

ORIGINAL = "original_max_position_embeddings"
KINDS = ("default", "linear", "yarn", "llama3")
_UNSAID = ("attention_factor", "mscale", "mscale_all_dim", "truncate")


def rope_kind(config: Config) -> str:
    """The kind of scaling. Raises ModelError for one that GGUF has no word for."""
    found = rope_parameters(config)
    kind = found.get("rope_type", found.get("type", "default"))
    if kind not in KINDS:
        raise config.error("rope_type", f"is {shown(str(kind))}", ", ".join(KINDS))
    return str(kind)


def rope_metadata(config: Config, hp: Hyperparams) -> dict[str, Any]:
    """Keys after `<arch>.rope.`, without the dimensions."""
    found, kind = rope_parameters(config), rope_kind(config)
    keys: dict[str, Any] = {"freq_base": hp.rope.base}
    if kind in ("linear", "yarn"):
        keys |= {"scaling.type": kind, "scaling.factor": config.real("factor", of=found)}
    if kind == "yarn":
        unsaid = next((key for key in _UNSAID if found.get(key) not in (None, True)), None)
        if unsaid:
            raise config.error(unsaid, f"is {shown(str(found[unsaid]))}", "none, which is yarn's own")
        keys["scaling.original_context_length"] = _original(config)
        keys |= {f"scaling.yarn_{k}": config.real(k, of=found) for k in ("beta_fast", "beta_slow") if found.get(k)}
    return keys


def _original(config: Config) -> int:
    """Tokens of context before it was stretched."""
    found = rope_parameters(config)
    inner = Config({ORIGINAL: found.get(ORIGINAL, config.values.get(ORIGINAL))}, config.file)
    return inner.size(ORIGINAL, LIMITS["context_length"])


def rope_divisors(config: Config, hp: Hyperparams) -> F32 | None:
    """What Llama 3.1 divides each frequency by, float32 [head_dim / 2]; None for other kinds.

    Pairs that turn more than `high_freq_factor` times over the original context keep their frequency, those that turn
    less than `low_freq_factor` times get it divided by `factor`, and those between something between.
    """
    if rope_kind(config) != "llama3":
        return None
    if hp.arch != "llama":
        raise config.error("rope_type", f"is 'llama3' in {hp.arch}", "default, linear, yarn")
    found = rope_parameters(config)
    factor = config.real("factor", of=found)
    low, high = (config.real(f"{end}_freq_factor", of=found) for end in ("low", "high"))
    if not low < high:
        raise config.error("high_freq_factor", f"is {high}", f"over low_freq_factor, {low}")
    frequency = hp.rope.base ** (-np.arange(0, hp.rope.dims, 2, dtype=np.float64) / hp.rope.dims)
    turns = _original(config) * frequency / (2 * math.pi)
    kept = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / (kept + (1 - kept) / factor)).astype(np.float32)
