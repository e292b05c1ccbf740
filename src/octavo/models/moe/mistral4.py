"""Mistral Small 4, text: DeepSeek's latent attention and experts, scores that grow with the position."""

from __future__ import annotations

import math

from octavo.models.dense.mistral3 import TEMPERATURE
from octavo.models.moe import deepseek2
from octavo.models.shared import latent_attention as latent
from octavo.models.shared import names, routed
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.hparams import LIMITS
from octavo.models.shared.routed import SOFTMAX


def config_keys(config: Config) -> Keys:
    """Raises ModelError for groups of experts, and for rope on halves of a head."""
    config.only({"n_group": 1, "topk_group": 1})
    config.only_flags({"rope_interleave": True})
    keys = deepseek2.attention_keys(config) | routed.config_keys(config, SOFTMAX, normalized=True)
    found = rope_parameters(config)
    turned, kept = (config.size(f"qk_{part}_head_dim", LIMITS["attention.key_length"], 64) for part in ("rope", "nope"))
    share = turned / (turned + kept)
    if not math.isclose(part := config.real("partial_rotary_factor", share, of=found), share):
        raise config.error("partial_rotary_factor", f"is {part:g}", f"{share:g}, as qk_rope_head_dim says")
    if found.get("llama_4_scaling_beta"):
        keys[TEMPERATURE] = config.real("llama_4_scaling_beta", of=found)
        word = "original_max_position_embeddings"
        keys[deepseek2.LENGTH] = Config({word: found.get(word)}, config.file).size(word, LIMITS["context_length"])
    return keys


ARCH = Architecture(
    name="mistral4",
    hparams=deepseek2.hparams,
    keys=deepseek2.KEYS,
    tensors=deepseek2.tensors,
    build=deepseek2.build,
    updated=deepseek2.ARCH.updated,
    classes={"Mistral4ForCausalLM": config_keys},
    names=names.NORMS | names.FFN | latent.NAMES | names.ROUTED,
    reordered=False,
    writable=False,
)
