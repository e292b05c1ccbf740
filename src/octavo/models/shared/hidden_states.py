"""Hidden states: what a model's step gives beside logits, for a head to guess further tokens from."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.errors import ModelError
from octavo.graph.builder import GraphBuilder
from octavo.graph.node import Node

Tap = Callable[[GraphBuilder, Sequence[Node], Node], Node]
"""Makes [T, width] of what each layer is given and last what the last one gives, and of what is behind the last norm,
all [T, n_embd]."""


def tapped(g: GraphBuilder, logits: Node, tap: Tap, path: str) -> Node:
    """The hidden states of all tokens of a step whose `logits` a graph makes.

    Raises ModelError where the last layer is not followed by a norm of the rows whose logits are wanted.
    """
    norm = before_output(logits)
    last = norm.inputs[0] if norm.op in ("rms_norm", "layer_norm") else norm
    if last.op != "get_rows" or last.inputs[1] is not g.outputs or not g.residuals:
        raise ModelError("gives no hidden states that a head could read", file=path)
    x = last.inputs[0]
    normed = Node(norm.op, (x, *norm.inputs[1:]), x.shape, norm.dtype, norm.attrs, norm.name) if norm is not last else x
    return tap(g, g.residuals, normed)


def before_output(logits: Node) -> Node:
    """What the output matrix is multiplied with."""
    node = logits
    while node.op != "mul_mat":
        node = node.inputs[0]
    return node.inputs[1]
