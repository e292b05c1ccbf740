"""Llama 2 and 3, Mistral, Ministral and Mixtral: rope on neighbouring pairs, SwiGLU or experts, windows in some."""

from collections.abc import Mapping
from typing import Any

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, NextLayer, Written
from octavo.models.shared.config import Config, Keys, expert_keys, window_keys
from octavo.models.shared.decoder import Attention, Decoder, Experts, dense_or
from octavo.models.shared.hparams import Hyperparams, expert_words
from octavo.models.shared.windows import Windows, layer_window_keys

NETWORK = Decoder(mixer=Attention(output_bias=None), feed_forward=dense_or(Experts()))


def ministral(config: Config) -> Keys:
    return layer_window_keys(config, 0) if window_keys(config, 4096) else {}


def mixtral(config: Config) -> Keys:
    return window_keys(config, 0) | expert_keys(config, "num_local_experts")


def config_of(hp: Hyperparams) -> Mapping[str, Any]:
    """Of a model with experts that it is a Mixtral."""
    if not hp.n_expert:
        return {}
    return {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral", **expert_words(hp, "num_local_experts")}


ARCH = Architecture(
    name="llama",
    network=NETWORK,
    windows=Windows(0),
    next_layer=NextLayer(),
    interleaved=True,
    experts=None,
    classes={
        "LlamaForCausalLM": lambda config: {},
        "MistralForCausalLM": lambda config: window_keys(config, 4096),
        "MinistralForCausalLM": ministral,
        "MixtralForCausalLM": mixtral,
    },
    names=names.LLAMA | names.moe("block_sparse_moe", "w1", "w3", "w2") | names.moe("mlp", "w1", "w3", "w2"),
    ropes=("default", "linear", "yarn", "llama3"),
    is_70b=lambda heads, kv_heads, experts: heads != kv_heads and experts != 8,
    written=Written(config=config_of, biases={
        "attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output"),
        "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
    }),
)
