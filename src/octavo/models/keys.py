"""Metadata under an architecture's own prefix: what is computed with, what changes nothing, and that there is no more.

A key that is not in these tables may change what a model computes, so a file that has one is refused by its name,
unless llama.cpp doesn't read it either.
"""

from __future__ import annotations

import logging
from functools import cache

from octavo.errors import ModelError, shown
from octavo.io.gguf.metadata import Metadata

_log = logging.getLogger("octavo")

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


def check_keys(metadata: Metadata, path: str, arch: str, own: frozenset[str]) -> None:
    """Raises ModelError for a key under `<arch>.` that would change what is computed, or might.

    A key that llama.cpp doesn't read either is named in a warning.

    own  fields that the architecture reads beside the shared ones
    """
    for key in metadata:
        field = key.removeprefix(f"{arch}.")
        if field == key or field in SHARED or field in own or field in UNUSED:
            continue
        if field not in NEUTRAL and field not in _fields_of_others():
            _log.warning("%s: %s is a key that neither Octavo nor llama.cpp reads", path, shown(key)[1:-1])
            continue
        if field not in NEUTRAL:
            raise ModelError(f"is a key that Octavo does not compute {arch} with", file=path, field=key)
        if not _neutral(metadata, key, NEUTRAL[field]):
            problem = f"is {_value_text(metadata, key)}, which Octavo does not compute {arch} with"
            raise ModelError(problem, file=path, field=key, allowed=" or ".join(map(str, NEUTRAL[field])))


@cache
def _fields_of_others() -> frozenset[str]:
    """The fields that llama.cpp knows, as the gguf package lists them, and those that architectures here read."""
    from gguf.constants import Keys

    from octavo.models.registry import ARCHITECTURES

    named = (value for group in vars(Keys).values() if isinstance(group, type) for value in vars(group).values())
    fields = (v.removeprefix("{arch}.") for v in named if isinstance(v, str) and v.startswith("{arch}."))
    return frozenset(fields).union(*(architecture.keys for architecture in ARCHITECTURES.values()))


def _neutral(metadata: Metadata, key: str, allowed: tuple[object, ...]) -> bool:
    value = None if _is_array(metadata, key) else metadata[key]
    return any(isinstance(value, bool) == isinstance(a, bool) and value == a for a in allowed)


def _is_array(metadata: Metadata, key: str) -> bool:
    return metadata.describe(key).startswith("array")


def _value_text(metadata: Metadata, key: str) -> str:
    return metadata.describe(key) if _is_array(metadata, key) else shown(str(metadata[key]))[1:-1]
