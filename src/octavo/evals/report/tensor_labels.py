"""Where a tensor stands in a model, by its name: its layer, its kind, and what pictures call it."""

from __future__ import annotations

from typing import NamedTuple

from octavo.graph.names import split_layer


class TensorName(NamedTuple):
    """The layer of a tensor, None where it is in none, and its kind: its name without layer and "weight"."""

    layer: int | None
    kind: str


def place(name: str) -> TensorName:
    """ "blk.3.ffn_down.weight" is Place(3, "ffn_down"), "output.weight" is Place(None, "output")."""
    layer, within = split_layer(name)
    return TensorName(layer, within.removesuffix(".weight"))


FLOW = (
    "token_embd", "attn_norm", "attn_qkv", "attn_q", "attn_k", "attn_v", "attn_output", "post_attention_norm",
    "ffn_norm", "ffn_gate_inp", "ffn_gate", "ffn_up", "ffn_down", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
    "ffn_gate_shexp", "ffn_up_shexp", "ffn_down_shexp", "post_ffw_norm", "output_norm", "output",
)
"""Kinds of tensors in the order in which data goes through them."""


def in_flow(kind: str) -> int:
    """Where a kind stands in that order; others come before the output."""
    return FLOW.index(kind) if kind in FLOW else FLOW.index("output_norm")


def label(text: str, most: int = 24) -> str:
    """A name as pictures show it: plain ASCII, which every font has, and not too long."""
    plain = "".join(c if " " <= c <= "~" else "?" for c in text)
    return plain if len(plain) <= most else plain[: most - 3] + "..."
