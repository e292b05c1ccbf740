"""ERNIE 4.5: Llama whose checkpoints have rope on neighbouring pairs, too."""

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, TensorLayout, Written

ARCH = Architecture(
    name="ernie4_5",
    network=llama.NETWORK,
    interleaved=True,
    classes=dict.fromkeys(("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"), lambda config: {}),
    names=names.LLAMA,
    tied=True,
    layout=TensorLayout(permuted=False),
    written=Written(biases={
        "use_bias": ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
    }),
)
