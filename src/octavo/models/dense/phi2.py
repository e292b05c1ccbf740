"""Phi-1, 1.5 and 2: attention and feed-forward side by side behind one layer norm, biases everywhere, GELU."""

from dataclasses import replace

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.decoder import MLP, PARALLEL, Attention, Decoder

ARCH = Architecture(
    name="phi2",
    network=Decoder(
        mixer=Attention(joined=None, bias=True, output_bias=True), feed_forward=MLP,
        norms=replace(PARALLEL, bias=True), output_bias=True,
    ),
    layer_norms="layer_norm_eps",
    classes={"PhiForCausalLM": lambda config: {}},
    only={"qk_layernorm": False},
    rotary_part=0.5,
    names=names.ATTENTION | {
        "input_layernorm": "attn_norm", "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
    },
    outer=names.outer("embed_tokens", "final_layernorm", bias=True) | {"lm_head.bias": "output.bias"},
    ropes=("default", "linear"),
    activation="gelu_new",
)
