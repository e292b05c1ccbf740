"""GLM-4 (0414): rope on neighbouring pairs of half of each head, norms before and behind, gate and up in one matrix."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout
from octavo.models.shared.decoder import SANDWICH_NORMS, Decoder, FeedForward

ARCH = Architecture(
    name="glm4",
    network=Decoder(feed_forward=FeedForward(joined=True), norms=SANDWICH_NORMS),
    interleaved=True,
    classes={"Glm4ForCausalLM": lambda config: {}},
    rotary_part=0.5,
    names=names.NORMS | names.ATTENTION | {
        "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    },
    ropes=("default",),
    layout=TensorLayout(permuted=False),
)
