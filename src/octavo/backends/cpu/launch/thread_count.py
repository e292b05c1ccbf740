"""How many threads a step is worth: those of a small model wait for each other longer than they compute."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt, prod
from typing import Any

from octavo.graph.node import Node

FEW = 8
"""As many threads as there are up to this number."""

BYTES = 1 << 10
"""A thread more makes each wait 80 ns longer, in which a thread reads this much: n threads are worth n^2 times as much
work between two waits."""

TOKENS = 8
"""Tokens for which a product takes as long again as for one: as much as reading its weights takes."""


def work_of(node: Node, inputs: Sequence[Any], out: Any) -> int:
    """Bytes of weights and of caches that a node reads, more for many tokens; the cache as if it were full."""
    if node.op == "attention":
        return sum(x.nbytes for x in inputs[1:3])
    if not node.op.startswith("mul_mat"):
        return 0
    used = 0
    for leaf in node.inputs:
        if leaf.op == "weight" and len(leaf.shape) > 1:
            experts = leaf.tensor.shape[0] if node.op.startswith("mul_mat_id") else 1
            used += leaf.tensor.nbytes * min(prod(out.shape[:-1]), experts) // experts
    return used * (TOKENS + len(out)) // TOKENS


def threads_for(work: int, waits: int, threads: int) -> int:
    """As many of `threads` as shorten steps of that much work and that many waits."""
    return min(threads, max(FEW, isqrt(work // max(waits, 1) // BYTES)))
