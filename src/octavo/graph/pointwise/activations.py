# mypy: allow-untyped-defs
"""Activation functions."""

from octavo.graph.pointwise.expression import m, pointwise


@pointwise(fold="elementwise")
def gelu(x):
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) (arXiv 1606.08415)."""
    return m.gelu(x)


@pointwise(fold="elementwise")
def gelu_erf(x):
    """x / 2 * (1 + erf(x / sqrt(2))), the GELU that `gelu` is close to (arXiv 1606.08415)."""
    return m.gelu_erf(x)


@pointwise(fold="keep")
def sigmoid(x):
    """1 / (1 + exp(-x))."""
    return 1 / (1 + m.exp(-x))


@pointwise(fold="elementwise", numbers={"cap": 0.5})
def soft_cap(x, cap):
    """cap * tanh(x / cap)."""
    return cap * m.tanh(x / cap)


@pointwise(fold="elementwise", numbers={"low": -0.5, "high": 0.25}, allowed=lambda low, high: low <= high)
def clamp(x, low, high):
    """max(low, min(high, x)); a ReLU where they are 0 and infinity."""
    return m.maximum(m.minimum(x, high), low)


@pointwise(fold="elementwise")
def relu_squared(x):
    """max(0, x)^2 (arXiv 2109.08668)."""
    return m.where(x < 0, 0.0, x * x)


@pointwise(fold="elementwise", numbers={"positive": 0.8, "negative": 0.7, "beta": 0.5, "least": -1e-6})
def xielu(x, positive, negative, beta, least):
    """beta * x + positive * x^2 over 0, beta * x + negative * (exp(min(x, least)) - 1 - x) elsewhere (2411.13010)."""
    below = negative * (m.expm1(m.minimum(x, least)) - x)
    return m.where(x > 0, positive * x * x + beta * x, below + beta * x)
