"""What there is to run on: torch, Triton and a GPU, or Triton's interpreter; errors that say what is missing."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from octavo.errors import BackendError

Asm = Literal["ptx", "gcn", "gcn11", "none"]

OLDEST = {"torch": (2, 11), "triton": (3, 6)}
OLDEST_CAPABILITY = (8, 0)
INSTALL = "pip install 'octavo[gpu]'"


@dataclass(frozen=True)
class Target:
    """A device as kernels need to know it.

    device    what torch calls it: "cuda" (ROCm too), or "cpu" where kernels are interpreted
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


INTERPRETER = Target("cpu", "none", False, "interpreter", "Triton's interpreter")


def require_packages() -> None:
    """Raise BackendError, saying what to install, unless torch and Triton are there and new enough."""
    for package, oldest in OLDEST.items():
        wanted = ".".join(map(str, oldest))
        try:
            found = version(package)
            importlib.import_module(package)
        except (PackageNotFoundError, ImportError) as error:
            reason = "is not installed" if isinstance(error, PackageNotFoundError) else f"can't be imported ({error})"
            raise BackendError(f"device gpu: {package} {reason} (needed: {wanted} or later; {INSTALL})") from None
        if tuple(int(x) for x in found.split("+")[0].split(".")[:2]) < oldest:
            raise BackendError(f"device gpu: {package} is {found} (needed: {wanted} or later; {INSTALL})")


def interpreted() -> bool:
    """Kernels run in Triton's interpreter: TRITON_INTERPRET was set when it was imported."""
    import triton

    return bool(triton.knobs.runtime.interpret)


@cache
def target() -> Target:
    """The device of this process. Raises BackendError where there is none that kernels run on."""
    require_packages()
    import torch

    if interpreted():
        return INTERPRETER
    if not torch.cuda.is_available():
        built = torch.version.cuda or torch.version.hip
        why = (
            "no GPU was found, or its driver is too old" if built else f"torch {torch.__version__} is built for the CPU"
        )
        raise BackendError(f"device gpu: {why} (allowed: auto, cpu, reference)")
    properties: Any = torch.cuda.get_device_properties(0)
    if torch.version.hip:
        arch = str(properties.gcnArchName).split(":")[0]
        return Target("cuda", "gcn11" if arch.startswith(("gfx11", "gfx12")) else "gcn", False, arch, properties.name)
    capability = torch.cuda.get_device_capability(0)
    if capability < OLDEST_CAPABILITY:
        raise BackendError(
            f"device gpu: {properties.name} has compute capability {capability[0]}.{capability[1]} (needed: 8.0 or"
            " later)"
        )
    arch = f"sm_{capability[0]}{capability[1]}"
    return Target("cuda", "ptx", capability >= (9, 0), arch, properties.name)
