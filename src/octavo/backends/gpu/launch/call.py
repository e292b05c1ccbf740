"""Bound calls: a kernel with its grid and arguments, and a run of them as one captured graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, cached_property, partial
from typing import Any, Self

from octavo.backends.gpu.compile.warm_up import PendingKernels
from octavo.backends.gpu.device.driver import prefer_shared_memory
from octavo.backends.gpu.device.torch_device import GpuTarget, here_card, on_card
from octavo.backends.gpu.launch.arguments import Constant, for_triton

Grid = tuple[int, ...]
CARVEOUTS = ((32 << 10, -1), (112 << 10, 75))
"""Bytes of shared memory that the kernels of a step need at the most, and the percentage of the L1 that all of them ask
for as such, the carveout: 196 KiB on an H200; -1 leaves it to the driver."""


class Kind:
    """What a kernel is compiled for, hashed once."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Kind) and self._hash == other._hash and self._parts == other._parts)


class Launch:
    """A kernel launch whose arguments are known, see `arguments`; `warps` and `stages` are how it is compiled.

    `exact`: products and sums are rounded one by one, as they are written, and not fused. A kernel that has a constant
    PDL may be launched before the one before it ends, if the device can.
    """

    def __init__(
        self, target: GpuTarget, kernel: Any, grid: Grid, *arguments: Any, warps: int = 4, stages: int = 3,
        exact: bool = False, **constants: Any,
    ) -> None:
        self.kernel, self._grid = kernel, (*grid, *(1,) * (3 - len(grid)))
        self.made: Any = None
        self._sets_carveout = target.arch == "sm_90"
        self.arguments = for_triton(arguments)
        how = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": not exact}
        self._options = {**dict(zip(constants, for_triton(tuple(constants.values())), strict=True)), **how}
        if "PDL" in kernel.arg_names:
            self._options["PDL"] = target.pdl
            if target.pdl:
                self._options["launch_pdl"] = True
        self._rest = [self._options[name] for name in kernel.arg_names[len(self.arguments) :]]  # which `use` gives, too
        self._run: Callable[[], object] | None = None

    def __call__(self) -> None:
        if self._run is None:
            self._run = partial(self.kernel[self._grid], *self.arguments, **self._options)
        self._run()

    def moved(self, arguments: tuple[Any, ...], otherwise: Callable[[], Sequence[Callable[[], None]]]) -> Self:
        """The same launch with addresses in place of some tensors, for a kernel that is made for this one;
        `otherwise` gives calls that do as much where it can't be made."""
        other = object.__new__(type(self))
        made = {"arguments": arguments, "compiled_for": self.compiled_for, "prepare": self.prepare}
        other.__dict__.update(self.__dict__, **made)  # a kernel is compiled for tensors, not for addresses
        return other

    @cached_property
    def compiled_for(self) -> Kind:
        """What the compiled kernel depends on: launches for which this is equal share one."""
        return Kind((id(self.kernel), *map(_kind, self.arguments), *sorted(self._options.items())))

    def prepare(self) -> Any:
        """The compiled kernel, loaded; it is compiled unless this process has it. None where it can't be."""
        from octavo.backends.gpu.compile.cache import with_cache

        made = self.kernel.warmup(*self.arguments, grid=self._grid, **self._options)
        with_cache(lambda: made.run)  # Triton loads a kernel when it is first asked for this
        return made

    def use(self, made: Any) -> None:
        """Launch a kernel that was compiled for this, or for its like, without asking again what it is compiled for."""
        self.made = made
        self._run = partial(made[self._grid], *self.arguments, *self._rest)

    @property
    def shared_memory(self) -> tuple[int, int] | None:
        """The loaded kernel, and the bytes of shared memory that it needs; None where the carveout is the driver's."""
        known = self._sets_carveout and self.made is not None
        return (self.made.function, self.made.metadata.shared) if known else None


def set_carveouts(launches: Sequence[Launch]) -> None:
    """Have kernels that are captured together ask for one carveout of the L1: where the next one wants another, a
    multiprocessor has to be empty before it begins."""
    needs = dict(found for launch in launches if (found := launch.shared_memory) is not None)
    if needs:
        most = max(needs.values())
        prefer_shared_memory(needs, next((percent for limit, percent in CARVEOUTS if most <= limit), -1))


def _kind(argument: Any) -> Any:
    """What a kernel is compiled for in an argument, at least: the type, a tensor's alignment and whether 31 bits are
    enough for its bytes, whether a number is 1 or a multiple of 16."""
    if argument is None:
        return None
    if isinstance(argument, tuple):
        return type(argument), *map(_kind, argument)
    if isinstance(argument, int):
        bits = 32 if -(1 << 31) <= argument < 1 << 31 else 64 if argument < 1 << 63 else 65
        return type(argument), argument == 1, argument % 16 == 0, bits
    if hasattr(argument, "data_ptr"):
        return argument.dtype, argument.data_ptr() % 16 == 0, argument.untyped_storage().nbytes() < 1 << 31
    constant = getattr(argument, "value", None)
    if isinstance(constant, Constant):
        return constant
    if hasattr(argument, "block_shape"):  # a descriptor of tiles
        return argument.base.dtype, tuple(argument.block_shape), repr(getattr(argument, "layout", None))
    return type(argument)


class Calls:
    """Calls one after the other."""

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        self.calls = tuple(calls)

    def __call__(self) -> None:
        for call in self.calls:
            call()


class LateCalls(Calls):
    """Calls that are made when they are first asked for."""

    def __init__(self, make: Callable[[], Sequence[Callable[[], None]]]) -> None:
        self._make = make

    @cached_property
    def calls(self) -> tuple[Callable[[], None], ...]:  # type: ignore[override]
        return tuple(self._make())


class Captured(Calls):
    """Calls that run as one captured graph; one by one the first time, unless all launch kernels that are there.

    The kernels of its launches are being made from when it is made on, and are waited for before the first run.
    """

    def __init__(self, calls: Sequence[Callable[[], None]]) -> None:
        super().__init__(calls)
        self._making: PendingKernels | None = PendingKernels([call for call in calls if isinstance(call, Launch)])
        self._runs = 0
        self._graph: Any = None

    def is_ready(self) -> bool:
        return self._making is None or self._making.is_done

    def make_ready(self) -> None:
        if self._making is not None:
            self._making.finish()
            self._making = None

    def release(self) -> None:
        if self._graph is not None:
            self._graph.reset()
            self._graph = None

    def __call__(self) -> None:
        self.make_ready()
        self._runs += 1
        if self._graph is None and (self._runs > 1 or self._may_capture_first()):
            self._graph = self._capture()
        if self._graph is None:
            super().__call__()
        else:
            self._graph.replay()

    def is_captured(self) -> bool:
        return self._graph is not None

    def _may_capture_first(self) -> bool:
        """Whether no call compiles, loads or allocates anything when it runs first."""
        return all(isinstance(call, Launch) and call.made is not None for call in self.calls)

    def _capture(self) -> Any:
        import torch

        cuda: Any = torch.cuda
        cuda.current_blas_handle()  # each thread has its own, and none can be made during a capture
        torch.cuda.synchronize()
        set_carveouts([call for call in self.calls if isinstance(call, Launch)])  # a graph keeps what is asked for now
        graph: Any = torch.cuda.CUDAGraph()
        with cuda.stream(_capture_stream(here_card())):  # `torch.cuda.graph` would give unused memory back each time
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                super().__call__()
            finally:
                graph.capture_end()
        return graph


@cache
def _capture_stream(card: int | None) -> Any:
    """The stream of a card on which graphs are captured; what loading took is given back before the first."""
    import torch

    cuda: Any = torch.cuda
    cuda.empty_cache()
    return cuda.Stream(card)


class OnCard:
    """A call on one of several cards."""

    def __init__(self, card: int, call: Callable[[], None]) -> None:
        self._card, self._call = card, call

    def __call__(self) -> None:
        with on_card(self._card):
            self._call()

    def is_ready(self) -> bool:
        return self._call.is_ready() if isinstance(self._call, Captured) else True

    def is_captured(self) -> bool:
        return isinstance(self._call, Captured) and self._call.is_captured()

    def make_ready(self) -> None:
        if isinstance(self._call, Captured):
            with on_card(self._card):
                self._call.make_ready()

    def release(self) -> None:
        if isinstance(self._call, Captured):
            self._call.release()
