"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and rope on halves."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Written
from octavo.models.shared.decoder import Attention, Decoder
from octavo.models.shared.windows import Windows, window_of_some

ARCH = Architecture(
    name="qwen2",
    network=Decoder(mixer=Attention(bias=True), output_bias=True),
    windows=Windows(),
    classes={"Qwen2ForCausalLM": window_of_some},
    names=names.LLAMA,
    is_70b=lambda heads, kv_heads, experts: True,
    written=Written(biases={"attention_bias": ("attn_q", "attn_k", "attn_v")}),
)
