"""DBRX: layer norms, q, k and v in one matrix and clipped, rope on halves of a head, experts."""

from octavo.models.shared import names
from octavo.models.shared.architecture import Architecture, Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Decoder, Experts, NormNames
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LAYER_NORM_EPS, LIMITS
from octavo_legacy.shared import CLIP, Clipped, ClippedAttention

NORM = "attn_output_norm"
"""The norm before the experts."""


def config_keys(config: Config) -> Keys:
    """The base of the rope is that of attention, where it says one.

    Raises ModelError for another activation, and for shares of experts that do not make 1.
    """
    attention, feed_forward = (_part(config, word) for word in ("attn_config", "ffn_config"))
    feed_forward.only({"ffn_act_fn": {"name": "silu"}, "moe_normalize_expert_weights": 1})
    experts = feed_forward.size("moe_num_experts", LIMITS["expert_count"])
    clip = None if attention.values.get("clip_qkv") is None else attention.real("clip_qkv")
    base = {} if attention.values.get("rope_theta") is None else {"rope.freq_base": attention.real("rope_theta")}
    width = feed_forward.size("ffn_hidden_size", LIMITS[FF_WIDTH])
    return base | {
        LAYER_NORM_EPS: 1e-5, CLIP.field: clip, KV_HEADS: attention.size("kv_n_heads", config.n_head),
        "expert_count": experts, "expert_used_count": feed_forward.size("moe_top_k", experts),
        FF_WIDTH: width,
    }


def _part(config: Config, word: str) -> Config:
    found = config.values.get(word)
    if not isinstance(found, dict):
        raise config.error(word, "is missing or not an object")
    return Config(found, config.file)


ARCH = Architecture(
    name="dbrx",
    network=Decoder(
        mixer=ClippedAttention(joined=True, bias=False), feed_forward=Experts(), norms=NormNames(feed_forward=NORM)
    ),
    keys=(CLIP,),
    sizes=Sizes(kind=Clipped),
    layer_norms="layer_norm_eps",
    experts=True,
    classes={"DbrxForCausalLM": config_keys},
    base="transformer.",
    layer="blocks",
    names={
        "norm_attn_norm.norm_1": "attn_norm", "norm_attn_norm.norm_2": NORM, "norm_attn_norm.attn.Wqkv": "attn_qkv",
        "norm_attn_norm.attn.out_proj": "attn_output", "ffn.router.layer": "ffn_gate_inp",
        "ffn.experts.mlp.w1": "ffn_gate_exps", "ffn.experts.mlp.v1": "ffn_up_exps",
        "ffn.experts.mlp.w2": "ffn_down_exps",
    },
    outer=names.outer("wte", "norm_f"),
    key_aliases={
        "d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
        "max_seq_len": "max_position_embeddings",
    },
    ropes=("default",),
    layout=TensorLayout(columns="in one"),
)
