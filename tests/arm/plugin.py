"""For pytest in the emulated process: kernels come from `tests.arm.compiler`, at the socket that ARM_COMPILER names."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.jit import host_cpu
from octavo.jit.compile import Kernel


class Compiled:
    """How many kernels came from there, and how many were compiled under qemu all the same."""

    there = here = 0


def pytest_configure() -> None:
    connection, made = socket.socket(socket.AF_UNIX), Kernel._made
    connection.connect(os.environ["ARM_COMPILER"])

    def fetched(kernel: Kernel) -> Any:
        if not kernel.is_there:
            asked = kernel.factory.__module__, kernel.factory.__name__, kernel.constants
            connection.sendall(pickle.dumps(asked))
            assert connection.recv(1) == b".", "the compiler has ended"
            Compiled.there += kernel.is_there
            Compiled.here += not kernel.is_there
        return made(kernel)

    Kernel._made = fetched  # type: ignore[method-assign]


@pytest.hookimpl(hookwrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    yield
    where = f"{Compiled.there} kernels were compiled outside, {Compiled.here} under qemu"
    print(f"\nArm level {host_cpu.level()}: {session.testscollected} tests, {where}")
