"""EXAONE 3 and 3.5: Llama by other names, rope on halves of a head in files too."""

from __future__ import annotations

from octavo.models.dense import llama
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, rotary_keys
from octavo.models.shared.hparams import HyperparamReader, Hyperparams, read_shared


def hparams(r: HyperparamReader) -> Hyperparams:
    return read_shared(r, has_experts=False)


def config_keys(config: Config) -> Keys:
    return rotary_keys(config, default=1.0)


ARCH = Architecture(
    name="exaone",
    hparams=hparams,
    tensors=llama.tensors,
    build=llama.build,
    classes={"ExaoneForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names={
        "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.attention.out_proj": "attn_output",
        **{f"attn.attention.{n}_proj": f"attn_{n}" for n in "qkv"},
        "mlp.c_fc_0": "ffn_gate", "mlp.c_fc_1": "ffn_up", "mlp.c_proj": "ffn_down",
    },
    outer={
        "wte.weight": "token_embd.weight", "ln_f.weight": "output_norm.weight", "lm_head.weight": "output.weight",
    },
    key_aliases={
        "num_layers": "num_hidden_layers", "activation_function": "hidden_act", "layer_norm_epsilon": "rms_norm_eps",
    },
    ropes=("default", "linear", "yarn", "llama3"),
    writable=False,
)
