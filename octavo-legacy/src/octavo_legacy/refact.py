"""Refact: attention that falls with the distance (ALiBi) in place of rope, one head of keys, layer norms, SwiGLU."""

from dataclasses import replace

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.hparams import Hyperparams
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS, MetadataReader

ALIBI = 8.0
"""What slopes of heads are made of."""
MULTIPLE = 256
"""What the feed-forward's width is rounded up to a multiple of."""


def complete(r: MetadataReader, hp: Hyperparams) -> Hyperparams:
    """Layer norms by the key of RMS norms."""
    return replace(hp, around_mean=True, alibi=ALIBI)


def config_keys(config: Config) -> Keys:
    """The feed-forward is as wide as two thirds of `n_inner`."""
    inner = 2 * config.size("intermediate_size", LIMITS[FF_WIDTH], 4 * config.width) // 3
    return {
        KV_HEADS: 1, FF_WIDTH: -(-inner // MULTIPLE) * MULTIPLE,
        "rope.freq_base": None, "rope.dimension_count": None,
    }


ARCH = Architecture(
    name="refact",
    network=Decoder(mixer=Attention(bias=False, rope="none"), freq_factors=False),
    sizes=Sizes(complete=complete),
    only={"multi_query": True},
    classes={"GPTRefactForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.q": "attn_q", "attn.kv": "attn_k attn_v", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.gate_up_proj": "ffn_gate ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer=names.outer("wte", "ln_f"),
    key_aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "layer_norm_epsilon": "rms_norm_eps",
    },
    ropes=("default",),
)
