"""Ops that keep a state of each sequence, of a fixed size however long the sequence is, which they read and write.

`where` is positions int [T], starts, and slots int [sequences]. As for `attention`, the first D = len(slots) + 1 -
len(starts) sequences own a token each, and the s-th of the rest those from starts[s] to starts[s + 1]. A sequence's
state lies in its slot. One whose first token here is at position 0 begins with zeros, whatever lies there.
"""

from __future__ import annotations

from octavo.graph.node import DType, Node, Shape
from octavo.graph.ops import op, require


@op
def causal_conv(x: Node, taps: Node, state: Node, *where: Node, silu: bool = False) -> tuple[Shape, DType]:
    """x [T, C], taps [K * C] -> [T, C]: each channel's last K values, its own last, times taps [K, C], summed.

    Plus bias [C], if any, the input after `where`. With `silu`, y / (1 + exp(-y)) of the sum y.
    state [slots, K - 1, C] has the last K - 1 values before a step.
    """
    kept, channels = state.shape[1:] if len(state.shape) == 3 else (0, 0)
    assert isinstance(kept, int)
    assert isinstance(channels, int)
    fits = kept > 0 and x.shape[1:] == (channels,) and taps.shape == ((kept + 1) * channels,)
    require(fits, "causal_conv", "x [T, C], taps [K * C], state [slots, K - 1, C]", x, taps, state)
    bias = where[3:]
    plain = len(bias) <= 1 and all(b.shape == (channels,) for b in bias)
    require(plain, "causal_conv", "at most one bias, of a number a channel", x, *bias)
    return x.shape, "f32"


@op
def gated_delta_rule(
    q: Node, k: Node, v: Node, alpha: Node, beta: Node, rates: Node, bias: Node, state: Node, *where: Node, tiled: bool
) -> tuple[Shape, DType]:
    """q and k [T, Hk, K], v [T, H, V], alpha and beta [T, H], rates and bias [H] -> [T, H * V] (arXiv 2412.06464).

    Or alpha [T, H * K] and bias [H * K]: a decay for each row of a head's matrix (Kimi's, arXiv 2510.26692).

    Each head has a matrix S [K, V], its part of state [slots, H, K, V]. For one token after the other

        S = exp(rate * softplus(alpha + bias)) * S      a number for each head, or for each of its rows
        S = S + k (sigmoid(beta) * (v - S^T k))^T
        y = S^T q

    Head h has the q and k of head h // (H / Hk), or with `tiled` of head h % Hk.
    """
    require(len(q.shape) == len(v.shape) == 3 and q.shape == k.shape, "gated_delta_rule", "q and k alike", q, k, v)
    (tokens, heads, size), (key_heads, keys) = v.shape, k.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    assert isinstance(key_heads, int)
    require(heads % key_heads == 0, "gated_delta_rule", "heads of values are a multiple of those of keys", k, v)
    assert isinstance(keys, int)
    fits = beta.shape == (tokens, heads) and rates.shape == (heads,)
    require(fits, "gated_delta_rule", "a number for each head", beta, rates)
    decays = alpha.shape in ((tokens, heads), (tokens, heads * keys)) and bias.shape == alpha.shape[1:]
    require(decays, "gated_delta_rule", "decays of each head, or of each of its rows", alpha, bias, rates)
    require(state.shape[1:] == (heads, keys, size), "gated_delta_rule", "state [slots, H, K, V]", state, k, v)
    return (tokens, heads * size), "f32"


@op
def selective_scan(
    x: Node, b: Node, c: Node, dt: Node, rates: Node, bias: Node, skip: Node, state: Node, *where: Node
) -> tuple[Shape, DType]:
    """x [T, H, P], b and c [T, G, N], dt [T, H], rates, bias and skip [H] -> [T, H * P] (Mamba-2, arXiv 2405.21060).

    Each head has a matrix S [N, P], its part of state [slots, H, N, P]. For one token after the other

        step = softplus(dt + bias)
        S = exp(rate * step) * S + b (step * x)^T
        y = S^T c + skip * x

    Head h has the b and c of group h // (H / G).
    """
    name = "selective_scan"
    require(len(x.shape) == len(b.shape) == 3 and b.shape == c.shape, name, "b and c alike", x, b, c)
    (tokens, heads, size), (groups, keys) = x.shape, b.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    assert isinstance(groups, int)
    require(heads % groups == 0, name, "heads are a multiple of groups", x, b)
    fits = dt.shape == (tokens, heads) and rates.shape == bias.shape == skip.shape == (heads,)
    require(fits, name, "a number for each head", dt, rates, bias, skip)
    require(state.shape[1:] == (heads, keys, size), name, "state [slots, H, N, P]", state, x, b)
    return (tokens, heads * size), "f32"


@op
def channel_scan(
    x: Node, b: Node, c: Node, dt: Node, rates: Node, skip: Node, state: Node, *where: Node
) -> tuple[Shape, DType]:
    """x and dt [T, C], b and c [T, N], rates [N * C], skip [C] -> [T, C] (Mamba's selective scan, arXiv 2312.00752).

    Each channel has N numbers s, its column of state [slots, N, C], which fade at rates [N, C] of their own. For one
    token after the other

        step = softplus(dt)
        s = exp(rates * step) * s + b * (step * x)
        y = s . c + skip * x
    """
    name = "channel_scan"
    kept = state.shape[1:]
    require(len(kept) == 2 and b.shape == c.shape == (x.shape[0], *kept[:1]), name, "b and c alike", x, b, c, state)
    keys, channels = kept
    assert isinstance(keys, int)
    assert isinstance(channels, int)
    fits = x.shape == dt.shape and x.shape[1:] == skip.shape == (channels,) and rates.shape == (keys * channels,)
    require(fits, name, "x and dt [T, C], rates [N * C], skip [C], state [slots, N, C]", x, dt, rates, skip, state)
    return x.shape, "f32"
