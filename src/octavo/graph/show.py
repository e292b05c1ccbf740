"""A schedule as text: its splits, and for each node its inputs, its shape and where its value lies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from octavo.graph.node import Node
from octavo.graph.ops import ALIASES
from octavo.graph.protocol import Backend
from octavo.graph.schedule import Schedule, root


def rows(schedule: Schedule, backends: Sequence[Backend]) -> Iterator[dict[str, Any]]:
    """A row for each node in the order in which they run.

    Keys: number, split, backend, op, name, inputs (numbers of nodes, or names of leaves), shape, dtype, and offset and
    nbytes of the buffer, or `lies_in`, the number (or name) of the value whose memory it shares.
    """
    numbers: dict[int, int] = {}
    for number, node in enumerate(n for s in schedule.splits for n in s.nodes):
        numbers[id(node)] = number
    for i, split in enumerate(schedule.splits):
        for node in split.nodes:
            row: dict[str, Any] = {
                "number": numbers[id(node)],
                "split": i,
                "backend": name_of(backends, split.backend),
                "op": node.op,
                "name": node.name,
                "inputs": [_label(n, numbers) for n in node.inputs],
                "shape": list(node.shape),
                "dtype": node.dtype,
            }
            if node.op in ALIASES:
                row["lies_in"] = _label(root(node), numbers)
            else:
                buffer = schedule.buffers[id(node)]
                row |= {"offset": buffer.offset, "nbytes": buffer.nbytes}
            yield row


def name_of(backends: Sequence[Backend], number: int) -> str:
    """The name of a backend, with a number where others have the same."""
    names = [backend.name for backend in backends]
    name = names[number]
    return f"{name} {names[:number].count(name)}" if names.count(name) > 1 else name


def text(schedule: Schedule, backends: Sequence[Backend]) -> Iterator[str]:
    """Lines for people: a header for each split, a line for each node, a sum at the end."""
    split = -1
    count = 0
    for row in rows(schedule, backends):
        if row["split"] != split:
            split = row["split"]
            nodes = len(schedule.splits[split].nodes)
            yield f"split {split} on {row['backend']}, {nodes} nodes"
        place = f"in {row['lies_in']}" if "lies_in" in row else f"@{row['offset']:,} +{row['nbytes']:,}"
        shape = " x ".join(str(d) for d in row["shape"])
        name = f"  # {row['name']}" if row["name"] else ""
        yield f"  %{row['number']:<4} = {row['op']}({', '.join(row['inputs'])}) : {row['dtype']}[{shape}] {place}{name}"
        count += 1
    total = sum(b.nbytes for b in schedule.buffers.values())
    splits = f"{len(schedule.splits)} split{'' if len(schedule.splits) == 1 else 's'}"
    yield (
        f"{count} nodes, {splits}, {len(schedule.buffers)} buffers: {total:,} bytes of values in "
        f"{sum(schedule.memory):,} bytes of memory"
    )
    yield from (f"fallback: {reason}" for reason in schedule.fallbacks)


def _label(node: Node, numbers: dict[int, int]) -> str:
    if not node.is_leaf:
        return f"%{numbers[id(node)]}"
    return f"{node.name}<{node.tensor.format.name}>" if node.op == "weight" else node.name
