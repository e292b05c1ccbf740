"""Fused ops: compositions of the op set that a backend may run as one kernel.

The reference backend defines each as that composition. A backend names the ones that it has kernels for in
`Backend.fusions`; `graph.lower` then puts them in the place of the plain ops.
"""

from __future__ import annotations

from typing import Any

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import OPS, apply, op, require


@op
def mul_mat_concat(x: Node, *weights: Node) -> tuple[Shape, DType]:
    """x [T, K], weights [N_i, K] -> [T, sum N_i]: products of one activation with several weights, side by side."""
    require(bool(weights), "mul_mat_concat", "needs a weight", x)
    widths = [OPS["mul_mat"](w, x)[0][1] for w in weights]
    return (x.shape[0], sum(n for n in widths if isinstance(n, int))), "f32"


@op
def mul_mat_concat_add(x: Node, *weights_and_biases: Node) -> tuple[Shape, DType]:
    """mul_mat_concat(x, *weights) with a bias [N_i] added to each part: weights first, then as many biases."""
    count = len(weights_and_biases) // 2
    weights, biases = weights_and_biases[:count], weights_and_biases[count:]
    shape, dtype = OPS["mul_mat_concat"](x, *weights)
    fits = [w.shape[:1] for w in weights] == [b.shape for b in biases]
    require(fits, "mul_mat_concat_add", "biases are a row of each product", x, *weights_and_biases)
    return shape, dtype


@op
def mul_mat_add(weight: Node, x: Node, *terms: Node) -> tuple[Shape, DType]:
    """mul_mat(weight, x) + a bias [N] and/or a residual [T, N], added in the order given."""
    shape, dtype = OPS["mul_mat"](weight, x)
    fits = all(t.shape in (shape, shape[-1:]) for t in terms)
    require(fits, "mul_mat_add", "terms have the product's shape or are a row of it", weight, x, *terms)
    return shape, dtype


@op
def mul_mat_id_concat(weight: Node, x: Node, ids: Node, *others: Node) -> tuple[Shape, DType]:
    """mul_mat_id of one activation with several weights [E, N_i, K], side by side: [T, k, sum N_i]."""
    shapes = [OPS["mul_mat_id"](w, x, ids)[0] for w in (weight, *others)]
    return (*shapes[0][:-1], sum(s[-1] for s in shapes if isinstance(s[-1], int))), "f32"


@op
def mul_mat_id_gated(
    weight: Node, gate: Node, up: Node, ids: Node, *biases: Node, gating: str, **numbers: Any
) -> tuple[Shape, DType]:
    """mul_mat_id(weight, GATING(gate, up), ids), which takes `numbers`; `biases` are rows that `add_rows` adds to gate
    and to up before, or nothing."""
    require(len(biases) in (0, 2), "mul_mat_id_gated", "biases of gate and of up, or none", *biases)
    for source, rows in zip((gate, up), biases, strict=False):
        OPS["add_rows"](source, rows, ids)
    return OPS["mul_mat_id"](weight, apply(gating, gate, up, **numbers), ids)


@op
def soft_max_top_k(x: Node, *, k: int) -> tuple[Shape, DType]:
    """top_k(soft_max(x))."""
    return OPS["top_k"](x, k=k)


@op
def sum_experts(
    x: Node, logits: Node, ids: Node, *term: Node, normalized: bool, biased: bool = False
) -> tuple[Shape, DType]:
    """x [T, k, N], logits [T, E], ids int [T, k] -> [T, N]: weighted_sum of x by gather(soft_max(logits), ids).

    normalized  these shares are `normalize`d, as a soft-max of gathered logits is
    biased      the first of `term` is rows that `add_rows` adds to x before
    term        added to the sum, [T, N], or nothing
    """
    if biased:
        rows, *term = term  # type: ignore[assignment]
        OPS["add_rows"](x, rows, ids)
    shape, dtype = OPS["weighted_sum"](x, apply("gather", logits, ids))
    require(all(t.shape == shape for t in term) and len(term) < 2, "sum_experts", "the term has its shape", x, *term)
    return shape, dtype


@op
def rope_set_rows(
    q: Node, k: Node, v: Node, k_cache: Node, v_cache: Node, positions: Node, rows: Node, freqs: Node, *norms: Node,
    scale: float, interleaved: bool, eps: float = 0.0,
) -> tuple[Shape, DType]:
    """q [T, H, D] normed and turned; on the way k, normed and turned, and v are written to the caches.

    `norms` is empty, or the weights of q's and of k's RMS norm.
    """
    require(len(norms) in (0, 2), "rope_set_rows", "norms of q and of k, or none", *norms)
    for source, weight in zip((q, k), norms, strict=False):
        OPS["rms_norm"](source, weight, eps=eps)
    for source, cache in ((k, k_cache), (v, v_cache)):
        OPS["set_rows"](cache, source, rows)
    OPS["rope"](k, positions, freqs, scale=scale, interleaved=interleaved)
    return OPS["rope"](q, positions, freqs, scale=scale, interleaved=interleaved)
