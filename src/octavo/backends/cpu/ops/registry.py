"""Which function binds an op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.graph.node import Node
from octavo.graph.pointwise import POINTWISE
from octavo.jit.program import KernelCall

Bind = Callable[[Node, Sequence[Any], Any, PlanMemory], list[KernelCall]]
"""The calls for a node, with its inputs and its output in memory, and what the calls of its plan have in common."""

BINDERS: dict[str, Bind] = {}


def binds(*names: str) -> Callable[[Bind], Bind]:
    """Registers a function as the binder of the ops with these names."""

    def register(bind: Bind) -> Bind:
        BINDERS.update(dict.fromkeys(names, bind))
        return bind

    return register


def binder_of(op: str) -> Bind | None:
    """What binds an op; None for one that has no kernel."""
    return BINDERS.get("pointwise" if op in POINTWISE else op)
