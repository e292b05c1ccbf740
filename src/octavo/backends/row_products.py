"""What all backends' products of weights that have a scale for each row have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.formats import QTensor
from octavo.graph.node import Node


def supports(node: Node, computed: Callable[[QTensor], bool]) -> tuple[bool, str]:
    """Whether a node is a product, with at most a bias and a residual, of weights that are `computed`; or why not."""
    weights = [i.tensor for i in node.inputs if i.op == "weight" and len(i.shape) > 1]
    if node.op not in ("mul_mat", "mul_mat_concat", "mul_mat_add") or not all(map(computed, weights)):
        return False, f"no kernel for {node.op} of {weights[0].format.name}"
    ranks = [len(term.shape) for term in node.inputs[2:]] if node.op == "mul_mat_add" else [1]
    return ranks in ([1], [2], [1, 2]), f"terms of {ranks} dimensions added to a product (allowed: a bias, a residual)"


def bias_and_residual(terms: Sequence[Any]) -> tuple[Any, Any]:
    """The terms with one dimension and with two, each None if there is none."""
    return tuple(next((t for t in terms if t.ndim == n), None) for n in (1, 2))  # type: ignore[return-value]
