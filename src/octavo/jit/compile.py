"""Compiling kernels, each once for the constants that it is made for, and keeping them on disk.

A factory is a function of constants that returns a kernel's Python function; `@kernels` makes it return the compiled
one. Numba would find such a kernel on disk by its bytecode and by what it closes over, which differs from one process
to the next where that is another function. Here the key is the factory's name and constants, and the sources that it is
among (see `stored`). Each compiled function also gets a name of its own: Numba's could be the same for two made of one
source, and the wrong one would be linked.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import Any

from numba import njit, types
from numba.core.ccallback import CFunc

from octavo.jit import host_cpu
from octavo.jit.argument_record import Record
from octavo.jit.kernel_cache import sources
from octavo.jit.numba_pipeline import InnerCompiler, KernelCompiler
from octavo.jit.prepare import show_progress
from octavo.jit.stored_code import FunctionStore

FAST = {"nsz", "arcp", "contract", "reassoc"}
"""Sums may be reordered and fused; NaN and Inf keep their meaning."""
_ONE = RLock()


def kernels(
    record: Record | Callable[..., Record], *, long: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a factory return kernels, void(arguments, task); equal constants give the same one.

    The arguments are a `record`, whose fields the kernel's function reads by their names; or one for each choice of
    constants, which a function makes. Kernels that take long to compile are the first of those compiled together.
    """
    return partial(_factory_of_kernels, record, long)


class Kernel:
    """A kernel of a factory, which is compiled, or read from disk, when its address is first wanted.

    record    of its arguments
    factory   that makes its Python function of `constants`
    long      whether it takes longer to compile than most
    """

    def __init__(
        self, record: Record, factory: Callable[..., Any], constants: tuple[Any, ...], *, long: bool = False
    ) -> None:
        self.record, self.factory, self.constants, self.long = record, factory, constants, long
        self._compiled: Any = None
        self._asked: Any = None

    @property
    def address(self) -> int:
        return int(self.compiled.address)

    @property
    def compiled(self) -> Any:
        """Numba's function in C's way."""
        if self._compiled is None:
            with _ONE:  # threads that want the same kernel wait for the one that makes it
                if self._compiled is None:
                    self._compiled = self._made()
        return self._compiled

    @property
    def is_there(self) -> bool:
        """Whether it needs no compiling: it is compiled, or a file on disk has it."""
        if self._compiled is not None:
            return True
        self._asked = function = self._unmade()
        return bool(function._cache.has(function._sig, function._targetdescr.target_context.codegen()))

    @property
    def _signature(self) -> Any:
        return (self.record.type, types.intp), types.void

    def _unmade(self) -> Any:
        key = _key(self.factory, self.constants)
        function = _named(self.factory(*self.constants), key)
        host_cpu.codegen()
        pipeline: Any = KernelCompiler
        options = {"error_model": "numpy", "fastmath": FAST}
        compiled: Any = CFunc(function, self._signature, locals={}, options=options, pipeline_class=pipeline)
        compiled._cache = _store(function, key)
        return compiled

    def _made(self) -> Any:
        compiled, self._asked = self._asked or self._unmade(), None
        start = time.perf_counter()
        try:
            compiled.compile()
        finally:
            compiled._cache.release()
        if not compiled._cache_hits:
            show_progress(self.factory.__name__, time.perf_counter() - start)
        return compiled


def _factory_of_kernels(
    record: Record | Callable[..., Record], long: bool, factory: Callable[..., Callable[[Any, int], None]]
) -> Callable[..., Kernel]:
    made: dict[tuple[Any, ...], Kernel] = {}

    def make(*constants: Any) -> Kernel:
        if (found := made.get(constants)) is None:
            fields = record if isinstance(record, Record) else record(*constants)
            found = made.setdefault(constants, Kernel(fields, factory, constants, long=long))
        return found

    make.__doc__, make.__name__ = factory.__doc__, factory.__name__
    return make


def inner(function: Callable[..., Any], *constants: Any, inline: str = "never") -> Any:
    """A function for kernels to call, made for `constants`."""
    named = _named(function, _key(function, constants))
    return _linked(named, fastmath=FAST, inline=inline)


def exact(function: Callable[..., Any]) -> Any:
    """A function for kernels to call whose sums stay in order, and whose products and sums stay apart."""
    return _linked(function)


def _linked(function: Callable[..., Any], **options: Any) -> Any:
    # Without ways in from Python and C, which nobody takes, kernels compile in a seventh less time.
    unwrapped: Any = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": InnerCompiler}
    return njit(error_model="numpy", **unwrapped, **options)(function)


def kept(compiled: Any) -> Any:
    """Keep on disk what a function of a module, decorated with `njit`, is compiled to."""
    compiled._cache = _store(compiled.py_func, _key(compiled.py_func, ()))
    return compiled


def _store(function: Callable[..., Any], key: str) -> FunctionStore:
    return FunctionStore(f"{key} {digest_of_sources(function.__code__.co_filename)}")


@cache
def digest_of_sources(path: str) -> str:
    """Of the sources that a file's kernels may be made of: a backend, the package whose folder `kernels` it is in,
    or itself."""
    file = Path(path)
    backend = next((folder for folder in file.parents if folder.parent.name == "backends"), None)
    package = backend or (file.parents[1] if file.parent.name == "kernels" else None)
    try:
        found = sources(package) if package else file.read_bytes()
    except OSError:  # no file
        return ""
    return hashlib.sha256(found).hexdigest()


def _key(function: Callable[..., Any], constants: tuple[Any, ...]) -> str:
    return f"{function.__module__}.{function.__name__}{constants!r}"


def _named(function: Callable[..., Any], key: str) -> Callable[..., Any]:
    function.__name__ += "_" + hashlib.sha256(key.encode()).hexdigest()[:16]
    function.__qualname__ = function.__name__
    return function
