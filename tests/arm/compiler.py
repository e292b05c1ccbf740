"""Kernels for a level of 64-bit Arm, compiled on this machine for tests that run under qemu.

LLVM takes 15 times as long there. What the emulated process asks for, over a socket, is compiled here and kept in the
cache folder that both have; the code is the same, since LLVM's target, CPU and features are.

    python -m tests.arm.compiler SOCKET      serves one process after the other, until it is ended
"""

from __future__ import annotations

import importlib
import pickle
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

TRIPLE = "aarch64-unknown-linux-gnu"


def aim_at_arm() -> None:
    """Make Numba compile for Arm in this process, before it compiles anything."""
    import llvmlite.binding as llvm

    from octavo.jit import arm_cpu, host_cpu

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    patched: Any = llvm
    patched.get_process_triple = patched.get_default_triple = lambda: TRIPLE
    patched.Target.from_default_triple = classmethod(lambda cls: cls.from_triple(TRIPLE))
    arm_cpu.features = lambda: host_cpu.ARM_FEATURES["i8mm"]


def serve(path: Path) -> None:
    """Compile what is asked for, a pickled factory's module and name and its constants a message."""
    from octavo.jit.prepare import prepare

    aim_at_arm()
    prepare()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        while True:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as asked, suppress(EOFError, ConnectionError):
                while True:
                    module, name, constants = pickle.load(asked)
                    with suppress(Exception):  # who asked meets it too
                        _ = getattr(importlib.import_module(module), name)(*constants).address
                    connection.sendall(b".")


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
