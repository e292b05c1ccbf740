"""Bound calls: a kernel with its grid and arguments, and a run of them as one captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from octavo.backends.gpu.device import Target

Grid = tuple[int, ...]


class Launch:
    """A kernel launch whose arguments are known; `warps` and `stages` are how it is compiled.

    `exact`: products and sums are rounded one by one, as they are written, and not fused. A kernel that has a constant
    PDL may be launched before the one before it ends, if the device can.
    """

    def __init__(
        self, target: Target, kernel: Any, grid: Grid, *arguments: Any, warps: int = 4, stages: int = 3,
        exact: bool = False, **constants: Any,
    ) -> None:  # fmt: skip
        self._run = kernel[(*grid, *(1,) * (3 - len(grid)))]
        self._arguments = arguments
        how = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": not exact}
        self._options = {**constants, **how}
        if "PDL" in kernel.arg_names:
            self._options["PDL"] = target.pdl
            if target.pdl:
                self._options["launch_pdl"] = True

    def __call__(self) -> None:
        self._run(*self._arguments, **self._options)


class Calls:
    """Calls one after the other."""

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        self.calls = tuple(calls)

    def __call__(self) -> None:
        for call in self.calls:
            call()


class Captured(Calls):
    """Calls that run one by one the first time, which compiles them, and from the second on as one captured graph."""

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        super().__init__(calls)
        self._runs = 0
        self._graph: Any = None

    def __call__(self) -> None:
        self._runs += 1
        if self._runs == 1:
            super().__call__()
            return
        if self._graph is None:
            self._graph = self._capture()
        self._graph.replay()

    def _capture(self) -> Any:
        import torch

        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            super().__call__()
        return graph
