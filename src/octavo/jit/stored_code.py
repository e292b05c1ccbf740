"""Compiled functions on disk, a file each, which is checked before it is used.

A file holds the SHA-256 of all that follows, and then Numba's pickle of a compiled function. It is written under
another name and renamed. Numba's own cache trusts what it finds: a file that was cut, or never reached the disk before
the power went, ended the program there. Here any fault of a file costs a compilation and a warning, no more.

Processes that want the same function at the same time compile it once: one has the lock, the others wait for its file.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import platform
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

from octavo.io.locks import try_lock
from octavo.jit.host_cpu import codegen
from octavo.jit.kernel_cache import NOT_KEPT, kept, kernel_folder, shipped_folder, warn_once

DIGEST_BYTES = 32
WAIT_S, POLL_S = 60.0, 0.02
"""A kernel takes seconds to compile. A process that holds its lock for longer was stopped, and is not waited for."""

VERSIONS = f"{platform.python_implementation()} {sys.version_info[:2]} {numba.__version__} {llvmlite.__version__}"


class Mark:
    """A file that says that all kernels of some kind were compiled and kept; `key` names what they depend on."""

    def __init__(self, key: str) -> None:
        folder = kernel_folder()
        name = hashlib.sha256(repr((key, codegen().magic_tuple(), VERSIONS)).encode()).hexdigest()[:32]
        self._path = None if folder is None else folder / f"{name}.complete"

    def is_set(self) -> bool:
        return self._path is not None and self._path.exists()

    def set(self) -> None:
        if self._path is not None and kept():
            with suppress(OSError):
                self._path.touch()


class FunctionStore:
    """What Numba asks for a function before it compiles it, and gives it to afterwards: `key` names the function.

    It has the methods of Numba's own cache that compiling calls.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self._lock: tuple[int, Path] | None = None

    def load_overload(self, signature: Any, target: Any) -> Any:
        """The compiled function, or None: then it is ours to compile, and `release` must follow."""
        rtsys.initialize(
            target
        )  # all that a compiled function is linked with; `refresh` takes a quarter of a second more
        path, shipped = self._path(signature, target.codegen()), self._shipped(signature, target.codegen())
        found = None if path is None else _load(path, target)
        if found is None and shipped.exists():
            found = _load(shipped, target)
        if path is None:
            return found
        if found is None and self._lock is None:
            self._lock = _lock_of(path)
            if self._lock is not None:
                found = _load(path, target)
        if found is not None:
            self.release()
        return found

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep a compiled function, if it can be kept."""
        path = self._path(signature, compiled.codegen)
        try:
            if path is not None and not compiled.library.has_dynamic_globals:
                _save(path, dumps(compiled._reduce()))  # type: ignore[no-untyped-call]
        finally:
            self.release()

    def has(self, signature: Any, codegen: Any) -> bool:
        """Whether there is a file of the compiled function, whole or not."""
        path = self._path(signature, codegen)
        return (path is not None and path.exists()) or self._shipped(signature, codegen).exists()

    def release(self) -> None:
        """Let others compile the function, if this process was to."""
        if self._lock is not None:
            fd, path = self._lock
            self._lock = None
            with suppress(OSError):  # Windows removes no open file
                path.unlink()  # whoever waits for this lock looks for the function first
            os.close(fd)

    def _path(self, signature: Any, codegen: Any) -> Path | None:
        folder = kernel_folder()
        return None if folder is None else folder / self._name(signature, codegen)

    def _shipped(self, signature: Any, codegen: Any) -> Path:
        return shipped_folder() / self._name(signature, codegen)

    def _name(self, signature: Any, codegen: Any) -> str:
        name = repr((self.key, signature, codegen.magic_tuple(), VERSIONS))
        return f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.kernel"


def _load(path: Path, target: Any) -> Any:
    """The compiled function in a file; None where there is none, or where it is damaged, which removes it."""
    try:
        stored = path.read_bytes()
        digest, pickled = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
        if hashlib.sha256(pickled).digest() != digest:
            raise ValueError("its checksum is wrong")
        return CompileResult._rebuild(target, *pickle.loads(pickled))  # type: ignore[no-untyped-call]
    except FileNotFoundError:
        return None
    except Exception as error:  # damaged bytes make unpickling raise any exception
        warn_once("a compiled kernel can't be read and is compiled again: %s: %s", path, error)
        with suppress(OSError):
            path.unlink()
        return None


def _save(path: Path, pickled: bytes) -> None:
    """Write a file, whole or not at all."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.write_bytes(hashlib.sha256(pickled).digest() + pickled)
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
    except OSError as error:
        warn_once(NOT_KEPT, path.parent, error.strerror)


def _lock_of(path: Path) -> tuple[int, Path] | None:
    """The lock for compiling the function in a file, its descriptor and name; None where it is not available."""
    name = path.with_suffix(".lock")
    try:
        fd = os.open(name, os.O_CREAT | os.O_RDWR | getattr(os, "O_NONBLOCK", 0), 0o666)
    except OSError:
        return None
    try:
        until = time.monotonic() + WAIT_S
        while not try_lock(fd):
            if time.monotonic() > until:
                raise TimeoutError
            time.sleep(POLL_S)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):  # the file system has no locks, or the wait was too long
            return None
        raise
    return fd, name
