"""Bytes of the device's memory: what is free, and what a part of a model takes before any of it is loaded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from octavo.backends.gpu.attention.prefill_hopper_launch import most_code_bytes, most_half_bytes
from octavo.backends.gpu.device.torch_device import GpuTarget
from octavo.backends.gpu.matmul import dispatch
from octavo.backends.gpu.matmul.experts.expert_shapes import ExpertsGroupedShape, ExpertsHopperShape
from octavo.backends.gpu.matmul.mmq.mmq_shapes import INT8_MAX_TOKENS
from octavo.backends.gpu.weights.layout import layout_of, padded, scale_stride
from octavo.formats import QTensor
from octavo.formats.cache_formats import CACHE_FORMATS
from octavo.graph.node import Attention, Node, Sizes, bind, kept_bytes

RESERVE = 512 << 20
"""For compiled kernels, captured graphs and the vendor's library."""


def free(target: GpuTarget) -> int:
    """Bytes that a model may take. Kernels that are interpreted have all that they want."""
    if target.kind == "cpu":
        return 1 << 62
    import torch

    card = target.device
    unused = torch.cuda.memory_reserved(card) - torch.cuda.memory_allocated(card)
    return int(torch.cuda.mem_get_info(card)[0]) + unused


def needs(nodes: Sequence[Node], limits: Sizes, arch: str, attention: Attention = "exact") -> int:
    """Bytes of the weights, caches and states that `nodes` read, and of what their kernels need beside their values."""
    leaves = {id(i): i for n in nodes for i in n.inputs if i.is_leaf}.values()
    weights = {id(leaf.tensor): leaf.tensor for leaf in leaves if leaf.op == "weight"}.values()
    total = sum(map(weight_bytes, weights))
    total += kept_bytes(nodes, limits)
    total += _half_scales(nodes, limits, arch) + _sorted_rows(nodes, limits, arch)
    total += most_half_bytes(nodes, limits, arch)
    total += most_code_bytes(nodes, limits) if attention != "exact" else 0
    total += _rotated_queries(nodes, limits)
    return total + max(_joining(nodes), _unpacked(nodes, limits)) + RESERVE


def _half_scales(nodes: Sequence[Node], limits: Sizes, arch: str) -> int:
    """Float16 scales of the weights that become float16 in registers in a step of many tokens."""
    products = (n for n in nodes if n.op.startswith("mul_mat"))
    rows = {id(i.tensor): (i.tensor, math.prod(bind(n.shape[:-1], limits))) for n in products for i in n.inputs
            if i.op == "weight" and len(i.shape) > 1}
    total = 0
    for tensor, most in rows.values():
        if _become_float16(tensor, most, arch):
            layout = layout_of(tensor.format, "f16")
            *experts, n, k = tensor.shape
            all_rows = scale_stride(math.prod(experts) * n)
            total += padded(k) // layout.group * all_rows * 2 * (2 if layout.has_min else 1)
            total += 4 * all_rows if layout.folds_rows else 0
    return total


def _become_float16(tensor: QTensor, rows: int, arch: str) -> bool:
    """Whether weights become float16 in registers in a step of `rows`; of experts, of pairs."""
    if tensor.format.is_float or tensor.format.per_row:
        return False
    layout, (*experts, n, k) = layout_of(tensor.format, "f16"), tensor.shape
    if experts:
        shape = dispatch.experts(layout, n, padded(k), rows / experts[0], arch)
        return isinstance(shape, ExpertsHopperShape | ExpertsGroupedShape)
    return dispatch.w4a16(layout, n, padded(k), min(rows, 1024), arch) is not None


def _sorted_rows(nodes: Iterable[Node], limits: Sizes, arch: str) -> int:
    """Float16 rows of pairs of a token and an expert, sorted, of the largest such products: of those that are gated,
    beside them, and of the others."""
    most = {True: 0, False: 0}
    for node in (n for n in nodes if n.op.startswith("mul_mat_id")):
        tensor, pairs = node.inputs[0].tensor, math.prod(bind(node.shape[:-1], limits))
        if _become_float16(tensor, pairs, arch):
            gated = node.op == "mul_mat_id_gated"
            most[gated] = max(most[gated], 2 * pairs * padded(tensor.shape[-1]))
    return sum(most.values())


def _rotated_queries(nodes: Iterable[Node], limits: Sizes) -> int:
    """Queries of the largest attention to rotated keys that are values too, which are rotated before its kernel."""
    attentions = (n for n in nodes if n.op == "attention" and n.inputs[1] is n.inputs[2])
    rotated = (n.inputs[0] for n in attentions if CACHE_FORMATS[n.inputs[1].dtype].rotated)
    return max((4 * math.prod(bind(q.shape, limits)) for q in rotated), default=0)


def weight_bytes(tensor: QTensor) -> int:
    """Bytes of a weight as it lies on the device, if float16 holds its scales."""
    if len(tensor.shape) == 1:
        return 4 * tensor.size
    if tensor.format.is_float or tensor.format.per_row:
        return tensor.nbytes
    k = tensor.shape[-1]
    return tensor.size // k * layout_of(tensor.format, "f16").row_bytes(padded(k))


def _joining(nodes: Iterable[Node]) -> int:
    """While weights are joined, the largest of those products is there twice."""
    concats = (n.inputs for n in nodes if n.op in ("mul_mat_concat", "mul_mat_id_concat"))
    return max((sum(weight_bytes(i.tensor) for i in inputs if i.op == "weight") for inputs in concats), default=0)


def _unpacked(nodes: Iterable[Node], limits: Sizes) -> int:
    """As much of the largest weight as becomes float16 at a time, where a step may have more tokens than are multiplied
    with its codes."""
    many = (n for n in nodes if n.op.startswith("mul_mat") and bind(n.shape[:1], limits)[0] > INT8_MAX_TOKENS)
    return min(2 * dispatch.SLAB_VALUES, max((sum(map(_half_bytes, n.inputs)) for n in many), default=0))


def _half_bytes(leaf: Node) -> int:
    """Bytes of a quantized matrix as float16; 0 of anything else."""
    if leaf.op != "weight" or len(leaf.shape) != 2 or leaf.tensor.format.is_float or leaf.tensor.format.per_row:
        return 0
    n, k = leaf.tensor.shape
    return 2 * n * padded(k)
