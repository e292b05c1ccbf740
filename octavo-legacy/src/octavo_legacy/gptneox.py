"""GPT-NeoX and Pythia: layer norms, attention and feed-forward side by side, rope on a part of each head, GELU."""

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture, Modules, Sizes, TensorLayout, Unwritten
from octavo.models.shared.config import Config, Keys
from octavo.models.shared.decoder import Attention, Decoder, FeedForward, NormNames
from octavo.models.shared.hparams import Hyperparams, Key
from octavo.models.shared.reader import KV_HEADS
from octavo.models.shared.weights import Weights
from octavo_legacy.shared import unjoined_heads

PARALLEL = "use_parallel_residual"


@dataclass(frozen=True, kw_only=True)
class GptNeoX(Hyperparams):
    """Whether attention and feed-forward are side by side."""

    parallel: bool = True


class NeoXDecoder(Decoder):
    """Parts that are side by side have a norm each."""

    def build_layer(self, g: GraphBuilder, hp: GptNeoX, b: Weights, x: Node, i: int) -> Node:
        y = g.add(x, self.mixer.build(g, hp, b, layers.norm(g, hp, b, "attn_norm", x), i))
        h = layers.norm(g, hp, b, "ffn_norm", x if hp.parallel else y)
        return g.add(y, FEED_FORWARD.build(g, hp, b, h, i))


FEED_FORWARD = FeedForward(activation="gelu_erf", plain=True, bias=True)


def config_keys(config: Config) -> Keys:
    return {KV_HEADS: config.n_head}


ARCH = Architecture(
    name="gptneox",
    network=NeoXDecoder(
        mixer=Attention(joined=True, bias=True, output_bias=True), feed_forward=FEED_FORWARD, norms=NormNames(bias=True)
    ),
    keys=(Key("parallel", PARALLEL, PARALLEL, default=True, usual=True),),
    sizes=Sizes(kind=GptNeoX),
    layer_norms="layer_norm_eps",
    rotary_part=0.25,
    only={"attention_bias": True},
    classes={"GPTNeoXForCausalLM": config_keys},
    base="gpt_neox.",
    names={
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "attention.dense": "attn_output",
        "attention.query_key_value": "attn_qkv", "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down",
    },
    outer={
        "embed_in.weight": "token_embd.weight", "final_layer_norm.weight": "output_norm.weight",
        "final_layer_norm.bias": "output_norm.bias", "embed_out.weight": "output.weight",
        "lm_head.weight": "output.weight",
    },
    modules=Modules(ignored=(".attention.bias", ".attention.masked_bias")),
    key_aliases={"rotary_pct": "partial_rotary_factor", "rotary_emb_base": "rope_theta"},
    layout=TensorLayout(converted=unjoined_heads),
    unwritten=Unwritten(tensors=("attn_qkv",)),
    ropes=("default", "linear"),
    activation="gelu",
)
