"""Nomic Embed 2: Nomic BERT with biases, GELU in place of SwiGLU, and experts in every second layer or so."""

from dataclasses import dataclass, replace

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import bert, nomic_bert
from octavo.models.encoder.bert import BertEncoder
from octavo.models.shared import layers
from octavo.models.shared.architecture import Sizes, TensorLayout
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.decoder import ByLayer, CustomPart, FeedForward, FullAttention
from octavo.models.shared.hparams import Key
from octavo.models.shared.reader import LIMITS, MetadataReader
from octavo.models.shared.weights import Expected, Tensors, Weights, matrix, vector, with_scales

STEP = "moe_every_n_layers"
BIAS_OF_ALL = "ffn_exps.bias"
"""What is added to the sum of a token's experts: a name of Octavo's own."""
TRAINED = 512
"""Positions that the published model was trained for, whatever more its configuration says."""
FIXED = {key: value for key, value in nomic_bert.FIXED.items() if "bias" not in key and key != STEP} | {
    "activation_function": "gelu", "moe_normalize_expert_weights": False, "expert_choice_router": False,
    "num_shared_experts": 0, "ffn_div": 1,
}
"""Words of config.json that have no computation here with other values."""


@dataclass(frozen=True, kw_only=True)
class NomicBertMoe(bert.Bert):
    """Of each `step` layers the second has experts; none with 0 or 1."""

    step: int = 0

    def has_experts(self, layer: int) -> bool:
        return self.step > 1 and layer % self.step == 1


def complete(r: MetadataReader, hp: NomicBertMoe) -> NomicBertMoe:
    return replace(hp, n_types=bert.kinds_of_tokens(r))


def expert_tensors(hp: NomicBertMoe, layer: int) -> Tensors:
    router = {"ffn_gate_inp.weight": matrix(hp.n_expert, hp.n_embd), BIAS_OF_ALL: vector(hp.n_embd, optional=True)}
    return router | with_scales({
        "ffn_up_exps.weight": Expected((hp.n_expert, hp.n_ff_expert, hp.n_embd)),
        "ffn_down_exps.weight": Expected((hp.n_expert, hp.n_embd, hp.n_ff_expert)),
    })


def experts(g: GraphBuilder, hp: NomicBertMoe, b: Weights, x: Node, layer: int) -> Node:
    """Weights are probabilities among all experts. Checkpoints add a bias to the sum, others' GGUF files have none."""
    probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], x))
    ids = g.top_k(probabilities, hp.n_expert_used)
    h = layers.experts(g, b, "ffn_down_exps", g.gelu_erf(layers.experts(g, b, "ffn_up_exps", x, ids)), ids)
    y, bias = g.weighted_sum(h, g.gather(probabilities, ids)), b.get(BIAS_OF_ALL)
    return y if bias is None else g.add(y, bias)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other routing than that of the published model."""
    nomic_bert.require_fixed(config, FIXED)
    experts = expert_keys(config, "num_experts", "num_local_experts")
    return nomic_bert.encoder_keys(config, TRAINED) | experts


DENSE = FeedForward(activation="gelu_erf", plain=True, bias=None)

ARCH = replace(
    nomic_bert.ARCH,
    name="nomic-bert-moe",
    network=BertEncoder(
        mixer=FullAttention(joined=True, bias=None, output_bias=None),
        feed_forward=ByLayer(NomicBertMoe.has_experts, CustomPart(expert_tensors, experts), DENSE),
    ),
    keys=(Key("step", STEP, STEP, default=0, usual=0, limit=LIMITS["block_count"]),),
    sizes=Sizes(kind=NomicBertMoe, complete=complete),
    experts=True,
    classes={f"NomicBertModel with {STEP}": config_keys},
    names={
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down", "norm2": "layer_output_norm", "mlp.router.layer": "ffn_gate_inp",
        "mlp.experts": "ffn_exps", "mlp.experts.mlp.w1": "ffn_up_exps", "mlp.experts.mlp.w2": "ffn_down_exps",
    },
    key_aliases={**nomic_bert.ARCH.key_aliases, "moe_top_k": "num_experts_per_tok"},
    layout=TensorLayout(columns="in one"),
    activation="gelu",
)
