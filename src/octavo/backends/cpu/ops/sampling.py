"""What the choice of a token needs of logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from octavo.backends.cpu.launch.calls import rows_call, stride
from octavo.backends.cpu.launch.plan_memory import PlanMemory
from octavo.backends.cpu.ops.registry import binds
from octavo.backends.cpu.sampling import logits_kernel as choice
from octavo.formats.spec import AnyArray
from octavo.graph.node import Node
from octavo.jit.program import KernelCall


@binds("top_candidates")
def _top_candidates(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    (x,) = inputs
    (tokens, n), k = x.shape, node.attrs["k"]
    parts = -(-n // choice.PART)
    found = {
        "values": shared.memory("candidates", (tokens, parts, k), np.float32),
        "places": shared.memory("places", (tokens, parts, k), np.int32),
        "bad": shared.memory("bad", (tokens, parts), np.int32),
    }
    return [
        KernelCall(choice.candidates_kernel(k), tokens * parts, x=x, x_stride=stride(x), n=n, parts=parts, **found),
        KernelCall(
            choice.merge_candidates_kernel(k), tokens, y=out, y_stride=stride(out), parts=parts, **found
        ),
    ]


@binds("merge_candidates")
def _merge_candidates(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    firsts = np.array(node.attrs["firsts"], np.int32)
    kernel = choice.merge_ranks_kernel(node.attrs["k"])
    return [rows_call(kernel, out, inputs[0], firsts=firsts, parts=len(firsts))]


@binds("local_places")
def _local_places(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    return [KernelCall(choice.local_places_kernel(), len(out), y=out, places=inputs[0], **node.attrs)]


@binds("log_sum_exp")
def _log_sum_exp(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    return [rows_call(choice.log_sum_exp_kernel(), out, inputs[0], k=inputs[0].shape[1])]


@binds("adjust")
def _adjust(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, places, changes = inputs
    return [KernelCall(choice.adjust_kernel(), len(places), x=x, x_stride=stride(x), places=places, changes=changes)]


@binds("mask")
def _mask(node: Node, inputs: Sequence[Any], out: AnyArray, shared: PlanMemory) -> list[KernelCall]:
    x, rows, masks = inputs
    return [KernelCall(
        choice.mask_kernel(), len(rows),
        x=x, x_stride=stride(x), n=x.shape[1], rows=rows, masks=masks, masks_stride=stride(masks), words=masks.shape[1],
    )]
