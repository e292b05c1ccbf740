"""GPT-J: attention and feed-forward side by side behind one layer norm, rope on neighbours of a part of each head."""

from dataclasses import replace

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Modules, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import MLP, PARALLEL, Attention, Decoder
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS


def config_keys(config: Config) -> Keys:
    """Rope is on the first `rotary_dim` values of each head."""
    heads = config.n_head
    return {
        KV_HEADS: heads,
        FF_WIDTH: config.size("intermediate_size", LIMITS[FF_WIDTH], 4 * config.width),
        "rope.dimension_count": config.size("rotary_dim", LIMITS["attention.key_length"], config.width // heads),
    }


ARCH = Architecture(
    name="gptj",
    network=Decoder(
        mixer=Attention(), feed_forward=MLP, norms=replace(PARALLEL, bias=True), output_bias=True
    ),
    interleaved=True,
    layer_norms="layer_norm_epsilon",
    only={"scale_attn_weights": True},
    classes={"GPTJForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "attn.q_proj": "attn_q", "attn.k_proj": "attn_k", "attn.v_proj": "attn_v",
        "attn.out_proj": "attn_output", "mlp.fc_in": "ffn_up", "mlp.fc_out": "ffn_down",
    },
    outer=names.outer("wte", "ln_f", bias=True) | {"lm_head.bias": "output.bias"},
    modules=Modules(ignored=(".attn.bias", ".attn.masked_bias", ".attn.embed_positions")),
    key_aliases={
        "n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "n_positions": "max_position_embeddings", "n_inner": "intermediate_size", "activation_function": "hidden_act",
    },
    ropes=("default",),
    activation="gelu_new",
    layout=TensorLayout(permuted=False),
)
