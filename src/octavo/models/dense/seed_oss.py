"""Seed-OSS: Llama with biases of q, k and v, and rope on halves; its second norm is named as one behind attention."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Written
from octavo.models.shared.decoder import Attention, Decoder, FeedForward, NormNames

ARCH = Architecture(
    name="seed_oss",
    network=Decoder(
        mixer=Attention(output_bias=None), feed_forward=FeedForward(bias=None),
        norms=NormNames(feed_forward="post_attention_norm"),
    ),
    classes={"SeedOssForCausalLM": lambda config: {}},
    names=names.LLAMA | {"post_attention_layernorm": "post_attention_norm"},
    written=Written(biases={
        "attention_bias": ("attn_q", "attn_k", "attn_v"), "attention_out_bias": ("attn_output",),
        "mlp_bias": ("ffn_gate", "ffn_up", "ffn_down"),
    }),
)
