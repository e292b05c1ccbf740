"""Expressions of pointwise ops as Triton's functions: `expressions.NAME_HASH`, as `Pointwise.version` has it.

The name is also how another process finds what it is to compile, and what compiled kernels are kept by.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from octavo.backends.gpu.pointwise import math
from octavo.graph.pointwise import POINTWISE


def expression_of(op: str) -> Any:
    """The function of a pointwise op."""
    return globals().get(version := POINTWISE[op].version) or __getattr__(version)


def __getattr__(version: str) -> Any:
    op = POINTWISE.get(version.rpartition("_")[0])
    if op is None or op.version != version:
        raise AttributeError(f"no expression {version}")
    function = op.rebuilt(math, tl=tl)
    function.__module__, function.__qualname__ = __name__, version
    return globals().setdefault(version, triton.jit(function))
