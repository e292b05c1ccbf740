"""What there is to run on: torch, Triton and a GPU, or Triton's interpreter; errors that say what is missing."""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from octavo.backends.gpu.device.driver import Driver, begin_context, find_driver
from octavo.errors import INSTALL_GPU, BackendError, import_failure
from octavo.garbage import no_collection

log = logging.getLogger("octavo")

Asm = Literal["ptx", "gcn", "gcn11", "none"]

OLDEST = {"torch": (2, 11), "triton": (3, 6)}
NEWEST = {"torch": (2, 15), "triton": (3, 9)}
"""What kernels were tried with; later ones are taken, too."""
OLDEST_CAPABILITY = (8, 0)
WITHOUT = "or take --device cpu"
MOST_INTERPRETED = 64


@dataclass(frozen=True)
class GpuTarget:
    """A device as kernels need to know it.

    device    what torch calls it: "cuda" (ROCm too), "cuda:1" of one of several that this process uses, or "cpu" where
              kernels are interpreted
    asm       the instructions that kernels may write out
    pdl       kernels may start before the one before them ends (programmatic dependent launch)
    arch      "sm_90", "gfx942", or "interpreter"
    name      for people
    """

    device: str
    asm: Asm
    pdl: bool
    arch: str
    name: str

    @property
    def kind(self) -> str:
        """The type of the device: "cuda" or "cpu"."""
        return self.device.partition(":")[0]


INTERPRETER = GpuTarget("cpu", "none", False, "interpreter", "Triton's interpreter")


def require_driver(driver: Driver | None) -> None:
    """Raise BackendError, saying what is wrong, unless there is a GPU that kernels run on; torch is not needed yet."""
    if driver is None or (driver.kind == "cuda" and not driver.cards):
        why = "no GPU driver was found" if driver is None else "the driver finds no GPU"
        raise BackendError(f"device gpu: {why} (needed: an NVIDIA or AMD GPU with its driver; {WITHOUT})")
    if driver.cards and driver.cards[0].capability < OLDEST_CAPABILITY:
        raise _too_old(driver.cards[0].name, driver.cards[0].capability)


def _too_old(name: str, capability: tuple[int, int]) -> BackendError:
    major, minor = capability
    return BackendError(f"device gpu: {name} has compute capability {major}.{minor} (needed: 8.0 or later; {WITHOUT})")


def require_packages() -> None:
    """Import torch and Triton. Raises BackendError, saying what to install, unless both are there and new enough."""
    for package, oldest in OLDEST.items():
        wanted = ".".join(map(str, oldest))
        try:
            found = version(package)
            with no_collection():
                importlib.import_module(package)
        except (PackageNotFoundError, ImportError) as error:
            if isinstance(error, PackageNotFoundError):
                error = ModuleNotFoundError(name=package)
            why = import_failure(package, error, f"needed: {wanted} or later; {INSTALL_GPU}")
            raise BackendError(f"device gpu: {why}") from None
        release = tuple(int(x) for x in found.split("+")[0].split(".")[:2])
        if release > NEWEST[package]:
            tried = ".".join(map(str, NEWEST[package]))
            log.info("device gpu: %s is %s, and kernels were tried with %s at the latest", package, found, tried)
        if release < oldest:
            raise BackendError(f"device gpu: {package} is {found} (needed: {wanted} or later; {INSTALL_GPU})")


def interpreted() -> bool:
    """Kernels run in Triton's interpreter: TRITON_INTERPRET was set when it was imported."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def unusable() -> str | None:
    """Why "auto" does not mean the GPU here, in words; None where it does. torch is imported only if a GPU is there."""
    try:
        require_driver(find_driver())
        absent = next((p for p in OLDEST if importlib.util.find_spec(p) is None), None)
        if absent is not None:
            return f"device gpu: {absent} is not installed ({INSTALL_GPU})"
        target()
    except BackendError as error:
        return str(error)
    return None


class _Forked:
    """Whether this process was forked from one that used the GPU: CUDA and HIP do not work in it."""

    used = False
    without_gpu = False


def _forked() -> None:
    if _Forked.used:
        _Forked.without_gpu = True
        target.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class _Here(threading.local):
    """The card of which this thread makes and runs calls, among those that this process sees; None for the first."""

    card: int | None = None


_here = _Here()


@contextmanager
def on_card(card: int | None) -> Iterator[None]:
    """In it, this thread makes and runs calls of a card; None: of the one that it has."""
    if card is None:
        yield
        return
    before, _here.card = _here.card, card
    try:
        import torch

        with nullcontext() if interpreted() else torch.cuda.device(card):
            yield
    finally:
        _here.card = before


def here() -> GpuTarget:
    """The device that this thread is on."""
    return target(_here.card)


def here_card() -> int | None:
    """The number of its card, where this process uses several."""
    return _here.card


@cache
def target(card: int | None = None) -> GpuTarget:
    """The device of this process, or one of several. Raises BackendError where there is none that kernels run on."""
    if _Forked.without_gpu:
        raise BackendError(
            "device gpu: this process was forked from one that uses the GPU, and can't use it; start processes "
            "with 'spawn' or 'forkserver', or use the GPU first after the fork"
        )
    driver = None
    if os.environ.get("TRITON_INTERPRET") != "1":
        driver = find_driver()
        require_driver(driver)
        begin_context()
    require_packages()
    import torch

    atexit.register(gc.freeze)  # a process that ends need not look for garbage among torch's objects
    if interpreted():
        return INTERPRETER
    _Forked.used = True
    if not torch.cuda.is_available():
        raise BackendError(f"device gpu: {_no_cuda(torch, driver)} ({WITHOUT})")
    number, device = card or 0, "cuda" if card is None else f"cuda:{card}"
    properties: Any = torch.cuda.get_device_properties(number)
    if torch.version.hip:
        arch = str(properties.gcnArchName).split(":")[0]
        newer = arch.startswith(("gfx11", "gfx12"))
        return GpuTarget(device, "gcn11" if newer else "gcn", False, arch, properties.name)
    capability = torch.cuda.get_device_capability(number)
    if capability < OLDEST_CAPABILITY:
        raise _too_old(properties.name, capability)
    arch = f"sm_{capability[0]}{capability[1]}"
    return GpuTarget(device, "ptx", capability >= (9, 0), arch, properties.name)


def _no_cuda(torch: Any, driver: Driver | None) -> str:
    """Why torch finds no GPU although there is a driver."""
    built = torch.version.cuda or torch.version.hip
    if built is None:
        return f"torch {torch.__version__} is built for the CPU: install one for CUDA or ROCm, see https://pytorch.org"
    if driver is not None and driver.kind == "cuda" and torch.version.cuda:
        wanted = tuple(int(part) for part in torch.version.cuda.split(".")[:2])
        if driver.cuda < wanted:
            return (
                f"the driver is too old: it runs CUDA {driver.cuda[0]}.{driver.cuda[1]}, torch {torch.__version__}"
                f" needs {torch.version.cuda}: update the driver, or install a torch for that CUDA"
            )
    kind = "ROCm" if torch.version.hip else "CUDA"
    return f"torch {torch.__version__}, built for {kind} {built}, finds no GPU that it can use"


def multiprocessors() -> int:
    """Of the GPU that this thread is on; one where kernels are interpreted."""
    return _multiprocessors(_here.card)


@cache
def _multiprocessors(card: int | None) -> int:
    if target(card).kind == "cpu":
        return 1
    import torch

    return int(torch.cuda.get_device_properties(card or 0).multi_processor_count)


def count_cards() -> int:
    """GPUs that this process sees; where kernels are interpreted, as many as anybody may ask for."""
    if target().kind == "cpu":
        return MOST_INTERPRETED
    import torch

    return torch.cuda.device_count()


def even_programs(units: int, most: int) -> int:
    """Programs for `units` of work of which at most `most` run at once: as few as take no more turns.

    What they leave of the multiprocessors is for the next kernel's programs, which may be there before this one ends.
    """
    turns = -(-units // most)
    return -(-units // turns)
