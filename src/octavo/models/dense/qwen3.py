"""Qwen3: Llama with a norm on each head of q and k instead of biases, and rope on halves."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, NextLayer, Written
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.windows import Windows, window_of_some

ARCH = Architecture(
    name="qwen3",
    network=Decoder(mixer=Attention(qk_norm="heads"), classifier=True),
    windows=Windows(),
    next_layer=NextLayer(),
    classes={"Qwen3ForCausalLM": window_of_some},
    names=names.LLAMA | names.QK_NORMS,
    written=Written(biases={"attention_bias": ("attn_q", "attn_k", "attn_v", "attn_output")}),
)
