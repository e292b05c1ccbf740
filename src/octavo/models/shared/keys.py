"""Metadata under an architecture's own prefix: what is computed with, what changes nothing, and that there is no more;
and under `general.` and `tokenizer.`, where what is not in these tables is named in a warning.

A key that is not in these tables may change what a model computes, so a file that has one is refused by its name,
unless llama.cpp doesn't read it either.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from fnmatch import translate
from functools import cache, lru_cache
from importlib import import_module

from octavo.errors import ModelError, shown
from octavo.io.gguf.metadata import Metadata
from octavo.models.families import own_modules

_log = logging.getLogger("octavo")
MOST_NAMED = 16

SHARED = frozenset(
    """block_count context_length embedding_length feed_forward_length expert_count expert_used_count
    expert_feed_forward_length attention.head_count attention.head_count_kv attention.key_length attention.value_length
    attention.layer_norm_rms_epsilon attention.sliding_window rope.dimension_count rope.freq_base rope.scale_linear
    rope.scaling.type rope.scaling.factor rope.scaling.original_context_length rope.scaling.attn_factor
    rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow""".split()
)
"""Read of every architecture; what one reads beside them is in its `ARCH.keys`."""

UNUSED = {
    "vocab_size": "the embedding has a row for each token",
    "tensor_data_layout": "says which program the weights came from",
    "attention.layer_norm_epsilon": "of norms that take the mean off, which these architectures do not have",
    "attention.sliding_window_pattern": "which layers have the window; contexts are no longer than that",
    "pooling_type": "says how a text's vector is made of those of its tokens, which `embed` does",
    "classifier.output_labels": "says what scores of a reranker are for",
    "rope.scaling.finetuned": "says how a model was trained",
}
"""May have any value, and why."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.max_alibi_bias": (0,),
    "attention.scale": (0,),
    "attn_logit_softcapping": (0,),
    "embedding_scale": (0, 1),
    "expert_gating_func": (0, 1),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_shared_count": (0,),
    "expert_shared_feed_forward_length": (0,),
    "expert_weights_norm": (True,),
    "expert_weights_scale": (0, 1),
    "final_logit_softcapping": (0,),
    "hidden_activation": ("silu",),
    "leading_dense_block_count": (0,),
    "logit_scale": (0, 1),
    "nextn_predict_layers": (0,),
    "residual_scale": (0, 1),
    "rope.scaling.alpha": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
    "use_parallel_residual": (False,),
}
"""Change nothing with these values, and have no computation here with others."""


READ = (
    "general.architecture", "general.type", "general.name", "general.alignment",
    *(f"general.sampling.{end}" for end in ("temp", "top_k", "top_p", "min_p", "penalty_repeat", "penalty_last_n")),
    "tokenizer.chat_template", "tokenizer.chat_template.*", "tokenizer.chat_templates",
    *(f"tokenizer.ggml.{end}" for end in (
        "model", "pre", "tokens", "token_type", "scores", "merges", "precompiled_charsmap", "add_space_prefix",
        "remove_extra_whitespaces", "add_bos_token", "add_eos_token", "add_sep_token", "normalizer.lowercase",
        "normalizer.strip_accents", "normalizer.nfc", "bos_token_id", "eos_token_id", "eos_token_ids",
        "unknown_token_id", "padding_token_id", "seperator_token_id", "mask_token_id", "eot_token_id", "eom_token_id",
        *(f"fim_{part}_token_id" for part in ("pre", "suf", "mid", "pad", "rep", "sep")),
        *(f"{part}_token_id" for part in ("prefix", "suffix", "middle")),
        "text_begin_ids", "text_end_ids", "text_lowercase", "text_max_length",
        *(f"added_tokens.{flag}" for flag in ("lstrip", "rstrip", "single_word", "normalized")),
    )),
)
"""Keys of `general.` and `tokenizer.` that say what is computed, or of what; * stands for anything."""
HARMLESS = (
    *(f"general.{end}" for end in (
        "author", "base_model.*", "basename", "dataset.*", "datasets", "description", "doi", "file_type", "finetune",
        "languages", "license", "license.*", "organization", "parameter_count", "quantization_version", "quantized_by",
        "repo_url", "size_label", "source.*", "tags", "url", "uuid", "version", "sampling.xtc_threshold",
        "sampling.mirostat_eta", "sampling.mirostat_tau",
    )),
    "tokenizer.ggml.token_type_count", "tokenizer.ggml.cls_token_id", "tokenizer.huggingface.json",
    "tokenizer.rwkv.world",
)
"""Keys there that change nothing: who made a model and how, and what other keys say too."""
OFF = {"general.sampling.mirostat": (0,), "general.sampling.xtc_probability": (0,)}
"""Keys there that change nothing with these values."""


def is_in(known: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a key is one of these, of which those with a * are patterns."""
    plain, patterns = {key for key in known if "*" not in key}, [translate(key) for key in known if "*" in key]
    pattern = re.compile("|".join(patterns or ["(?!)"]))
    return lambda key: key in plain or pattern.match(key) is not None


def log_unread(file: str, left: list[str]) -> None:
    """One warning that names the first of what nothing reads; none where there is nothing."""
    if left:
        more = f" and {len(left) - MOST_NAMED} more" if len(left) > MOST_NAMED else ""
        _warn_once(f"{file}: nothing here reads {', '.join(left[:MOST_NAMED])}{more}")


@lru_cache(maxsize=256)
def _warn_once(text: str) -> None:
    """A command reads the model of a file several times."""
    _log.warning("%s", text)


def _unread(metadata: Metadata) -> list[str]:
    """The keys of `general.` and `tokenizer.` that are in no table."""
    known = is_in((*READ, *HARMLESS))
    return [
        key for key in metadata
        if key.startswith(("general.", "tokenizer.")) and not known(key)
        and not (key in OFF and _neutral(metadata, key, OFF[key]))
    ]


def check_keys(metadata: Metadata, path: str, arch: str, own: frozenset[str]) -> None:
    """Raises ModelError for a key under `<arch>.` that would change what is computed, or might.

    Keys that llama.cpp doesn't read either are named in a warning, with those of `general.` and `tokenizer.` that
    nothing reads.

    own  fields that the architecture reads beside the shared ones
    """
    unread: list[str] = []
    for key in metadata:
        field = key.removeprefix(f"{arch}.")
        if field == key or field in SHARED or field in own or field in UNUSED:
            continue
        if field not in NEUTRAL and field not in _fields_of_llama_cpp() and field not in _fields_of_others():
            unread.append(key)
            continue
        if field not in NEUTRAL:
            raise ModelError(f"is a key that Octavo does not compute {arch} with", file=path, field=key)
        if not _neutral(metadata, key, NEUTRAL[field]):
            problem = f"is {_value_text(metadata, key)}, which Octavo does not compute {arch} with"
            raise ModelError(problem, file=path, field=key, allowed=" or ".join(map(str, NEUTRAL[field])))
    log_unread(path, [shown(key)[1:-1] for key in (*unread, *_unread(metadata))])


@cache
def _fields_of_others() -> frozenset[str]:
    """The fields that any of Octavo's own architectures reads."""
    return frozenset(field for module in own_modules().values() for field in import_module(module).ARCH.fields)


@cache
def _fields_of_llama_cpp() -> frozenset[str]:
    """The fields that llama.cpp knows, as the gguf package lists them."""
    from gguf.constants import Keys

    named = (value for group in vars(Keys).values() if isinstance(group, type) for value in vars(group).values())
    return frozenset(v.removeprefix("{arch}.") for v in named if isinstance(v, str) and v.startswith("{arch}."))


def _neutral(metadata: Metadata, key: str, allowed: tuple[object, ...]) -> bool:
    value = None if _is_array(metadata, key) else metadata[key]
    return any(isinstance(value, bool) == isinstance(a, bool) and value == a for a in allowed)


def _is_array(metadata: Metadata, key: str) -> bool:
    return metadata.describe(key).startswith("array")


def _value_text(metadata: Metadata, key: str) -> str:
    return metadata.describe(key) if _is_array(metadata, key) else shown(str(metadata[key]))[1:-1]
