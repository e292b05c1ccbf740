"""What config.json says of a model: its family, sizes and rope, checked."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.errors import ModelError, shown
from octavo.io.gguf.limits import MAX_STRINGS as MAX_TOKENS
from octavo.models.hparams import LIMITS, Hyperparams
from octavo.models.rope import Rope


@dataclass(frozen=True)
class Family:
    """Models that share a class of `transformers`.

    arch      GGUF's `general.architecture`
    permuted  the rows of q and k go from rope on halves of a head to rope on neighbours
    experts   key of config.json that has the number of experts; None where the feed-forward is dense
    window    tokens of the sliding window where config.json does not say, 0 for none; None: the class knows no windows
    """

    arch: str
    permuted: bool = False
    experts: tuple[str, ...] = ()
    window: int | None = None


FAMILIES = {
    "LlamaForCausalLM": Family("llama", permuted=True),
    "MistralForCausalLM": Family("llama", permuted=True, window=4096),
    "MixtralForCausalLM": Family("llama", permuted=True, experts=("num_local_experts",), window=0),
    "Qwen2ForCausalLM": Family("qwen2", window=4096),
    "Qwen3ForCausalLM": Family("qwen3", window=4096),
    "Qwen3MoeForCausalLM": Family("qwen3moe", experts=("num_experts", "num_local_experts"), window=4096),
}
"""By the class that config.json names under `architectures`."""


class Config:
    """The values of config.json; each error names the file, the key and what is allowed."""

    def __init__(self, values: Mapping[str, Any], file: str) -> None:
        self.values, self.file = values, file

    def error(self, key: str, problem: str, allowed: str | None = None) -> ModelError:
        return ModelError(problem, file=self.file, field=key, allowed=allowed)

    def size(self, key: str, limit: int, default: int | None = None) -> int:
        """An integer from 1 to `limit`; null is as good as absent."""
        value = self.values.get(key)
        if value is None:
            value = default
        if type(value) is not int or not 1 <= value <= limit:
            raise self.error(key, "is missing" if value is None else f"is {_brief(value)}", f"1 to {limit}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, f"is {_brief(value)}", "true or false")
        return value

    def real(self, key: str, default: float | None = None, *, of: Mapping[str, Any] | None = None) -> float:
        """A finite number over 0, of the config or of a part of it."""
        value = (self.values if of is None else of).get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value > 0):
            raise self.error(key, "is missing" if value is None else f"is {_brief(value)}", "a number over 0")
        return float(value)


def _brief(value: object) -> str:
    return shown(str(value))


def find_family(config: Config) -> Family:
    """The model's family. Raises ModelError for one that is not known."""
    names = config.values.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if not isinstance(name, str) or name not in FAMILIES:
        problem = f"Octavo can't run {_brief(name)} yet; it runs {', '.join(FAMILIES)}"
        raise config.error("architectures", problem)
    return FAMILIES[name]


def read_hyperparams(config: Config, family: Family) -> Hyperparams:
    """The model's sizes. Raises ModelError for what is missing, contradicts itself, or can't be said in GGUF."""
    _refuse(config, family)
    width = config.size("hidden_size", LIMITS["embedding_length"])
    heads = config.size("num_attention_heads", LIMITS["attention.head_count"])
    kv_heads = config.size("num_key_value_heads", LIMITS["attention.head_count_kv"], heads)
    head = config.size("head_dim", LIMITS["attention.key_length"], width // heads)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"{kv_heads} does not divide {heads} heads")
    experts, used, expert_ff = _read_experts(config, family)
    n_ctx = config.size("max_position_embeddings", LIMITS["context_length"])
    return Hyperparams(
        arch=family.arch,
        n_layer=config.size("num_hidden_layers", LIMITS["block_count"]),
        n_embd=width,
        n_ff=config.size("intermediate_size", LIMITS["feed_forward_length"]),
        n_head=heads,
        n_head_kv=kv_heads,
        head_dim=head,
        n_vocab=config.size("vocab_size", MAX_TOKENS),
        n_ctx_train=n_ctx,
        eps=config.real("rms_norm_eps", 1e-6),
        rope=Rope(dims=head, base=_rope_base(config), interleaved=family.permuted, n_ctx_original=n_ctx),
        n_expert=experts,
        n_expert_used=used,
        n_ff_expert=expert_ff,
        n_window=_window(config, family),
    )


def _window(config: Config, family: Family) -> int | None:
    """Tokens of the sliding window that some layers have; None where none has."""
    said = config.values.get("sliding_window", family.window)
    if family.window is None or said is None or said == 0:
        return None
    if family.arch != "llama" and not (config.flag("use_sliding_window", False) and _in_layers(config, family)):
        return None
    return config.size("sliding_window", LIMITS["attention.sliding_window"], family.window)


def _in_layers(config: Config, family: Family) -> bool:
    """Whether any layer has the window: Qwen2 and Qwen3 say which, by a list or by the first."""
    if family.arch == "qwen3moe":
        return True
    kinds = config.values.get("layer_types")
    if isinstance(kinds, list):
        return "sliding_attention" in kinds
    first = config.values.get("max_window_layers", 28)
    if type(first) is not int:
        raise config.error("max_window_layers", f"is {_brief(first)}", "an integer")
    return first < config.size("num_hidden_layers", LIMITS["block_count"])


def _read_experts(config: Config, family: Family) -> tuple[int, int, int]:
    """Experts, those that a token uses, and the width of one; zeros for a dense model."""
    if not family.experts:
        return 0, 0, 0
    key = next((k for k in family.experts if config.values.get(k) is not None), family.experts[0])
    experts = config.size(key, LIMITS["expert_count"])
    used = config.size("num_experts_per_tok", experts)
    ff = "moe_intermediate_size" if family.arch == "qwen3moe" else "intermediate_size"
    return experts, used, config.size(ff, LIMITS["expert_feed_forward_length"])


def _refuse(config: Config, family: Family) -> None:
    """Raises ModelError for what would change the result and can't be said in the file."""
    get = config.values.get
    if get("hidden_act", "silu") != "silu":
        raise config.error("hidden_act", f"is {_brief(get('hidden_act'))}", "silu")
    if get("partial_rotary_factor", 1.0) not in (None, 1, 1.0):
        raise config.error("partial_rotary_factor", f"is {_brief(get('partial_rotary_factor'))}", "1")
    if family.arch == "qwen3moe":
        if not config.flag("norm_topk_prob", False):
            raise config.error("norm_topk_prob", "is false", "true")
        if get("decoder_sparse_step", 1) != 1 or get("mlp_only_layers"):
            raise config.error("mlp_only_layers", "has dense layers between those of experts", "experts in all layers")


def rope_parameters(config: Config) -> Mapping[str, Any]:
    """The rope's parameters: `rope_parameters`, or `rope_scaling` of older files."""
    key = "rope_parameters" if config.values.get("rope_parameters") is not None else "rope_scaling"
    found = config.values.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise config.error(key, f"is {type(found).__name__}", "an object")
    return found


def _rope_base(config: Config) -> float:
    found = rope_parameters(config)
    return config.real("rope_theta", of=found) if "rope_theta" in found else config.real("rope_theta", 10000.0)
