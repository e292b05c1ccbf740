"""What binding needs besides a node: the device, and memory and weights that the calls of a plan share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import torch

from octavo.backends.gpu.device.torch_device import GpuTarget
from octavo.backends.gpu.launch.arguments import Matrix, Q8Activation, SplitK, matrix
from octavo.backends.gpu.launch.call import Launch
from octavo.backends.gpu.launch.device_values import Activation
from octavo.backends.gpu.matmul.w8a8.gemm_arguments import Workspace
from octavo.backends.gpu.weights.device_weights import FloatWeight, QuantWeight, joined, joined_floats
from octavo.backends.gpu.weights.row_scales import RowWeight, joined_rows
from octavo.graph.node import Attention

Weight = QuantWeight | FloatWeight | RowWeight
JOINED: dict[type, Callable[[Any], Weight]] = {QuantWeight: joined, FloatWeight: joined_floats, RowWeight: joined_rows}


def _kind(w: Weight) -> tuple[Any, int, bool]:
    """What weights have in common that can be joined."""
    factors = isinstance(w, QuantWeight) and "factors" in w.parts
    return w.data.dtype if isinstance(w, FloatWeight) else w.layout, w.k, factors


@dataclass
class Context:
    """The device, and what calls of a plan have in common.

    deterministic  each token's results are to the bit those that it has alone, whatever else is in the step
    attention      what prompts are multiplied as
    wanted         what is made of activations: "plain", which are codes for few tokens and float16 for many, and
                   "ordered", where there is that
    copies         products of the step copy weights to shared memory, as far as is known
    communicator   a `GpuCommunicator`, if there are several ranks
    """

    target: GpuTarget
    deterministic: bool = False
    attention: Attention = "exact"
    scratch: dict[Any, torch.Tensor] = field(default_factory=dict)
    together: dict[tuple[int, ...], Weight] = field(default_factory=dict)
    side_by_side: dict[tuple[int, ...], tuple[torch.Tensor, ...]] = field(default_factory=dict)
    workspaces: dict[tuple[int, ...], Workspace] = field(default_factory=dict)
    contents: dict[str, torch.Tensor] = field(default_factory=dict)
    wanted: frozenset[str] = frozenset({"plain", "ordered"})
    copies: bool = True
    communicator: Any = None
    asked: list[tuple[str, Any, bool]] | None = None

    def begin_plan(self) -> Context:
        """The same memory for another plan, which finds nothing in it."""
        return replace(self, contents={}, asked=None)

    def recording(self) -> Context:
        """The same, which keeps what `holds` is asked and answers in `asked`."""
        return replace(self, asked=[])

    def launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> Launch:
        return Launch(self.target, kernel, grid, *arguments, **options)

    def wanted_of(self, out: Activation) -> tuple[Q8Activation | Matrix | None, torch.Tensor | None]:
        """What is to be made of activations: as they are, and in the order of `w4a16.hopper_kernel`."""
        plain = out.q8_1 if out.is_q8_1 else matrix(out.halves)
        return plain if "plain" in self.wanted else None, out.ordered if "ordered" in self.wanted else None

    def shared(self, name: str, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of at least `size` values, zeros at first, whose contents last until the next call that asks for
        `name`."""
        found = self.scratch.get((name, dtype))
        if found is None or found.numel() < size:
            found = self.scratch[name, dtype] = torch.zeros(size, dtype=dtype, device=self.target.device)
        return found[:size]

    def holds(self, name: str, value: torch.Tensor) -> bool:
        """Whether a node of the plan bound before has left what is made of `value` in shared memory.

        The node that is being bound does so otherwise.
        """
        same = self.contents.get(name) is value
        self.contents[name] = value
        if self.asked is not None:
            self.asked.append((name, value, same))
        return same

    def counters(self, size: int) -> torch.Tensor:
        """At least `size` int32 zeros; who counts with them leaves zeros behind."""
        found = self.scratch.get("counters")
        if found is None or found.numel() < size:
            found = self.scratch["counters"] = torch.zeros(size, dtype=torch.int32, device=self.target.device)
        return found

    def split_k(self, tiles: int, size: int, programs: int) -> SplitK | None:
        """Memory for `programs` that share each of `tiles` tiles of `size` float32; None for one program."""
        if programs == 1:
            return None
        return SplitK(self.shared("partial sums", tiles * size * programs, torch.float32), self.counters(tiles))

    def workspace(self, m: int, n: int, k: int) -> Workspace:
        """What products of this size, one after the other, have in common; it does not move once it is used."""
        return self.workspaces.setdefault((m, n, k), Workspace())

    def joined_rows(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows [N_i] side by side; they are kept, as they tell these from others."""
        key = tuple(map(id, rows))
        if key not in self.side_by_side:
            self.side_by_side[key] = *rows, torch.cat(list(rows))
        return self.side_by_side[key][-1]

    def joined(self, weights: Sequence[Weight]) -> list[Weight]:
        """The weights in order, neighbours of one layout joined to one."""
        out: list[Weight] = []
        for _, run in groupby(weights, _kind):
            group = list(run)
            if len(group) == 1:
                out += group
                continue
            key = tuple(id(w) for w in group)
            if key not in self.together:
                self.together[key] = JOINED[type(group[0])](group)
            out.append(self.together[key])
        return out
