"""Ops on several streams of a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.backends.cpu.launch.calls import rows_call, stride
from octavo.backends.cpu.launch.shared import Shared
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.pointwise import streams_kernel as streams
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall


@binds("predict_streams")
def _predict(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, coefs = inputs
    _, count, k = x.shape
    return [rows_call(
        streams.predict_streams_kernel(), out, x, coefs=coefs, coefs_stride=stride(coefs), streams=count, k=k
    )]


@binds("correct_streams")
def _correct(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, first, coefs = inputs
    _, count, k = x.shape
    return [rows_call(
        streams.correct_streams_kernel(), out, x, first=first, first_stride=stride(first),
        coefs=coefs, coefs_stride=stride(coefs), streams=count, k=k,
    )]


@binds("add_to_others")
def _add_to_others(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, row = inputs
    _, count, k = x.shape
    return [rows_call(streams.add_to_others_kernel(), out, x, row=row, row_stride=stride(row), streams=count, k=k)]


@binds("as_large_as")
def _as_large_as(node: Node, inputs: Sequence[Any], out: AnyArray, shared: Shared) -> list[KernelCall]:
    x, like = inputs
    _, count, k = x.shape
    return [rows_call(
        streams.as_large_as_kernel(), out, x, like=like, like_stride=stride(like), streams=count, k=k,
        least=float(node.attrs["least"]),
    )]
