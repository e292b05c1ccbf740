"""Names that a checkpoint's tensors have, and GGUF's for them; architectures put theirs together from these.

A name of a layer's module stands for its weight and its bias; one of GGUF's that ends with a dot is a whole name. `*`
is the number of an expert; GGUF stacks the experts' weights. In a checkpoint that stacks them too, `gate_up_proj` has
each expert's rows of the gate and then those of up. A number behind a slash is that of a part which GGUF stacks with
others.
"""

from __future__ import annotations


def outer(embedding: str, norm: str = "norm", output: str = "lm_head", *, bias: bool = False) -> dict[str, str]:
    """Whole names of tensors outside of layers, by the names of their modules; with `bias` the last norm has one."""
    norms = {f"{norm}.{end}": f"output_norm.{end}" for end in (("weight", "bias") if bias else ("weight",))}
    return {f"{embedding}.weight": "token_embd.weight", **norms, f"{output}.weight": "output.weight"}


OUTER = outer("embed_tokens", bias=True)
"""Those of most, without the "model." that they begin with."""

NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
LATE_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "post_attention_norm"}
"""The same norms, where GGUF calls the second one that behind attention."""
ATTENTION = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
}
POST_NORMS = {"post_attention_layernorm": "post_attention_norm", "post_feedforward_layernorm": "post_ffw_norm"}
"""Norms of what attention and feed-forward add."""
QK_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def ffn(module: str, kind: str = "") -> dict[str, str]:
    """Names of a feed-forward under a module; of the expert for all tokens with the `kind` "_shexp", of experts that
    MLX stacks with "_exps"."""
    return {f"{module}.{part}_proj": f"ffn_{part}{kind}" for part in ("gate", "up", "down")}


FFN = ffn("mlp")
LLAMA = NORMS | ATTENTION | FFN
SANDWICH_NORMS = {"input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm"} | POST_NORMS
"""Norms before and behind attention and feed-forward."""


def moe(module: str, gate: str, up: str, down: str) -> dict[str, str]:
    """Names of a router and its experts under a module, each expert with projections of the names given."""
    return {
        f"{module}.gate": "ffn_gate_inp",
        f"{module}.experts.*.{gate}": "ffn_gate_exps",
        f"{module}.experts.*.{up}": "ffn_up_exps",
        f"{module}.experts.*.{down}": "ffn_down_exps",
        **stacked(module),
        **ffn(f"{module}.switch_mlp", "_exps"),
    }


def stacked(module: str) -> dict[str, str]:
    """Names of experts that a checkpoint, or transformers as it loads one, stacks under a module."""
    return {f"{module}.experts.gate_up_proj": GATE_UP, f"{module}.experts.down_proj": "ffn_down_exps"}


GATE_UP = "ffn_gate_exps ffn_up_exps"
"""Two tensors in one: the halves of each expert's rows."""
SHARED_GATE_UP = "ffn_gate_shexp ffn_up_shexp"
"""The same of the expert that all tokens go through."""
ROUTED = moe("mlp", "gate_proj", "up_proj", "down_proj") | ffn("mlp.shared_experts", "_shexp") | {
    "mlp.gate.e_score_correction_bias": "exp_probs_b.bias",
}
"""Names of the parts of experts as DeepSeek has them, see `models.shared.experts`."""
NEXTN = {
    "eh_proj": "nextn.eh_proj", "enorm": "nextn.enorm", "hnorm": "nextn.hnorm", "embed_tokens": "nextn.embed_tokens",
    "shared_head.head": "nextn.shared_head_head", "shared_head.norm": "nextn.shared_head_norm",
}
"""What layers that guess tokens have beside what others have."""
