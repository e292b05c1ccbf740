"""CodeShell: layer norms, q, k and v in one matrix, rope, biases everywhere, GELU between two matrices."""

from dataclasses import replace

from octavo.models.dense import gpt2
from octavo.models.shared.architecture import Architecture, Modules
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import MLP, Decoder, NormNames
from octavo.models.shared.reader import FF_WIDTH, KV_HEADS, LIMITS


def config_keys(config: Config) -> Keys:
    grouped = config.flag("group_query_attention", False)
    return {
        KV_HEADS: config.size("num_query_groups", config.n_head) if grouped else config.n_head,
        FF_WIDTH: config.size("intermediate_size", LIMITS[FF_WIDTH], 4 * config.width),
    }


ARCH = Architecture(
    name="codeshell",
    network=Decoder(
        mixer=replace(gpt2.ATTENTION, rope="all"), feed_forward=MLP, norms=NormNames(bias=True), freq_factors=False
    ),
    layer_norms="layer_norm_epsilon",
    only={"position_embedding_type": "rope", "scale_attn_weights": True},
    classes={"CodeShellForCausalLM": config_keys},
    base="transformer.",
    layer="h",
    names=gpt2.ARCH.names,
    outer=gpt2.ARCH.outer,
    modules=Modules(ignored=(".attn.rotary_emb.inv_freq",)),
    key_aliases=gpt2.ARCH.key_aliases,
    ropes=("default", "linear"),
    activation="gelu_pytorch_tanh",
)
