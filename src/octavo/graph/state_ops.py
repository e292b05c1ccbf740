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
    """x [T, C], taps [K * F * C] -> [T, F * C]: each channel's last K values, its own last, times taps, summed.

    Taps are [K, F, C]: F filters of each channel, the first ones of all channels side by side, and then the next ones.
    Plus bias [F * C], if any, the input after `where`. With `silu`, y / (1 + exp(-y)) of the sum y.
    state [slots, K - 1, C] has the last K - 1 values before a step.
    """
    kept, channels = state.shape[1:] if len(state.shape) == 3 else (0, 0)
    assert isinstance(kept, int)
    assert isinstance(channels, int)
    (count,) = taps.shape
    assert isinstance(count, int)
    whole = kept > 0 and channels > 0 and count > 0 and count % ((kept + 1) * channels) == 0
    fits = whole and x.shape[1:] == (channels,)
    require(fits, "causal_conv", "x [T, C], taps [K * F * C], state [slots, K - 1, C]", x, taps, state)
    made, bias = count // (kept + 1), where[3:]
    plain = len(bias) <= 1 and all(b.shape == (made,) for b in bias)
    require(plain, "causal_conv", "at most one bias, with a value per sum", x, *bias)
    return (x.shape[0], made), "f32"


@op
def gated_delta_rule(
    q: Node, k: Node, v: Node, alpha: Node, beta: Node, ssm_a: Node, dt_bias: Node, state: Node, *where: Node,
    tiled: bool,
) -> tuple[Shape, DType]:
    """q and k [T, Hk, K], v [T, H, V], alpha and beta [T, H], ssm_a and dt_bias [H] -> [T, H * V] (arXiv 2412.06464).

    Or alpha [T, H * K] and dt_bias [H * K]: a decay for each row of a head's matrix (Kimi's, arXiv 2510.26692).

    Each head has a matrix S [K, V], its part of state [slots, H, K, V]. For one token after the other

        S = exp(ssm_a * softplus(alpha + dt_bias)) * S      a number for each head, or for each of its rows
        S = S + k (sigmoid(beta) * (v - S^T k))^T
        y = S^T q

    Head h has the q and k of head h // (H / Hk), or with `tiled` of head h % Hk.
    """
    require(len(q.shape) == len(v.shape) == 3 and q.shape == k.shape, "gated_delta_rule", "q and k match", q, k, v)
    (tokens, heads, size), (key_heads, keys) = v.shape, k.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    assert isinstance(key_heads, int)
    require(heads % key_heads == 0, "gated_delta_rule", "value heads are a multiple of key heads", k, v)
    assert isinstance(keys, int)
    fits = beta.shape == (tokens, heads) and ssm_a.shape == (heads,)
    require(fits, "gated_delta_rule", "one value per head", beta, ssm_a)
    decays = alpha.shape in ((tokens, heads), (tokens, heads * keys)) and dt_bias.shape == alpha.shape[1:]
    require(decays, "gated_delta_rule", "decays per head, or per row of a head", alpha, dt_bias, ssm_a)
    require(state.shape[1:] == (heads, keys, size), "gated_delta_rule", "state [slots, H, K, V]", state, k, v)
    return (tokens, heads * size), "f32"


@op
def selective_scan(
    x: Node, b: Node, c: Node, dt: Node, ssm_a: Node, dt_bias: Node, ssm_d: Node, state: Node, *where: Node
) -> tuple[Shape, DType]:
    """x [T, H, P], b and c [T, G, N], dt [T, H], ssm_a, dt_bias, ssm_d [H] -> [T, H * P] (Mamba-2, arXiv 2405.21060).

    Each head has a matrix S [N, P], its part of state [slots, H, N, P]. For one token after the other

        step = softplus(dt + dt_bias)
        S = exp(ssm_a * step) * S + b (step * x)^T
        y = S^T c + ssm_d * x

    Head h has the b and c of group h // (H / G).
    """
    name = "selective_scan"
    require(len(x.shape) == len(b.shape) == 3 and b.shape == c.shape, name, "b and c match", x, b, c)
    (tokens, heads, size), (groups, keys) = x.shape, b.shape[1:]
    assert isinstance(heads, int)
    assert isinstance(size, int)
    assert isinstance(groups, int)
    require(heads % groups == 0, name, "heads are a multiple of groups", x, b)
    fits = dt.shape == (tokens, heads) and ssm_a.shape == dt_bias.shape == ssm_d.shape == (heads,)
    require(fits, name, "one value per head", dt, ssm_a, dt_bias, ssm_d)
    require(state.shape[1:] == (heads, keys, size), name, "state [slots, H, N, P]", state, x, b)
    return (tokens, heads * size), "f32"


@op
def channel_scan(
    x: Node, b: Node, c: Node, dt: Node, ssm_a: Node, ssm_d: Node, state: Node, *where: Node
) -> tuple[Shape, DType]:
    """x and dt [T, C], b and c [T, N], ssm_a [N * C], ssm_d [C] -> [T, C] (Mamba's selective scan, arXiv 2312.00752).

    Each channel has N numbers s, its column of state [slots, N, C], which decay at ssm_a [N, C] of their own. For one
    token after the other

        step = softplus(dt)
        s = exp(ssm_a * step) * s + b * (step * x)
        y = s . c + ssm_d * x
    """
    name = "channel_scan"
    kept = state.shape[1:]
    require(len(kept) == 2 and b.shape == c.shape == (x.shape[0], *kept[:1]), name, "b and c match", x, b, c, state)
    keys, channels = kept
    assert isinstance(keys, int)
    assert isinstance(channels, int)
    fits = x.shape == dt.shape and x.shape[1:] == ssm_d.shape == (channels,) and ssm_a.shape == (keys * channels,)
    require(fits, name, "x and dt [T, C], ssm_a [N * C], ssm_d [C], state [slots, N, C]", x, dt, ssm_a, ssm_d, state)
    return x.shape, "f32"


@op
def wkv7(
    r: Node, w: Node, k: Node, v: Node, a: Node, vectors: Node, state: Node, *where: Node, eps: float | None
) -> tuple[Shape, DType]:
    """What RWKV-7's time mixing does behind its projections: r, w, k, v and a [T, H * N] -> [T, H * N].

    Vectors [7 * H * N] are, one after the other, w0, a0, k_k, k_a, r_k, and the weight and the bias of a norm. With two
    more inputs behind `where`, `first` and `gate` [T, H * N], an eighth is v0. Each head has a matrix S [N, N], its
    part of state [slots, H, N, N], and N numbers of everything else. For one token after the other

        decay = exp(-exp(-1/2) * sigmoid(w + w0)),  rate = sigmoid(a + a0)
        v = v + (first - v) * sigmoid(gate + v0)    with these inputs
        u = k * k_k / max(|k * k_k|, 1e-12),  k = k * (1 + (rate - 1) * k_a)
        S = diag(decay) S - (u * rate) (S^T u)^T + k v^T
        y = layer_norm(S^T r, eps) * weight + bias + (sum of r * k * r_k) v

    The generalized delta rule of arXiv 2503.14456, with rows of keys here, where the paper has columns of them. Without
    eps there is no norm, and y has S^T r itself.
    """
    kept = state.shape[1:]
    alike = len(kept) == 3 and kept[1] == kept[2] and all(x.shape == r.shape for x in (w, k, v, a, *where[3:]))
    heads, size = kept[:2] if alike else (0, 0)
    assert isinstance(heads, int)
    assert isinstance(size, int)
    fits = alike and r.shape[1:] == (heads * size,) and len(where) in (3, 5)
    require(fits, "wkv7", "all [T, H * N], state [slots, H, N, N]", r, w, k, v, a, *where[3:], state)
    count = 7 + (len(where) > 3)
    require(vectors.shape == (count * heads * size,), "wkv7", f"{count} vectors of {heads * size}", vectors, r)
    return r.shape, "f32"


@op
def wkv6(
    r: Node, w: Node, k: Node, v: Node, vectors: Node, state: Node, *where: Node, eps: float
) -> tuple[Shape, DType]:
    """What RWKV-6's time mixing does behind its projections: r, w, k and v [T, H * N] -> [T, H * N].

    Vectors [4 * H * N] are, one after the other, w0, u, and the weight and the bias of a norm. Each head has a matrix
    S [N, N], its part of state [slots, H, N, N], and N numbers of everything else. For one token after the other

        y = layer_norm(S^T r + (sum of r * u * k) v, eps) * weight + bias
        S = diag(exp(-exp(w + w0))) S + k v^T

    With rows of keys, as in arXiv 2404.05892.
    """
    kept = state.shape[1:]
    alike = len(kept) == 3 and kept[1] == kept[2] and all(x.shape == r.shape for x in (w, k, v))
    heads, size = kept[:2] if alike else (0, 0)
    assert isinstance(heads, int)
    assert isinstance(size, int)
    fits = alike and r.shape[1:] == (heads * size,) and vectors.shape == (4 * heads * size,)
    require(fits, "wkv6", "all [T, H * N], 4 vectors, state [slots, H, N, N]", r, w, k, v, vectors, state)
    return r.shape, "f32"
