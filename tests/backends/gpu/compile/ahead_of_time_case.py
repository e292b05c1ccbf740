"""A kernel as it is compiled for a GPU that is not here, and what its assembler says of it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from octavo.backends.gpu.launch.arguments import marked

TARGETS = {
    "sm_80": (GPUTarget("cuda", 80, 32), "ptx"),
    "sm_90": (GPUTarget("cuda", 90, 32), "ptx"),
    "sm_100": (GPUTarget("cuda", 100, 32), "ptx"),
    "gfx942": (GPUTarget("hip", "gfx942", 64), "gcn"),
    "gfx1100": (GPUTarget("hip", "gfx1100", 32), "gcn11"),
}
FUSION = {"enable_fp_fusion": True}  # what launches say, too


class Case(NamedTuple):
    """A kernel as it is compiled: constants `fixed`, and other arguments of `types`, "i32" unless they are named.

    A type may be a record as `arguments` has them: a tuple of types, `Constant`, integers, and None. Pointers are
    multiples of 16, and so are the numbers whose names, or names in their records, are in `even`.
    """

    kernel: Any
    target: str
    fixed: dict[str, Any]
    types: dict[str, Any]
    warps: int
    stages: int
    language: Any = ASTSource
    even: Collection[str] = ()
    registers: int | None = None

    @property
    def options(self) -> dict[str, Any]:
        return {"num_warps": self.warps, "num_stages": self.stages, "maxnreg": self.registers, **FUSION}

    def arguments(self) -> dict[str, Any]:
        """A constant, a type, or a record of these, for each argument."""
        given = {arg: self.fixed.get(arg, self.types.get(arg, "i32")) for arg in self.kernel.arg_names}
        return {arg: marked(value) for arg, value in given.items()}

    def source(self) -> Any:
        """What Triton compiles. For AMD, pointers are to less than 2 GiB, as Triton finds out for tensors."""
        hip = TARGETS[self.target][0].backend == "hip"
        signature, constants, attributes = {}, {}, {}
        for i, (arg, value) in enumerate(self.arguments().items()):
            constant = arg in self.fixed
            signature[arg] = "constexpr" if constant else _signature(value)
            for path, name, leaf in leaves((i,), arg, value, constant):
                if constant or not isinstance(leaf, str):
                    constants[path] = leaf
                elif leaf[0] == "*" or (leaf == "i32" and name in self.even):
                    attributes[path] = [["tt.divisibility", 16]]
                    if hip and leaf[0] == "*":
                        attributes[path].append(["tt.pointer_range", 32])
        return self.language(self.kernel, signature, constants, attributes)


def _signature(kind: Any) -> Any:
    if not isinstance(kind, tuple):
        return kind if isinstance(kind, str) else "constexpr"
    parts = map(_signature, kind)
    return type(kind)(*parts) if hasattr(kind, "_fields") else tuple(parts)


def leaves(path: tuple[int, ...], name: str, kind: Any, whole: bool) -> Iterator[tuple[tuple[int, ...], str, Any]]:
    """Where each type of a record stands, its name, and the type; of something `whole` itself."""
    if whole or not isinstance(kind, tuple):
        yield path, name, kind
        return
    for i, (inner, part) in enumerate(zip(getattr(kind, "_fields", [name] * len(kind)), kind, strict=True)):
        yield from leaves((*path, i), inner, part, False)


def spills(made: Any, text: str) -> int:
    """Bytes (NVIDIA) or vector registers (AMD) that went to memory; AMD's scalar ones go to vector registers."""
    if "amdgcn" in made.asm:
        return sum(int(n) for n in re.findall(r"\.vgpr_spill_count:\s*(\d+)", text))
    return sum(int(n) for n in re.findall(r"(\d+) bytes spill stores", said_of(text)))


def said_of(text: str) -> str:
    """What NVIDIA's assembler says of PTX."""
    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    (arch,) = re.findall(r"^\.target (sm_\w+)", text, re.MULTILINE)
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        for tool in ("ptxas-blackwell", "ptxas"):  # one of them reads the PTX that Triton writes for this target
            command = [tools / tool, "-v", f"--gpu-name={arch}", file.name, "-o", "/dev/null"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stderr
    raise AssertionError(done.stderr)
