"""Mistral Small 4, text: DeepSeek's latent attention and experts, scores that grow with the position."""

import math
from dataclasses import replace

from octavo.models.moe import deepseek2
from octavo.models.shared import experts, names
from octavo.models.shared import latent_attention as latent
from octavo.models.shared.config import Config, Keys, rope_parameters
from octavo.models.shared.experts import SOFTMAX
from octavo.models.shared.reader import LIMITS


def config_keys(config: Config) -> Keys:
    """Raises ModelError for a rotary part that the lengths of heads contradict."""
    keys = deepseek2.attention_keys(config) | experts.config_keys(config, SOFTMAX, normalized=True)
    found = rope_parameters(config)
    rotary, kept = (config.size(f"qk_{part}_head_dim", LIMITS["attention.key_length"], 64) for part in ("rope", "nope"))
    share = rotary / (rotary + kept)
    if not math.isclose(part := config.real("partial_rotary_factor", share, of=found), share):
        raise config.error("partial_rotary_factor", f"is {part:g}", f"{share:g}, as qk_rope_head_dim says")
    if found.get("llama_4_scaling_beta"):
        keys[deepseek2.TEMPERATURE] = config.real("llama_4_scaling_beta", of=found)
        word = "original_max_position_embeddings"
        keys[deepseek2.LENGTH] = Config({word: found.get(word)}, config.file).size(word, LIMITS["context_length"])
    return keys


ARCH = replace(
    deepseek2.ARCH,
    name="mistral4",
    classes={"Mistral4ForCausalLM": config_keys},
    only={**deepseek2.ARCH.only, "n_group": 1, "topk_group": 1, "rope_interleave": True},
    names=names.NORMS | names.FFN | latent.NAMES | names.ROUTED,
)
