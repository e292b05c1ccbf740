"""Compiled kernels on disk, which are found without a look at their sources.

Triton keeps compiled kernels as well, by a hash of what they are made of: to get it, it parses a kernel and all that it
calls, and reads its own library of 400 MB. It also trusts what it finds. Here the hash is that of the sources of this
backend (kernels, and what they are compiled for), of Triton's version, and of what Triton gives to its compiler: types,
constants, alignment, options, the GPU. Files are checked before they are used, and whatever is wrong with them costs a
compilation and a warning.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, TypeVar

import triton
from triton._C import libtriton
from triton.compiler import CompiledKernel, make_backend
from triton.runtime import build
from triton.runtime.driver import driver
from triton.runtime.jit import get_cache_invalidating_env_vars

from octavo.backends.gpu.compile.pool import apart
from octavo.jit.kernel_cache import NOT_KEPT, kernel_folder, warn_once

SUMS = "sha256"
"""The file of an entry that names its other files, a line each, with their SHA-256."""

TOOLS = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
T = TypeVar("T")


class LoadedApart:
    """`load(name, path)` of an extension module, which gives what is in the module now.

    Python gives modules of one name that it has loaded before the same object, whose attributes are then those of the
    last one. Triton 3.6 names what launches kernels alike, and would read another thread's function from it.
    """

    def __init__(self, load: Callable[[str, str], Any]) -> None:
        self._load, self._lock = load, Lock()

    def __call__(self, name: str, path: str) -> Any:
        with self._lock:
            return SimpleNamespace(**vars(self._load(name, path)))


if hasattr(build, "_load_module_from_path") and not isinstance(build._load_module_from_path, LoadedApart):
    build._load_module_from_path = LoadedApart(build._load_module_from_path)


def attach(kernel: Any) -> None:
    """Have a kernel of the folder `kernels` taken from disk where Triton would compile it for the current device."""
    kernel.device_caches[current_device()]  # Triton sets its own compiler when it makes this
    kernel.compile = compiled


def current_device() -> int:
    """The number of the device that this thread launches on."""
    return with_cache(lambda: int(driver.active.get_current_device()))


def compiled(source: Any, target: Any, options: dict[str, Any], _env_vars: Any = None) -> CompiledKernel:
    """What `triton.compile` returns: from disk, or compiled now and kept there. It takes the same arguments."""
    kept = folder()
    if kept is None or (triton.knobs.compilation.always_compile and not _afresh.entered):
        return _compile(source, target, options)
    entry = kept / _key(source, target, options)
    found = _load(entry, source)
    if found is None and apart.compile(source, target, options, entry):
        found = _load(entry, source)
    if found is None:
        found = _compile(source, target, options)
        save(entry, found)
    return found


@cache
def folder() -> Path | None:
    """The folder of compiled kernels; None where there can be none."""
    library = os.stat(libtriton.__file__)
    compiler = f"{triton.__version__} {library.st_size} {library.st_mtime_ns}"
    return kernel_folder(Path(__file__).parents[1], compiler)


def _key(source: Any, target: Any, options: dict[str, Any]) -> str:
    parts = (
        source.fn.__module__, source.name, source.signature, source.constants, source.attrs, target,
        sorted(options.items()), sorted(get_cache_invalidating_env_vars().items()), [os.environ.get(t) for t in TOOLS],
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _load(entry: Path, source: Any) -> CompiledKernel | None:
    """The kernel of an entry; None where there is none, or where it is damaged, which removes it."""
    if not entry.exists():
        return None
    try:
        sums = [line.split(" ", 1) for line in (entry / SUMS).read_text(encoding="utf-8").splitlines()]
        for digest, name in sums:
            if hashlib.sha256((entry / name).read_bytes()).hexdigest() != digest:
                raise ValueError(f"the checksum of {name} is wrong")
        return CompiledKernel(source, {name: str(entry / name) for _, name in sums}, entry.name)
    except Exception as error:  # Triton raises anything for what it can't read
        warn_once("a compiled kernel can't be read and is compiled again: %s: %s", entry, error)
        shutil.rmtree(entry, ignore_errors=True)
        return None


def save(entry: Path, kernel: CompiledKernel) -> None:
    """Keep what a kernel is launched with, all of it or nothing."""
    binary = make_backend(kernel.metadata.target).binary_ext
    temporary = entry.with_name(f"{entry.name}.{secrets.token_hex(8)}.tmp")
    try:
        try:
            temporary.mkdir()
            lines = []
            for name, path in kernel.metadata_group.items():
                if name.endswith((".json", f".{binary}")):
                    data = Path(path).read_bytes()
                    (temporary / name).write_bytes(data)
                    lines.append(f"{hashlib.sha256(data).hexdigest()} {name}\n")
            (temporary / SUMS).write_text("".join(lines), encoding="utf-8")
            try:
                temporary.rename(entry)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):  # which another process made first
                    raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        warn_once(NOT_KEPT, entry.parent, error.strerror)


def _compile(source: Any, target: Any, options: dict[str, Any]) -> CompiledKernel:
    """Compile, whatever Triton's own cache holds."""
    with _afresh:
        return with_cache(partial(triton.compile, source, target=target, options=options))


def with_cache(work: Callable[[], T]) -> T:
    """What `work` gives, which uses Triton's own cache; where that is damaged or can't be written, a folder that lasts
    as long as this process takes its place."""
    try:
        return work()
    except FileNotFoundError:
        raise
    except (OSError, ValueError, AttributeError) as error:  # the latter from reading what is damaged
        if triton.knobs.cache.dir == _temporary():
            raise
        warn_once("Triton's cache in %s can't be used: %s", triton.knobs.cache.dir, error)
        triton.knobs.cache.dir = _temporary()
    return work()


@cache
def _temporary() -> str:
    """A folder that lasts as long as this process."""
    folder = tempfile.mkdtemp(prefix="octavo-triton-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Afresh(AbstractContextManager[None]):
    """While any thread is in it, Triton compiles what its own cache holds, too: it would not see that it is damaged."""

    def __init__(self) -> None:
        self.entered = 0
        self._lock = Lock()
        self._scope: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self.entered:
                self._scope = triton.knobs.compilation.scope()
                self._scope.__enter__()
                triton.knobs.compilation.always_compile = True
            self.entered += 1

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self.entered -= 1
            if not self.entered:
                self._scope.__exit__(None, None, None)


_afresh = _Afresh()
