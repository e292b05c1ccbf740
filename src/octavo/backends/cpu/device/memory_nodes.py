"""Weights in the memory of the nodes (NUMA) that read them: the thread that fills a part of one says where it is to be.

Threads take their ranges of a weight's rows by the node that they run on, the first node's the first rows (see
`jit.task_driver`). The system gives new memory, of its page cache too, as the thread that first touches it wishes.
"""

from __future__ import annotations

import ctypes
import platform
import sys

from octavo.io.cpu_topology import memory_nodes, processors

SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
PREFERRED = 1
"""MPOL_PREFERRED of linux/mempolicy.h: of this node while it has memory, else of others."""


def prefer_node_of(start: int, nbytes: int) -> int | None:
    """Have memory that this thread touches first lie in the node that reads byte `start` of a weight of `nbytes`.

    Returns the node, or None where there is one only, or the system does not let it be chosen.
    """
    nodes, number = list(memory_nodes(processors())), SET_MEMPOLICY.get(platform.machine())
    if len(nodes) < 2 or sys.platform != "linux" or number is None:
        return None
    node = nodes[start * len(nodes) // max(nbytes, 1)]
    mask = (ctypes.c_ulong * (node // 64 + 1))()
    mask[node // 64] = 1 << node % 64
    failed = ctypes.CDLL(None).syscall(number, PREFERRED, mask, ctypes.c_ulong(64 * len(mask) + 1))
    return None if failed else node
