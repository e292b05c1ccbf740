"""Collectives of backends whose values are NumPy arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from octavo.errors import BackendError
from octavo.formats.part import places, size_of
from octavo.formats.spec import AnyArray
from octavo.graph.communicator import Communicator
from octavo.graph.node import Node
from octavo.graph.protocol import Call


def collective_call(node: Node, inputs: Sequence[AnyArray], out: AnyArray, communicator: Communicator | None) -> Call:
    """The call of a node of `graph.collective_ops`. Raises BackendError without a communicator."""
    if communicator is None:
        raise BackendError(f"{node.op} needs other ranks, and this backend was made without a communicator")
    (x, *terms), ranks = inputs, communicator
    if node.op == "all_gather":
        return _gather_call(node, x, out, ranks)

    def reduce() -> None:
        np.copyto(out, x)
        ranks.all_reduce(out, "sum" if node.op == "all_reduce" else "max")
        for term in terms:
            np.add(out, term, out)

    return reduce


def _gather_call(node: Node, x: AnyArray, out: AnyArray, communicator: Communicator) -> Call:
    """Rows of all tokens and of the axes before the one that is gathered; those of smaller parts are filled up."""
    axis, parts = node.attrs["axis"], node.attrs["parts"]
    rows, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    sent = np.zeros((rows, max(map(size_of, parts)) * inner), x.dtype)
    found = np.empty((len(parts), *sent.shape), x.dtype)
    own = sent[:, : x.shape[axis] * inner].reshape(x.shape)
    whole = out.reshape(rows, prod(out.shape[axis:]))  # there may be no rows

    def gather() -> None:
        np.copyto(own, x)
        communicator.all_gather(sent, found)
        for rank, there, here in places(parts, inner):
            whole[:, there] = found[rank, :, here]

    return gather
