"""Columns that a checkpoint has sorted by group (activation order): taken into the rows of what makes the activation.

A feed-forward's down projection reads silu(gate) * up, or so, value by value. Where its column i goes with value
order[i], rows order[i] of gate and up make that value the i-th, and no activation is gathered. Nothing is computed in
another way: the same numbers are multiplied and added in the same order.

What makes keys and values of heads reads a short vector, whose values may be in any order as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping

import numpy as np

from octavo.formats import QTensor, dequantize
from octavo.io.gguf import LazyTensor

_DOWN = re.compile(r"(blk\.\d+\.ffn_)down(|_shexp|_exps)\.order")
_HEADS = re.compile(r"(blk\.\d+\.attn_)v_b\.order")
Tensors = MutableMapping[str, LazyTensor]


def absorb_orders(single: Tensors, experts: MutableMapping[str, dict[int, LazyTensor]]) -> None:
    """Drop the orders of down projections, by GGUF name, whose gate and up are there to be reordered. Of other weights
    that some experts have orders for all experts get one.

    experts  tensors of experts by GGUF name and number
    """
    for name, stem, kind in _found(single):
        makers = [part for part in (f"{stem}gate{kind}", f"{stem}up{kind}") if f"{part}.weight" in single]
        if f"{stem}up{kind}" in makers and _fit([single[f"{part}.weight"] for part in makers], single[name]):
            order = single.pop(name)
            for full in (f"{part}.{end}" for part in makers for end in ("weight", "bias")):
                if full in single:
                    single[full] = _reordered(single[full], order)
    for name, stem, kind in _found(experts):
        makers = [part for part in (f"{stem}gate{kind}.weight", f"{stem}up{kind}.weight") if part in experts]
        for number, order in list(experts[name].items()):
            rows = [experts[part].get(number) for part in makers]
            if makers and _fit(rows, order):
                del experts[name][number]
                for part, tensor in zip(makers, rows, strict=True):
                    assert tensor is not None
                    experts[part][number] = _reordered(tensor, order)
        if not experts[name]:
            del experts[name]
    for name in (name for name in experts if name.endswith(".order")):
        order = next(iter(experts[name].values()))
        for number in experts[name.removesuffix("order") + "weight"]:
            experts[name].setdefault(number, _natural(order))


def absorb_orders_of_heads(single: Tensors, halves: MutableMapping[str, tuple[LazyTensor, int]]) -> None:
    """Drop the orders of matrices that `halves` has for keys and values of heads. The rows that make the vector which
    these read, and its norm, are reordered.

    halves  tensors that two are made of, by each one's GGUF name
    """
    for found in [match for match in map(_HEADS.fullmatch, halves) if match]:
        order, _ = halves.pop(found[0])
        for name in (f"{found[1]}kv_a_mqa.weight", f"{found[1]}kv_a_norm.weight"):
            if name in single:
                single[name] = _reordered(single[name], order)


def _natural(like: LazyTensor) -> LazyTensor:
    """An order that changes nothing, for an expert whose columns lie as the activation does."""
    order = np.arange(like.shape[0], dtype="<f4").view(np.uint8)
    return LazyTensor(like.name, like.format, like.shape, lambda: QTensor(like.format, like.shape, order, like.name))


def _found(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Orders of down projections: the name, what it begins with, and the kind of feed-forward."""
    return [(match[0], match[1], match[2]) for match in map(_DOWN.fullmatch, names) if match]


def _fit(tensors: Iterable[LazyTensor | None], order: LazyTensor) -> bool:
    return all(tensor is not None and tensor.shape[0] == order.shape[0] for tensor in tensors)


def _reordered(tensor: LazyTensor, order: LazyTensor) -> LazyTensor:
    """Row order[i] as the i-th, those beyond the order as they are; of a bias, values."""

    def load() -> QTensor:
        stored, rows = tensor.load(), np.arange(tensor.shape[0])
        rows[: order.shape[0]] = dequantize(order.load())
        data = stored.data.reshape(tensor.shape[0], -1)[rows]
        return QTensor(stored.format, stored.shape, data.reshape(stored.data.shape), stored.name)

    return LazyTensor(tensor.name, tensor.format, tensor.shape, load)
