"""The op set: each op's inputs, its result's shape, and in words what it computes.

A function here infers the shape of a result (and refuses inputs that do not fit); the arithmetic of the same name is in
`backends/reference/ops.py`, which defines it. T is the number of tokens in the step, K the inputs and N the outputs of
a product, H heads of D values, E experts of which a token uses k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from octavo.errors import GraphError
from octavo.formats.activation import STATIC
from octavo.graph.node import ACTIVATIONS, DType, Node, Shape

Infer = Callable[..., tuple[Shape, DType]]

OPS: dict[str, Infer] = {}
VIEWS = frozenset({"reshape", "columns", "after"})
"""Ops that compute nothing: their result is their first input, seen otherwise."""
IN_PLACE = frozenset({"set_rows", "adjust", "mask"})
"""Ops that change their first input; what reads it as it was comes before them in a graph."""
ALIASES = VIEWS | IN_PLACE
"""Ops whose result lies in the memory of their first input."""


def op(infer: Infer) -> Infer:
    OPS[infer.__name__] = infer
    return infer


def apply(
    name: str, *inputs: Node, out: DType | None = None, static_scale: float | None = None, label: str = "", **attrs: Any
) -> Node:
    """The node of op `name` on `inputs`; with `out`, its float32 result quantized to that activation format.

    static_scale  of formats that are given a scale

    Raises GraphError where the shapes do not fit.
    """
    shape, dtype = OPS[name](*inputs, **attrs)
    if out is not None:
        fits = dtype == "f32" and out in ACTIVATIONS and name not in VIEWS
        require(fits, name, f"only f32 results can be quantized, not {dtype} to {out}", *inputs)
        dtype = out
    if out is not None or name == "quantize":
        fits = (dtype in STATIC.values()) == (static_scale is not None)
        require(fits, name, f"{dtype} with the scale {static_scale}", *inputs)
    if static_scale is not None:
        attrs["static_scale"] = static_scale
    return Node(name, inputs, shape, dtype, MappingProxyType(attrs), label)


def require(ok: bool, name: str, rule: str, *nodes: Node) -> None:
    """Raise GraphError, naming the op and the shapes of `nodes`, unless `ok`."""
    if not ok:
        found = ", ".join(f"{n.name or n.op} {list(n.shape)}" for n in nodes)
        raise GraphError(f"{name}: {rule}; got {found}")


def _product(shape: Shape) -> int:
    """Values in a shape of numbers only."""
    return math.prod(d for d in shape if isinstance(d, int))


@op
def get_rows(table: Node, rows: Node) -> tuple[Shape, DType]:
    """table [V, K], rows int [T] -> [T, K]: the rows of a table that `rows` names."""
    require(len(table.shape) == 2 and len(rows.shape) == 1, "get_rows", "needs a matrix and row numbers", table, rows)
    return (rows.shape[0], table.shape[1]), "f32"


@op
def rms_norm(x: Node, weight: Node, *, eps: float) -> tuple[Shape, DType]:
    """x [..., K], weight [K] -> x / sqrt(mean(x^2) + eps) * weight, over the last axis."""
    require(weight.shape == x.shape[-1:], "rms_norm", "the weight is as long as the last axis", x, weight)
    return x.shape, "f32"


@op
def layer_norm(x: Node, weight: Node, *bias: Node, eps: float) -> tuple[Shape, DType]:
    """x [..., K], weight and, if any, bias [K] -> (x - mean(x)) / sqrt(var(x) + eps) * weight + bias.

    Over the last axis; var(x) is the mean of (x - mean(x))^2 (arXiv 1607.06450).
    """
    fits = len(bias) <= 1 and all(p.shape == x.shape[-1:] for p in (weight, *bias))
    require(fits, "layer_norm", "the weight and at most one bias are as long as the last axis", x, weight, *bias)
    return x.shape, "f32"


@op
def keep_largest(x: Node, *, spread: float) -> tuple[Shape, DType]:
    """max(0, x - mean(x) - spread * std(x)) over the last axis, where std(x)^2 is the mean of (x - mean(x))^2.

    Of values that are distributed normally as large a part stays as lies over `spread` standard deviations.
    """
    return x.shape, "f32"


@op
def as_large_as(x: Node, like: Node, *, least: float) -> tuple[Shape, DType]:
    """x [T, S, D], like [T, D] -> [T, S, D]: x[t, s] * sqrt(mean(like[t]^2) / max(mean(x[t, s]^2), least))."""
    fits = len(x.shape) == 3 and like.shape == (x.shape[0], x.shape[2])
    require(fits, "as_large_as", "x [T, S, D], like [T, D]", x, like)
    return x.shape, "f32"


@op
def mul_mat(weight: Node, x: Node) -> tuple[Shape, DType]:
    """weight [N, K], x [T, K] -> [T, N]: x @ weight.T."""
    require(
        len(weight.shape) == 2 and len(x.shape) == 2 and weight.shape[1] == x.shape[1],
        "mul_mat", "weight [N, K] and x [T, K] share K", weight, x,
    )
    return (x.shape[0], weight.shape[0]), "f32"


@op
def mul_mat_id(weight: Node, x: Node, ids: Node) -> tuple[Shape, DType]:
    """weight [E, N, K], x [T, K] or [T, k, K], ids [T, k] -> [T, k, N]: each token's product with its k experts."""
    require(
        len(weight.shape) == 3 and x.shape[-1] == weight.shape[2] and x.shape[:-1] in (ids.shape[:1], ids.shape),
        "mul_mat_id", "weight [E, N, K], x [T, K] or [T, k, K], ids [T, k]", weight, x, ids,
    )
    return (*ids.shape, weight.shape[1]), "f32"


@op
def lora(x: Node, rows: Node, starts: Node, table: Node, y: Node, *, part: int | None = None) -> tuple[Shape, DType]:
    """x [T, K], rows int [T], starts int [S + 1], a table [S, R, K, N...] of adapters, y [T, N] -> y + B A x [T, N].

    Adapter s is of the tokens rows[starts[s]] to rows[starts[s + 1] - 1], which go up; others are y alone. The
    table has factors A [r, K] and B [N, r] for several products, r up to R; y is number `part` of these, or all of them
    side by side.
    """
    slots, _, k, *sizes = table.shape
    widths = [int(n) for n in (sizes if part is None else sizes[part : part + 1])]
    fits = table.op == "adapters" and len(x.shape) == len(y.shape) == 2 and x.shape[1] == k
    fits = fits and rows.shape == x.shape[:1] == y.shape[:1] and starts.shape == (int(slots) + 1,)
    require(fits and y.shape[1] == sum(widths), "lora", "x [T, K], a table's adapters and y [T, N]", x, table, y)
    return y.shape, "f32"


@op
def rope(x: Node, positions: Node, freqs: Node, *, scale: float, interleaved: bool) -> tuple[Shape, DType]:
    """x [T, H, D], positions int [T], freqs [R/2] -> [T, H, D]: the first R values of each head turned, in pairs.

    Pair i turns by positions * freqs[i] radians and is multiplied by `scale`; its two values are 2i and 2i+1
    (`interleaved`) or i and i + R/2. Values from R on are kept.
    """
    half = freqs.shape[0]
    require(
        len(x.shape) == 3 and isinstance(half, int) and isinstance(x.shape[2], int) and 2 * half <= x.shape[2],
        "rope", "x is [T, H, D], and at most D values are rotated", x, freqs,
    )
    return x.shape, "f32"


@op
def slice_heads(x: Node, *, start: int, size: int) -> tuple[Shape, DType]:
    """x [T, H, D] -> [T, H, size]: each head's values from `start` on."""
    dim = x.shape[-1]
    inside = len(x.shape) == 3 and isinstance(dim, int) and 0 <= start < start + size <= dim
    require(inside, "slice_heads", f"{start} to {start + size} lie inside heads of x [T, H, D]", x)
    return (*x.shape[:2], size), "f32"


@op
def join_heads(a: Node, b: Node) -> tuple[Shape, DType]:
    """a [T, H, A], b [T, H, B] -> [T, H, A + B]: each head's values of a, then those of b."""
    require(len(a.shape) == len(b.shape) == 3 and a.shape[:2] == b.shape[:2], "join_heads", "of the same T and H", a, b)
    return (*a.shape[:2], _product(a.shape[2:]) + _product(b.shape[2:])), "f32"


@op
def set_rows(cache: Node, values: Node, rows: Node) -> tuple[Shape, DType]:
    """cache [rows, H, D], values [T, H, D], rows int [T] -> the cache, with row rows[t] set to values[t]."""
    require(cache.shape[1:] == values.shape[1:], "set_rows", "values fit the cache", cache, values)
    return cache.shape, cache.dtype


@op
def attention(
    q: Node, k: Node, v: Node, *where: Node, scale: float, page_size: int,
    window: int = 0, cap: float = 0.0, reach: int = 0, value_dim: int = 0, alibi: float = 0.0,
) -> tuple[Shape, DType]:
    """q [T, H, D], caches k and v [rows, Hkv, D] -> [T, H * D]: softmax(q k^T * scale) v, causal, by sequence.

    The other inputs are positions int [T], starts, pages int [sequences, pages], and sinks if there are any.
    The first D sequences own a query each, the s-th of the rest those from starts[s] to starts[s + 1]; so starts[0] is
    D = len(pages) + 1 - len(starts). Position p of a sequence s of all lies in cache row
    pages[s, p // page_size] * page_size + p % page_size, and the query at position p sees positions 0 to p.
    Head h reads the cache's head h // (H / Hkv).

    window  positions that a query sees, the last ones up to its own; 0: all of them. Below 0: positions are cut into
            chunks of -window, and a query sees those of its own chunk up to itself
    cap     a score x = q k^T * scale becomes cap * tanh(x / cap); 0: it stays
    sinks   [H] or none: a score more for each head, which takes a share of the softmax and has no value
    reach   positions after its own that a query sees too, as far as its sequence goes, all of which is in the step
    alibi   what the slopes are made of by which scores fall with the distance, see `octavo.graph.alibi`; 0: they don't

    v may be k itself: the first `value_dim` values of a key (0: all) are its value; the result is [T, H * value_dim].
    """
    _, _, _, *sinks = where
    require(min(cap, reach) >= 0 and not (window < 0 < reach), "attention", "cap, reach >= 0; chunks have no reach", q)
    alone = not (cap or sinks or value_dim or k is v)
    require(not alibi or alone, "attention", "ALiBi excludes a cap, sinks, and values shared with keys", q)
    require(len(q.shape) == len(k.shape) == 3, "attention", "q is [T, H, D], k and v are [rows, Hkv, D]", q, k, v)
    heads, dim = q.shape[1:]
    kv_heads = k.shape[1]
    assert isinstance(heads, int)
    assert isinstance(dim, int)
    assert isinstance(kv_heads, int)
    require(k.shape == v.shape and k.shape[2] == dim, "attention", "q, k and v share the head size", q, k, v)
    require(len(sinks) <= 1 and all(s.shape == (heads,) for s in sinks), "attention", "one sink per head", q, *sinks)
    require(heads % kv_heads == 0, "attention", "query heads are a multiple of K/V heads", q, k)
    part = not value_dim or (k is v and 0 < value_dim <= dim)
    require(part, "attention", f"shared values are the first {value_dim} of each key", q, k, v)
    return (q.shape[0], heads * (value_dim or dim)), "f32"


@op
def add_rows(x: Node, rows: Node, ids: Node) -> tuple[Shape, DType]:
    """x [T, k, N], rows [E * N], ids int [T, k] -> [T, k, N]: x plus the ids[t, j]-th of the rows of N, end to end."""
    fits = len(x.shape) == 3 and x.shape[:2] == ids.shape and len(rows.shape) == 1
    require(fits and _product(rows.shape) % _product(x.shape[2:]) == 0, "add_rows", "rows are x's size", x, rows)
    return x.shape, "f32"


@op
def soft_max(x: Node) -> tuple[Shape, DType]:
    """exp(x) / sum(exp(x)) over the last axis."""
    return x.shape, "f32"


@op
def top_k(x: Node, *, k: int) -> tuple[Shape, DType]:
    """x [T, E] -> int [T, k]: places of the k largest values of each row, largest first, of equals the lower."""
    width = x.shape[-1]
    require(isinstance(width, int) and 1 <= k <= width, "top_k", f"k = {k} is from 1 to the row's length", x)
    return (*x.shape[:-1], k), "i32"


@op
def keep_groups(x: Node, *, groups: int, used: int, best: int) -> tuple[Shape, DType]:
    """x [T, E] in `groups` of neighbours -> x, with -inf in all but the `used` groups whose `best` values sum highest.

    Of equal groups the first is kept. best is 1 or 2 (arXiv 2412.19437).
    """
    width = x.shape[-1]
    fits = len(x.shape) == 2 and isinstance(width, int) and 1 <= used <= groups and width % groups == 0
    size = _product(x.shape[1:]) // groups
    require(fits and 1 <= best <= min(2, size), "keep_groups", "groups have at least `best` values and divide a row", x)
    return x.shape, "f32"


@op
def numbers(positions: Node, *, count: int) -> tuple[Shape, DType]:
    """positions int [T] -> int [T, count]: 0 to count - 1 for each token."""
    require(len(positions.shape) == 1 and count > 0, "numbers", f"positions [T], count > 0, not {count}", positions)
    return (positions.shape[0], count), "i32"


@op
def gather(x: Node, ids: Node) -> tuple[Shape, DType]:
    """x [T, E], ids int [T, k] -> [T, k]: x[t, ids[t, j]]; of x [E], which is one row for all tokens, x[ids[t, j]]."""
    fits = len(ids.shape) == 2 and (len(x.shape) == 1 or x.shape[:-1] == ids.shape[:1])
    require(fits, "gather", "one row per token, or one for all", x, ids)
    return ids.shape, "f32"


@op
def sparse_shares(x: Node, ids: Node, *, tolerance: float) -> tuple[Shape, DType]:
    """x [T, E], ids int [T, k] of each row's largest values -> [T, k]: the share of each in a softmax of those near it.

    Near x[i] are the x[j], but those of earlier ids, with x[i] - x[j] <= tolerance * max(x[i], |x[j]|) (SparseMixer-v2,
    arXiv 2409.12136).
    """
    fits = len(x.shape) == len(ids.shape) == 2 and x.shape[:1] == ids.shape[:1]
    require(fits and tolerance >= 0, "sparse_shares", "x [T, E], ids [T, k], a tolerance of at least 0", x, ids)
    return ids.shape, "f32"


@op
def take_columns(x: Node, order: Node) -> tuple[Shape, DType]:
    """x [T, K], order [K] of whole numbers as floats -> [T, K]: x[t, order[k]]."""
    fits = len(x.shape) == 2 and order.shape == x.shape[1:]
    require(fits, "take_columns", "x is [T, K], and the order has K numbers", x, order)
    return x.shape, "f32"


@op
def take_columns_id(x: Node, orders: Node, ids: Node) -> tuple[Shape, DType]:
    """x [T, K], orders [E * K], K of whole numbers as floats for each expert, ids int [T, k] -> [T, k, K]: each token's
    columns as each of its experts has them."""
    fits = len(x.shape) == len(ids.shape) == 2 and ids.shape[:1] == x.shape[:1] and len(orders.shape) == 1
    whole = fits and isinstance(x.shape[1], int) and orders.shape[0] % x.shape[1] == 0
    require(whole, "take_columns_id", "x [T, K], orders [E * K], ids [T, k]", x, orders, ids)
    return (*ids.shape, x.shape[1]), "f32"


@op
def normalize(x: Node) -> tuple[Shape, DType]:
    """x / sum(x) over the last axis."""
    return x.shape, "f32"


@op
def weighted_sum(x: Node, weights: Node) -> tuple[Shape, DType]:
    """x [T, k, N], weights [T, k] -> [T, N]: the sum of a token's k vectors, each times its weight.

    With weights [T, M, k] M such sums, [T, M, N].
    """
    fits = len(x.shape) == 3 and len(weights.shape) in (2, 3) and x.shape[:2] == (weights.shape[0], weights.shape[-1])
    require(fits, "weighted_sum", "one weight per vector", x, weights)
    return (*weights.shape[:-1], x.shape[2]), "f32"


@op
def quantize(x: Node, *largest: Node, format: DType) -> tuple[Shape, DType]:
    """x in an activation format: the numbers that a product with quantized activations sees.

    Formats that are given a scale have it in `static_scale`, see `apply`. Of rows [..., K] that have values elsewhere
    too `largest` [..., 1] is the largest magnitude, which a format with a scale for each row takes that from.
    """
    fits = len(largest) <= 1 and all(n.shape == (*x.shape[:-1], 1) for n in largest)
    require(fits and (not largest or format in STATIC), "quantize", "a magnitude for each row", x, *largest)
    return x.shape, format


@op
def copy(x: Node) -> tuple[Shape, DType]:
    """x, in the memory of another backend."""
    return x.shape, x.dtype


@op
def reshape(x: Node, *, shape: Shape) -> tuple[Shape, DType]:
    """The same values with their last axes split or joined."""
    same = x.shape[:1] == shape[:1] and _product(x.shape[1:]) == _product(shape[1:])
    require(same, "reshape", f"{list(shape)} has as many values per token", x)
    return shape, x.dtype


@op
def columns(x: Node, *, start: int, size: int) -> tuple[Shape, DType]:
    """x [..., N] -> [..., size]: columns from `start` on."""
    width = x.shape[-1]
    inside = len(x.shape) > 1 and isinstance(width, int) and 0 <= start < start + size <= width
    require(inside, "columns", f"{start} to {start + size} lie inside x [T, N]", x)
    return (*x.shape[:-1], size), x.dtype


@op
def after(x: Node, event: Node) -> tuple[Shape, DType]:
    """x itself, once `event` has run: for what an op changes besides making its result."""
    return x.shape, x.dtype
