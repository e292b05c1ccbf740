"""EXAONE 3 and 3.5: Llama by other names, rope on halves of a head in files too."""

from octavo.models.dense import llama
from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture

ARCH = Architecture(
    name="exaone",
    network=llama.NETWORK,
    classes={"ExaoneForCausalLM": lambda config: {}},
    rotary_part=1.0,
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.attention.out_proj": "attn_output",
        **{f"attn.attention.{n}_proj": f"attn_{n}" for n in "qkv"},
        "mlp.c_fc_0": "ffn_gate", "mlp.c_fc_1": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer=names.outer("wte", "ln_f"),
    key_aliases={
        "num_layers": "num_hidden_layers", "activation_function": "hidden_act", "layer_norm_epsilon": "rms_norm_eps",
    },
    ropes=("default", "linear", "yarn", "llama3"),
)
