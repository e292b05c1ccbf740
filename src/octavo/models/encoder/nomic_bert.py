"""Nomic BERT: an encoder with rope instead of learned positions, SwiGLU, and q, k and v in one matrix."""

from collections.abc import Mapping
from dataclasses import replace

from octavo.models.encoder import bert
from octavo.models.encoder.bert import BertEncoder
from octavo.models.shared.architecture import Modules, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import FullAttention
from octavo.models.shared.reader import LIMITS, brief

FIXED = {
    "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False, "moe_every_n_layers": 0,
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "rotary_emb_scale_base": None, "causal": False,
    "rotary_scaling_factor": None,
}
"""Words of config.json that have no computation here with other values."""
TRAINED = 2048
"""Positions that the published models were trained for, whatever more their configurations say."""


def config_keys(config: Config) -> Keys:
    """Raises ModelError for what the published models of 137M parameters do not have."""
    require_fixed(config, FIXED)
    return encoder_keys(config, TRAINED)


def require_fixed(config: Config, fixed: Mapping[str, object]) -> None:
    for key, allowed in fixed.items():
        if (found := config.values.get(key, allowed)) != allowed:
            raise config.error(key, f"is {brief(found)}", str(allowed))


def encoder_keys(config: Config, trained: int) -> Keys:
    """What both kinds have, of `trained` positions at most."""
    bert.require_types(config)
    positions = config.size("max_position_embeddings", LIMITS["context_length"], trained)
    keys: Keys = {"context_length": min(trained, positions)}
    if config.values.get("rotary_emb_base") is not None:
        keys["rope.freq_base"] = config.real("rotary_emb_base")
    return keys


ARCH = replace(
    bert.ARCH,
    name="nomic-bert",
    network=BertEncoder(mixer=FullAttention(joined=True, bias=False)),
    only={},
    classes={"NomicBertModel": config_keys},
    names={
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc11": "ffn_up",
        "mlp.fc12": "ffn_gate", "mlp.fc2": "ffn_down", "norm2": "layer_output_norm",
    },
    key_aliases={
        "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
        "n_inner": "intermediate_size", "n_positions": "max_position_embeddings",
        "layer_norm_epsilon": "layer_norm_eps",
    },
    layer="encoder.layers",
    modules=Modules(rows=bert.ROWS),
    outer={
        **{name: gguf for name, gguf in bert.OUTER.items() if "word_" in name or "type_" in name},
        "emb_ln.weight": "token_embd_norm.weight",
        "emb_ln.bias": "token_embd_norm.bias",
    },
    unused=("pooler.", "cls."),
    layout=TensorLayout(),
    activation="silu",
)
