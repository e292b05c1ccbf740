"""Nomic Embed 2: Nomic BERT with biases, GELU in place of SwiGLU, and experts in every second layer or so."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node
from octavo.models import bert, layers, nomic_bert
from octavo.models.architecture import Architecture
from octavo.models.hparams import LAYER_NORM_EPS, LIMITS, HyperparamReader, read_shared
from octavo.models.weights import Expected, Tensors, Weights, matrix, vector, with_scales

STEP = "moe_every_n_layers"


@dataclass(frozen=True, kw_only=True)
class NomicBertMoe(bert.Bert):
    """Of each `step` layers the second has experts; none with 0 or 1."""

    step: int

    def has_experts(self, layer: int) -> bool:
        return self.step > 1 and layer % self.step == 1


def hparams(r: HyperparamReader) -> NomicBertMoe:
    hp = read_shared(r, has_experts=True, eps=LAYER_NORM_EPS)
    return hp.extended(NomicBertMoe, n_types=bert.read_types(r), step=r.whole(STEP, 0, LIMITS["block_count"]))


def tensors(hp: NomicBertMoe) -> Tensors:
    norms = {f"{name}.{part}": vector(hp.n_embd) for name in bert.NORMS for part in ("weight", "bias")}
    rows = (hp.n_head + 2 * hp.n_head_kv) * hp.head_dim
    attention = _biased({"attn_qkv": (rows, hp.n_embd), "attn_output": (hp.n_embd, hp.n_head * hp.head_dim)})
    dense = _biased({"ffn_up": (hp.n_ff, hp.n_embd), "ffn_down": (hp.n_embd, hp.n_ff)})
    experts = {"ffn_gate_inp.weight": matrix(hp.n_expert, hp.n_embd)} | with_scales({
        "ffn_up_exps.weight": Expected((hp.n_expert, hp.n_ff_expert, hp.n_embd)),
        "ffn_down_exps.weight": Expected((hp.n_expert, hp.n_embd, hp.n_ff_expert)),
    })  # fmt: skip
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
    """Shares are of what all experts have. A bias that checkpoints add to the sum is in no GGUF file."""
    probabilities = g.soft_max(g.mul_mat(b["ffn_gate_inp"], x))
    ids = g.top_k(probabilities, hp.n_expert_used)
    h = layers.experts(g, b, "ffn_down_exps", g.gelu_erf(layers.experts(g, b, "ffn_up_exps", x, ids)), ids)
    return g.weighted_sum(h, g.gather(probabilities, ids))


ARCH = Architecture(
    name="nomic-bert-moe",
    hparams=hparams,
    keys=frozenset({LAYER_NORM_EPS, "attention.causal", STEP}),
    tensors=tensors,
    build=build,
    classes={},
    names={},
    outer={},
    encoder=True,
    writable=False,
)
