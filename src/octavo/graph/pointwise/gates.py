# mypy: allow-untyped-defs
"""Gated linear units (arXiv 2002.05202): an activation of the gate times the other half."""

from octavo.graph.pointwise.expression import m, pointwise


@pointwise(fold="gated")
def swiglu(gate, up):
    """silu(gate) * up, with silu(x) = x / (1 + exp(-x))."""
    return m.silu(gate) * up


@pointwise(fold="gated")
def geglu(gate, up):
    """gelu(gate) * up, with `gelu` of `activations`."""
    return m.gelu(gate) * up


@pointwise(fold="elementwise", numbers={"slope": 1.702, "limit": 0.5}, allowed=lambda slope, limit: limit > 0)
def clamped_swiglu(gate, up, slope, limit):
    """g / (1 + exp(-slope * g)) * (u + 1), where g is gate up to `limit`, and u is up from -`limit` to `limit`."""
    g, u = m.minimum(gate, limit), m.maximum(m.minimum(up, limit), -limit)
    return g / (1 + m.exp(-slope * g)) * (u + 1)
