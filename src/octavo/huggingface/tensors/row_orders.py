"""Columns that a checkpoint has sorted by group (activation order, `g_idx`): no product has to gather its input.

The down projection of a feed-forward reads silu(gate) * up, value by value. Its column i belongs to value order[i]. If
row order[i] of gate and up becomes their i-th row, the activation comes out in the order of the columns. The same
numbers are multiplied, and added in the same order.

The matrix of keys and values in latent attention reads a short vector, whose values are reordered in the same way: in
the rows that make it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field

import numpy as np

from octavo.formats import QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import AnyArray
from octavo.io.gguf import LazyTensor
from octavo.models.shared.lora import Factored
from octavo.models.shared.weights import require_order

_DOWN = re.compile(r"(blk\.\d+\.ffn_)down(|_shexp|_exps)\.order")
_HEADS = re.compile(r"(blk\.\d+\.attn_)v_b\.order")
Tensors = MutableMapping[str, LazyTensor]
Orders = dict[str, dict[int | None, LazyTensor]]
"""Orders of weights by GGUF name: of each expert by its number, or of all there is by None."""


@dataclass
class Moved:
    """What was reordered of weights that lie otherwise in their checkpoint: row or column order[i] is the i-th now."""

    rows: Orders = field(default_factory=dict)
    columns: Orders = field(default_factory=dict)

    def follow(self, name: str, part: Factored) -> Factored:
        """What an adapter adds to the weight `name`, in the same order."""
        rows, columns = self.rows.get(name, {}), self.columns.get(name, {})
        if rows:
            part = part.with_rows(lambda b: _in_orders(b, rows, axis=-2))
        return part.with_columns(lambda a: _in_orders(a, columns, axis=-1)) if columns else part


def _in_orders(tensor: LazyTensor, orders: dict[int | None, LazyTensor], axis: int) -> LazyTensor:
    """A factor's rows (-2) or columns (-1) in an order for all, or in one for each expert [E, ...] that has one."""
    size = tensor.shape[axis]

    def load() -> QTensor:
        wanted = np.tile(np.arange(size), (tensor.shape[0] if len(tensor.shape) == 3 else 1, 1))
        for number, order in orders.items():
            places = _places(order)
            wanted[slice(None) if number is None else number, : len(places)] = places
        values = dequantize(tensor.load())
        stacked = values.reshape(len(wanted), *values.shape[-2:])
        taken = np.take_along_axis(stacked, np.expand_dims(wanted, -1 if axis == -2 else -2), axis)
        return quantize_reference(taken.reshape(values.shape), by_name("F32"), tensor.name)

    return LazyTensor(tensor.name, by_name("F32"), tensor.shape, load)


def absorb_orders(single: Tensors, experts: MutableMapping[str, dict[int, LazyTensor]], moved: Moved) -> None:
    """Reorder the rows of gate and up by the order of the down projection, which is dropped then.

    An order stays where gate and up are not there, or are of another size. Where it is that of some experts only, the
    others get one that changes nothing.

    single   tensors by GGUF name
    experts  tensors of experts by GGUF name and number
    moved    gets what is reordered
    """
    _absorb_single(single, moved)
    _absorb_experts(experts, moved)
    for name, orders in experts.items():
        if name.endswith(".order"):
            some = next(iter(orders.values()))
            for number in experts[name.removesuffix("order") + "weight"]:
                orders.setdefault(number, _natural(some))


def _absorb_single(single: Tensors, moved: Moved) -> None:
    for name, stem, kind in _down_orders(single):
        gate_up = [part for part in (f"{stem}gate{kind}", f"{stem}up{kind}") if f"{part}.weight" in single]
        if f"{stem}up{kind}" not in gate_up or not _fit([single[f"{part}.weight"] for part in gate_up], single[name]):
            continue
        order = single.pop(name)
        moved.columns[f"{stem}down{kind}.weight"] = {None: order}
        moved.rows |= {f"{part}.weight": {None: order} for part in gate_up}
        for full in (f"{part}.{end}" for part in gate_up for end in ("weight", "bias")):
            if full in single:
                single[full] = _reordered(single[full], order)


def _absorb_experts(experts: MutableMapping[str, dict[int, LazyTensor]], moved: Moved) -> None:
    for name, stem, kind in _down_orders(experts):
        gate_up = [part for part in (f"{stem}gate{kind}.weight", f"{stem}up{kind}.weight") if part in experts]
        for number, order in list(experts[name].items()):
            if not gate_up or not _fit([experts[part].get(number) for part in gate_up], order):
                continue
            del experts[name][number]
            moved.columns.setdefault(f"{stem}down{kind}.weight", {})[number] = order
            for part in gate_up:
                moved.rows.setdefault(part, {})[number] = order
                experts[part][number] = _reordered(experts[part][number], order)
        if not experts[name]:
            del experts[name]


def absorb_orders_of_heads(single: Tensors, halves: MutableMapping[str, tuple[LazyTensor, int]], moved: Moved) -> None:
    """Drop the orders of matrices that `halves` has for keys and values of heads. The rows that make the vector which
    these read, and its norm, are reordered.

    halves  tensors that two are made of, by each one's GGUF name
    moved   gets what is reordered
    """
    for found in [match for match in map(_HEADS.fullmatch, halves) if match]:
        order, _ = halves.pop(found[0])
        moved.columns[f"{found[1]}v_b.weight"] = {None: order}
        moved.rows |= {f"{found[1]}{part}.weight": {None: order} for part in ("k_b", "kv_a_mqa")}
        for name in (f"{found[1]}kv_a_mqa.weight", f"{found[1]}kv_a_norm.weight"):
            if name in single:
                single[name] = _reordered(single[name], order)


def _places(order: LazyTensor) -> AnyArray:
    """An order's numbers. Raises ModelError where they do not name each of its places once."""
    return require_order(dequantize(order.load()), order.name).astype(np.intp)


def _natural(like: LazyTensor) -> LazyTensor:
    """An order that changes nothing, for an expert whose columns lie as the activation does."""
    order = np.arange(like.shape[0], dtype="<f4").view(np.uint8)
    return LazyTensor(like.name, like.format, like.shape, lambda: QTensor(like.format, like.shape, order, like.name))


def _down_orders(names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Orders of down projections: the name, what it begins with, and the kind of feed-forward."""
    return [(match[0], match[1], match[2]) for match in map(_DOWN.fullmatch, names) if match]


def _fit(tensors: Iterable[LazyTensor | None], order: LazyTensor) -> bool:
    return all(tensor is not None and tensor.shape[0] == order.shape[0] for tensor in tensors)


def _reordered(tensor: LazyTensor, order: LazyTensor) -> LazyTensor:
    """Row order[i] as the i-th, those beyond the order as they are; of a bias, values."""

    def load() -> QTensor:
        stored, rows = tensor.load(), np.arange(tensor.shape[0])
        rows[: order.shape[0]] = _places(order)
        data = stored.data.reshape(tensor.shape[0], -1)[rows]
        return QTensor(stored.format, stored.shape, data.reshape(stored.data.shape), stored.name)

    return LazyTensor(tensor.name, tensor.format, tensor.shape, load)
