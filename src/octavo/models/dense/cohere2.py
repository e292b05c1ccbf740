"""Cohere 2 (Command R7B): attention and feed-forward side by side behind one layer norm, rope only with a window."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout
from octavo.models.shared.decoder import PARALLEL, Attention, Decoder
from octavo.models.shared.hparams import Key
from octavo.models.shared.windows import Windows

LOGIT_SCALE = Key("logit_scale", "logit_scale", "logit_scale", default=1.0, usual=0.0625)

ARCH = Architecture(
    name="cohere2",
    network=Decoder(mixer=Attention(rope="window"), norms=PARALLEL),
    keys=(LOGIT_SCALE,),
    windows=Windows(4, 4096),
    interleaved=True,
    layer_norms="layer_norm_eps",
    classes={"Cohere2ForCausalLM": lambda config: {}},
    only={"use_qk_norm": False, "use_parallel_block": True, "attention_bias": False},
    names={"input_layernorm": "attn_norm"} | names.ATTENTION | names.FFN,
    ropes=("default",),
    tied=True,
    layout=TensorLayout(permuted=False),
)
