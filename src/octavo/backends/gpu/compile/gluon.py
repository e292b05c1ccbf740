"""Kernels in Gluon, for compute capability 9.0, as far as the installed Triton compiles them.

Gluon changes from one Triton to the next. Where a name is missing or a kernel doesn't compile, a warning says so once,
`usable` is False from then on, and with that the choice falls on a portable kernel.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Literal, ParamSpec, Self, TypeVar

from octavo.backends.gpu.device.torch_device import GpuTarget
from octavo.backends.gpu.launch.call import Calls, Grid, Launch
from octavo.errors import OctavoError

log = logging.getLogger("octavo")
P = ParamSpec("P")
T = TypeVar("T")

Name = Literal[
    "int8", "w4a8", "w4a8_multicta", "fp8", "streamk", "w4a16", "w4a16_streamk", "w4a16_multicta", "experts",
    "experts_grouped",
    "prefill", "prefill_8bit", "decode",
]
FOLDER = "octavo.backends.gpu"
MODULES: dict[Name, str] = {
    "int8": "matmul.w8a8.int8_hopper_kernel",
    "w4a8": "matmul.w8a8.int8_hopper_kernel",
    "w4a8_multicta": "matmul.w8a8.w4a8_multicta_kernel",
    "fp8": "matmul.w8a8.fp8_hopper_kernel",
    "streamk": "matmul.w8a8.streamk_kernel",
    "w4a16": "matmul.w4a16.hopper_kernel",
    "w4a16_streamk": "matmul.w4a16.streamk_kernel",
    "w4a16_multicta": "matmul.w4a16.streamk_multicta_kernel",
    "experts": "matmul.experts.hopper_kernel",
    "experts_grouped": "matmul.experts.grouped_kernel",
    "prefill": "attention.prefill_hopper_kernel",
    "prefill_8bit": "attention.prefill_8bit_kernel",
    "decode": "attention.decode_mma_kernel",
}

KERNELS: dict[Name, str] = {
    "w4a8_multicta": "w4a8_multicta_kernel",
    "w4a16_streamk": "w4a16_streamk_kernel",
    "w4a16_multicta": "w4a16_multicta_kernel",
    "experts_grouped": "experts_grouped_kernel",
    "decode": "decode_mma_kernel",
}

_given_up: set[Name] = set()
_said: set[str] = set()


class Unusable(Exception):  # noqa: N818
    """A kernel in Gluon can't be made; `usable` is False from now on."""


def usable(name: Name) -> bool:
    """Whether there is such a kernel: it can be imported, and no compile has failed so far."""
    if name in _given_up:
        return False
    with suppress(Unusable):
        kernel(name)
        return True
    return False


def given_up() -> frozenset[Name]:
    """The kernels that can't be made, as far as that is known."""
    return frozenset(_given_up)


def kernel(name: Name) -> Any:
    """The kernel. Raises Unusable if it can't be imported."""
    with attempt(name):
        path = f"{FOLDER}.{MODULES[name]}"
        module = sys.modules.get(path) or importlib.import_module(path)
        return getattr(module, KERNELS.get(name, f"{name}_hopper_kernel"))


@contextmanager
def attempt(name: Name) -> Iterator[None]:
    """Raises Unusable for what goes wrong inside, unless it is the device's or the caller's fault."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OctavoError | Unusable) or _of_device(error):
            raise
        _given_up.add(name)
        import triton

        cause = _cause(error)
        if cause not in _said:
            _said.add(cause)
            log.warning(
                "device gpu: Triton %s can't compile the kernel %s of Gluon (%s); slower, portable kernels run instead",
                triton.__version__, name, cause,
            )
        raise Unusable(cause) from error


def or_portable(product: Callable[P, T]) -> Callable[P, T]:
    """The product once more if a kernel in Gluon turns out not to compile: it is not `usable` then."""

    @wraps(product)
    def either(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return product(*args, **kwargs)
        except Unusable:
            return product(*args, **kwargs)

    return either


def _of_device(error: Exception) -> bool:
    import torch

    return isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError) or str(error).startswith("Triton Error [")


def _cause(error: BaseException) -> str:
    """What the compiler stumbled over, in a line: its own errors quote the kernel around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[-1].strip()}"


class Preferred(Launch):
    """A launch of a kernel in Gluon; if that can't be compiled, the calls that `otherwise` makes take its place."""

    def __init__(
        self, name: Name, otherwise: Callable[[], Sequence[Callable[[], None]]], target: GpuTarget, grid: Grid,
        *arguments: Any, **options: Any,
    ) -> None:
        super().__init__(target, options.pop("kernel", None) or kernel(name), grid, *arguments, **options)
        self._name: Name = name
        self._otherwise = otherwise
        self._others: Calls | None = None

    def moved(self, arguments: tuple[Any, ...], otherwise: Callable[[], Sequence[Callable[[], None]]]) -> Self:
        other = super().moved(arguments, otherwise)
        other._otherwise = otherwise
        return other

    def prepare(self) -> Any:
        with suppress(Unusable), attempt(self._name):
            return super().prepare()
        return None

    def __call__(self) -> None:
        if self._others is None and self._name not in _given_up:
            with suppress(Unusable), attempt(self._name):
                super().__call__()
                return
        if self._others is None:
            self._others = Calls(self._otherwise())
        self._others()


def tile_layout(block: list[int], kind: Any, plain: bool = False) -> Any:
    """How a tile lies in shared memory: as tensor cores read it, or, `plain` or of int32, row by row."""
    from triton.experimental.gluon import language as gl

    if plain or kind == gl.int32:
        return gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=kind.primitive_bitwidth, rank=len(block))
    return gl.NVMMASharedLayout.get_default_for(block, kind)


def tiles(x: Any, *block: int, plain: bool = False) -> Any:
    """A descriptor of tiles of a float16, bfloat16, int8, fp8 or int32 matrix, or of more dimensions, with their
    `tile_layout`."""
    import torch
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    kinds = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16, torch.int32: gl.int32}
    layout = tile_layout(list(block), kinds.get(x.dtype, gl.int8), plain)  # fp8 lies as int8
    return TensorDescriptor.from_tensor(x, list(block), layout)
