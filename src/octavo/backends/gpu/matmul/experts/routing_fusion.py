"""Fewer launches around the products with experts of a few tokens.

The norm of a layer of experts, the router's product, the choice of experts and, where products with them want codes of
tokens, these are one launch; the sum of experts' outputs and the norm that the next layer begins with are another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from triton import next_power_of_2

from octavo.backends.gpu.attention.attention_tiles import exact_products
from octavo.backends.gpu.launch.arguments import Source, SplitK, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.context import Context
from octavo.backends.gpu.launch.device_values import Activation, activation_bytes, q8_1, q8_1_bytes
from octavo.backends.gpu.launch.sizes import warps_of
from octavo.backends.gpu.matmul.activations import quantize_kernel
from octavo.backends.gpu.matmul.epilogue_fusion import BoundNode
from octavo.backends.gpu.matmul.experts.routing_kernel import route_kernel, route_many_kernel, sum_experts_norm_kernel
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight
from octavo.backends.gpu.weights.layout import padded
from octavo.graph.node import Graph, Node
from octavo.graph.protocol import Call

MOST_TOKENS, MOST_SUMMED = 32, 256
"""Tokens of steps that are bound by launches; of more, programs that have a few rows of the router each read it too
often. The latter is of sums, a program a token."""
FEW_EXPERTS, MOST_OF_MANY = 64, 4
"""Experts that are chosen in the router's launch, by the last program of four tokens; more of them only for up to 4
tokens: with 8 by 128 experts, one token after the other, an H200 lost 13% of a step."""
MOST_BY_TILES = 512
"""Tokens of a router's launch whose products are by tensor cores; of more, the library's time is not its launches'."""
ROUTER_TILE, ROUTER_PARTS = (16, 32, 64), 264
"""Tokens, rows and values of K of such a tile, and programs that they are divided among."""
MOST_RANKED = 256
"""Experts that are ranked each against all."""
MOST_VALUES = 8192
"""Of a token, which programs hold in registers."""
TILE, TILE_OF_ONE = 8192, 4096
"""Values of the router's rows that a program holds, and those of one token's."""
SHARED = 4
"""Tokens that a program takes at the most."""

Again = Callable[[BoundNode, Context], BoundNode]
"""What was bound, with the calls that it has in another context."""


def fuse_routing(
    c: Context, bound: Sequence[BoundNode], graph: Graph, again: Again, contexts: Mapping[int, Context]
) -> list[BoundNode]:
    """What was bound: of nodes that one launch does, the first has it, and the others none. Nodes may have a context of
    their own, by number."""
    fused = list(bound)
    if c.deterministic:
        return fused
    users = graph.users()
    places, outputs = {id(b.node): i for i, b in enumerate(bound)}, {id(o) for o in graph.outputs}
    last = -1
    for i, b in enumerate(bound):
        readers = [places.get(id(user), -1) for user in users[id(b.node)]]
        if b.node.op == "sum_experts" and i > last and _is_summed(b, bound[i + 1 : i + 2], outputs):
            of_norm = [places.get(id(user), -1) for user in users[id(bound[i + 1].node)]]
            if min(of_norm, default=-1) < 0:
                continue
            made = contexts.get(i + 1, c)
            if not bound[i + 1].out.is_q8_1 and "plain" in made.wanted:
                continue
            last = max(of_norm)
            out, calls = _sum_and_norm(made, b, bound[i + 1])
            fused[i], fused[i + 1] = b._replace(calls=calls), bound[i + 1]._replace(calls=[])
            for at in of_norm:
                inputs = [out if value is bound[i + 1].out else value for value in bound[at].inputs]
                fused[at] = again(fused[at]._replace(inputs=inputs), contexts.get(at, c))
        elif b.node.op == "rms_norm" and (route := _route(b, bound[i + 1 : i + 4], users)) is not None:
            _fuse_route(c, fused, i, route, [at for at in readers if at >= i + route.count], again, outputs, readers)
    return fused


class _Route:
    """What follows a norm: a router's product, and the choice of experts, or None.

    count  nodes, with the norm
    """

    def __init__(self, product: BoundNode, choice: BoundNode | None, count: int) -> None:
        self.product, self.choice, self.count = product, choice, count


def _route(b: BoundNode, after: Sequence[BoundNode], users: Mapping[int, Sequence[Node]]) -> _Route | None:
    """What of the nodes `after` a norm is its router's; None where that can't be fused with it."""
    source = b.inputs[0]
    if b.node.quantizes or source.ndim != 2 or padded(source.shape[1]) > MOST_VALUES:
        return None
    x, rest, count = b.node, list(after), 1
    if rest and rest[0].node.op == "quantize" and rest[0].node.inputs[0] is x and isinstance(rest[0].out, torch.Tensor):
        x, count = rest.pop(0).node, 2  # floats as the router has them, which are not rounded here
        if len(users[id(x)]) > 1:
            return None
    if not rest or rest[0].node.op not in ("mul_mat", "mul_mat_add") or rest[0].node.inputs[1] is not x:
        return None
    weight, _, *terms = rest[0].inputs
    alone = len(terms) == 0 or (len(terms) == 1 and terms[0].ndim == 1)
    if not isinstance(weight, FloatWeight) or weight.n * weight.k > MOST_RANKED * MOST_VALUES or not alone:
        return None
    many, f32 = len(source) > MOST_TOKENS, weight.data.dtype == torch.float32
    if len(source) > MOST_BY_TILES or (many and not (f32 and count == 1)):
        return None
    reads = [u for u in users[id(b.node)] if u.op.startswith("mul_mat_id")]
    if not reads:
        return None
    product, choice = rest[0], None
    if len(rest) > 1 and rest[1].node.op in ("top_k", "soft_max_top_k") and rest[1].node.inputs[0] is product.node:
        few = len(source) <= MOST_OF_MANY or weight.n <= FEW_EXPERTS
        choice = rest[1] if weight.n <= MOST_RANKED and few and not many else None
    made = [b.out, product.out, *([choice.out] if choice else [])]
    if any(_overlap(source, value) for value in made):
        return None
    return _Route(product, choice, count + 1 + (choice is not None))


def _overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two values share memory."""
    (first, end), (start, after) = ((t.data_ptr(), t.data_ptr() + _extent(t)) for t in (a, b))
    return first < after and start < end


def _extent(x: torch.Tensor) -> int:
    """Bytes from a value's first number to after its last."""
    return (1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))) * x.element_size()


def _fuse_route(
    c: Context, fused: list[BoundNode], i: int, route: _Route, later: Sequence[int], again: Again, outputs: set[int],
    readers: Sequence[int],
) -> None:
    """Put one launch in the place of those of a norm at place i, its router, and the first quantizing of its readers
    `later`."""
    b = fused[i]
    h, codes = b.out, None
    of_codes = [at for at in later if _quantizes_tokens(fused[at])] if len(h) <= MOST_TOKENS else []
    if of_codes:
        kp = padded(h.shape[1])
        codes = q8_1(c.shared("experts", q8_1_bytes(len(h), kp, len(h)), torch.uint8), len(h), kp, len(h))
        for at in of_codes:
            fused[at] = again(fused[at], replace(c, contents={"expert codes": h}))
    kept = id(b.node) in outputs or len(readers) != 2 or not of_codes
    fused[i] = b._replace(calls=[_launch(c, b, route, h if kept else None, codes)])
    for at in range(i + 1, i + route.count):
        fused[at] = fused[at]._replace(calls=[])


def _quantizes_tokens(b: BoundNode) -> bool:
    """Whether a product with experts begins with codes of its tokens, which are in no other order."""
    weight, made = b.inputs[0], b.calls and getattr(b.calls[0], "kernel", None)
    return b.node.op in ("mul_mat_id", "mul_mat_id_concat") and isinstance(weight, QuantWeight) and (
        made is quantize_kernel)


def _launch(c: Context, b: BoundNode, route: _Route, normed: torch.Tensor | None, codes: Any) -> Call:
    x, norm = b.inputs
    weight, _, *terms = route.product.inputs
    source = Source(matrix(x), matrix(norm), float(b.node.attrs["eps"]))
    if len(x) > MOST_TOKENS:
        assert normed is not None
        return launch_many(c, source, weight, terms, route.product.out, normed)
    ids = None if route.choice is None else route.choice.out
    tokens, k = x.shape
    kp = padded(k)
    block = next_power_of_2(kp)
    rows = max(1, (TILE_OF_ONE if tokens == 1 else TILE) // block)
    sharing = min(SHARED, next_power_of_2(tokens), max(1, 2 * TILE // block))
    groups, programs = -(-tokens // sharing), -(-weight.n // rows)
    return c.launch(
        route_kernel, (programs + sharing, groups), source, weight.data, terms[0] if terms else None,
        matrix(route.product.out), ids, None if normed is None else matrix(normed), codes,
        None if ids is None else c.counters(groups), tokens, weight.n, k, kp, 1 if ids is None else ids.shape[1],
        ROWS=programs, N=rows, TOKENS=sharing, EXPERTS=next_power_of_2(weight.n), B=block, warps=warps_of(2048),
    )


def launch_many(
    c: Context, source: Source, weight: FloatWeight, terms: Sequence[torch.Tensor], logits: torch.Tensor,
    normed: torch.Tensor,
) -> Launch:
    """The router's logits and what a Source norms, of so many tokens that tensor cores pay."""
    (tokens, k), (most, rows, values) = normed.shape, ROUTER_TILE
    groups, tiles = -(-tokens // most), -(-weight.n // rows)
    parts = max(1, min(8, ROUTER_PARTS // (groups * tiles), k // values))
    sums = c.shared("partial sums", groups * tiles * parts * most * (rows + 1), torch.float32)
    return c.launch(
        route_many_kernel, (tiles * parts + most, groups), source, weight.data, terms[0] if terms else None,
        matrix(logits), matrix(normed), SplitK(sums, c.counters(groups * tiles)), tokens, weight.n, k, TILES=tiles,
        SPLITS=parts, M=most, N=rows, K=values, B=next_power_of_2(k), PRECISION=exact_products(c.target.arch),
        warps=8,
    )


def _is_summed(b: BoundNode, after: Sequence[BoundNode], outputs: set[int]) -> bool:
    """Whether the next node norms and quantizes what experts give."""
    if not after or len(b.out) > MOST_SUMMED or id(after[0].node) in outputs:
        return False
    norm = after[0]
    if norm.node.op != "rms_norm" or norm.node.inputs[0] is not b.node or not isinstance(norm.out, Activation):
        return False
    return norm.out.kp <= MOST_VALUES and norm.out.k == b.out.stride(0)


def _sum_and_norm(c: Context, b: BoundNode, norm: BoundNode) -> tuple[Activation, list[Call]]:
    """The launch for both, and the codes, which lie elsewhere than planned: where these were to lie, there may be the
    outputs of experts."""
    x, logits, ids, *term = b.inputs
    rows = term.pop(0) if b.node.attrs["biased"] else None
    (tokens, used, k), experts = x.shape, logits.shape[1]
    nbytes = activation_bytes(tokens, k, c.target.arch)
    out = replace(norm.out, raw=c.shared("normed experts", nbytes, torch.uint8))
    plain, ordered = c.wanted_of(out)
    block = next_power_of_2(out.kp)
    return out, [c.launch(
        sum_experts_norm_kernel, (tokens,), x, rows, matrix(logits), ids, matrix(term[0]) if term else None,
        matrix(b.out), norm.inputs[1], plain, ordered, experts, used, k, out.kp, float(norm.node.attrs["eps"]),
        NORMALIZED=b.node.attrs["normalized"], EXPERTS=next_power_of_2(experts), USED=next_power_of_2(used), B=block,
        warps=warps_of(block),
    )]
