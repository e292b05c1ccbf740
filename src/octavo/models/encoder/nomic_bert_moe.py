"""Nomic Embed 2: Nomic BERT with biases, GELU in place of SwiGLU, and experts in every second layer or so."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models.encoder import bert, nomic_bert
from octavo.models.shared import layers
from octavo.models.shared.architecture import Architecture
from octavo.models.shared.config import Config, Keys, expert_keys
from octavo.models.shared.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, read_shared, refuse_causal
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

    step: int

    def has_experts(self, layer: int) -> bool:
        return self.step > 1 and layer % self.step == 1


def hparams(r: HyperparamReader) -> NomicBertMoe:
    hp = read_shared(r, has_experts=True, eps=LAYER_NORM_EPS)
    refuse_causal(r)
    return hp.extended(NomicBertMoe, n_types=bert.read_types(r), step=r.whole(STEP, 0, LIMITS["block_count"]))


def tensors(hp: NomicBertMoe) -> Tensors:
    norms = {f"{name}.{part}": vector(hp.n_embd) for name in bert.NORMS for part in ("weight", "bias")}
    rows = (hp.n_head + 2 * hp.n_head_kv) * hp.head_dim
    attention = _biased({"attn_qkv": (rows, hp.n_embd), "attn_output": (hp.n_embd, hp.n_head * hp.head_dim)})
    dense = _biased({"ffn_up": (hp.n_ff, hp.n_embd), "ffn_down": (hp.n_embd, hp.n_ff)})
    experts = {"ffn_gate_inp.weight": matrix(hp.n_expert, hp.n_embd), BIAS_OF_ALL: vector(hp.n_embd, optional=True)}
    experts |= with_scales({
        "ffn_up_exps.weight": Expected((hp.n_expert, hp.n_ff_expert, hp.n_embd)),
        "ffn_down_exps.weight": Expected((hp.n_expert, hp.n_embd, hp.n_ff_expert)),
    })
    blocks = [norms | attention | (experts if hp.has_experts(i) else dense) for i in range(hp.n_layer)]
    return bert.outer_tensors(hp, positions=False) | {
        f"blk.{i}.{name}": want for i, block in enumerate(blocks) for name, want in block.items()
    }


def _biased(shapes: dict[str, tuple[int, int]]) -> Tensors:
    """Matrices, each of which may have a bias."""
    biases = {f"{name}.bias": vector(n, optional=True) for name, (n, _) in shapes.items()}
    return with_scales({f"{name}.weight": matrix(*shape) for name, shape in shapes.items()}) | biases


def build(g: GraphBuilder, hp: NomicBertMoe, w: Weights) -> Node:
    def feed_forward(layer: int, b: Weights, x: Node) -> Node:
        if hp.has_experts(layer):
            return _moe(g, hp, b, x)
        return layers.linear(g, b, "ffn_down", g.gelu_erf(layers.linear(g, b, "ffn_up", x)))

    return nomic_bert.encoded(g, hp, w, feed_forward)


def _moe(g: GraphBuilder, hp: NomicBertMoe, b: Weights, x: Node) -> Node:
    """Shares are of what all experts have. Checkpoints add a bias to the sum, GGUF files of others do not have it."""
    probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], x))
    ids = g.top_k(probabilities, hp.n_expert_used)
    h = layers.experts(g, b, "ffn_down_exps", g.gelu_erf(layers.experts(g, b, "ffn_up_exps", x, ids)), ids)
    y, bias = g.weighted_sum(h, g.gather(probabilities, ids)), b.get(BIAS_OF_ALL)
    return y if bias is None else g.add(y, bias)


def config_keys(config: Config) -> Keys:
    """Raises ModelError for other routing than that of the published model."""
    nomic_bert.require_fixed(config, FIXED)
    experts = expert_keys(config, "num_experts", "num_local_experts")
    return nomic_bert.encoder_keys(config, TRAINED) | experts | {STEP: config.size(STEP, LIMITS["block_count"])}


ARCH = Architecture(
    name="nomic-bert-moe",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, "attention.causal", STEP}),
    tensors=tensors,
    build=build,
    classes={f"NomicBertModel with {STEP}": config_keys},
    names={
        "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm1": "attn_output_norm", "mlp.fc1": "ffn_up",
        "mlp.fc2": "ffn_down", "norm2": "layer_output_norm", "mlp.router.layer": "ffn_gate_inp",
        "mlp.experts": "ffn_exps", "mlp.experts.mlp.w1": "ffn_up_exps", "mlp.experts.mlp.w2": "ffn_down_exps",
    },
    key_aliases={**nomic_bert.ARCH.key_aliases, "moe_top_k": "num_experts_per_tok"},
    base=nomic_bert.ARCH.base,
    layer=nomic_bert.ARCH.layer,
    rows=bert.ROWS,
    outer=nomic_bert.ARCH.outer,
    unused=nomic_bert.ARCH.unused,
    columns="in one",
    activation="gelu",
    tied=True,
    encoder=True,
    writable=False,
)
