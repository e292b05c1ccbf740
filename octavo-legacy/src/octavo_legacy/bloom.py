"""BLOOM: layer norms, one of them of the embedding, attention that falls with the distance (ALiBi), GELU, biases."""

from octavo.models.dense import gpt2
from octavo.models.shared.architecture import Architecture, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import MLP, Decoder, NormNames
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS
from octavo_legacy.shared import unjoined_heads

USUAL, LENGTH = 8.0, 2048
"""What slopes of heads are made of, and the context that the published models were trained with, where a file does not
say."""


def config_keys(config: Config) -> Keys:
    return {
        "context_length": config.size("max_position_embeddings", LIMITS["context_length"], LENGTH),
        KV_HEADS: config.n_head,
        FF_WIDTH: 4 * config.width, "rope.freq_base": None, "rope.dimension_count": None,
    }


ARCH = Architecture(
    name="bloom",
    network=Decoder(
        mixer=gpt2.ATTENTION, feed_forward=MLP, norms=NormNames(bias=True), embedding_norm=True, freq_factors=False
    ),
    keys=(Key("alibi", "attention.max_alibi_bias", default=USUAL),),
    layer_norms="layer_norm_epsilon",
    only={"apply_residual_connection_post_layernorm": False},
    classes={"BloomForCausalLM": config_keys, "BloomModel": config_keys},
    base="transformer.",
    layer="h",
    names={
        "input_layernorm": "attn_norm", "self_attention.query_key_value": "attn_qkv",
        "self_attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    outer={
        "word_embeddings.weight": "token_embd.weight", "word_embeddings_layernorm.weight": "token_embd_norm.weight",
        "word_embeddings_layernorm.bias": "token_embd_norm.bias", "ln_f.weight": "output_norm.weight",
        "ln_f.bias": "output_norm.bias", "lm_head.weight": "output.weight",
    },
    key_aliases={
        "n_embed": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads",
        "seq_length": "max_position_embeddings",
    },
    layout=TensorLayout(converted=unjoined_heads),
    unwritten=Unwritten(tensors=("attn_qkv",)),
    ropes=("default",),
    tied=True,
)
