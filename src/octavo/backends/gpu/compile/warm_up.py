"""Kernels that are made ready on threads of their own: compiled where they are not on disk, and loaded.

Plans ask for theirs when they are bound, many plans one after the other, so that all cores compile; and wait for them
before their first launch. Those that somebody waits for come first, the others in the order in which they were asked
for.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import Any, Protocol

from octavo.backends.cores import cores

log = logging.getLogger("octavo")
MAX_THREADS = 16
"""And processes, each of which takes some 200 MB."""
Kind = Hashable


class Compilable(Protocol):
    """A launch, as far as it is made ready; see `launch.Launch`."""

    kernel: Any

    @property
    def compiled_for(self) -> Kind:
        """What the compiled kernel depends on."""

    def prepare(self) -> Any:
        """The compiled kernel, loaded; None where it can't be."""

    def use(self, made: Any) -> None:
        """Launch a kernel that was made for this, or for its like."""


def _here(prepare: Callable[[], Any], left: Callable[[], int]) -> Any:
    return prepare()


class KernelMaker:
    """Makes kernels, each once. `run` begins work on another thread, on which `during` is given each launch's `prepare`
    and how many others wait."""

    def __init__(
        self, run: Callable[[Callable[[], None]], object],
        during: Callable[[Callable[[], Any], Callable[[], int]], Any] = _here,
    ) -> None:
        self._run, self._during, self._lock = run, during, Lock()
        self._made: dict[Kind, Future[Any]] = {}
        self._waiting: OrderedDict[Kind, Compilable] = OrderedDict()

    def ask(self, wanted: dict[Kind, Compilable]) -> int:
        """Begin to make kernels that nobody asked for yet, and such that failed: how many these are."""
        with self._lock:
            new = {kind: launch for kind, launch in wanted.items() if self._lacks(kind)}
            self._made.update((kind, Future()) for kind in new)
            self._waiting.update(new)
        for _ in new:
            self._run(self._next)
        return len(new)

    def _lacks(self, kind: Kind) -> bool:
        future = self._made.get(kind)
        return future is None or (future.done() and future.exception() is not None)

    def _next(self) -> None:
        with self._lock:
            kind, launch = self._waiting.popitem(last=False)
            future = self._made[kind]
        try:
            future.set_result(self._during(launch.prepare, lambda: len(self._waiting)))
        except BaseException as error:  # for whoever waits
            future.set_exception(error)

    def is_made(self, kind: Kind) -> bool:
        """Whether a kernel is made, or has failed."""
        return kind in self._made and self._made[kind].done()

    def made(self, wanted: dict[Kind, Compilable]) -> dict[Kind, Any]:
        """Wait for kernels, those that failed once more. Raises what the first one that fails again raises."""
        self.ask(wanted)
        with self._lock:
            for kind in reversed([kind for kind in wanted if kind in self._waiting]):
                self._waiting.move_to_end(kind, last=False)
        return {kind: self._made[kind].result() for kind in wanted}


@cache
def maker(device: int) -> KernelMaker:
    """What makes kernels for a device, on as many threads as there are cores, up to MAX_THREADS."""
    from triton.runtime.driver import driver

    from octavo.backends.gpu.compile.pool import apart

    pool = ThreadPoolExecutor(
        min(cores(), MAX_THREADS), "kernels", initializer=lambda: driver.active.set_current_device(device)
    )
    return KernelMaker(pool.submit, apart.during)


class PendingKernels:
    """The kernels of some launches, which are being made."""

    def __init__(self, launches: Sequence[Compilable]) -> None:
        from octavo.backends.gpu.compile.cache import attach, current_device

        self._launches = launches
        self._kinds = [launch.compiled_for for launch in launches]
        self._different = dict(zip(self._kinds, launches, strict=True))
        for kernel in {id(launch.kernel): launch.kernel for launch in self._different.values()}.values():
            attach(kernel)
        self._maker = maker(current_device())
        self.new = self._maker.ask(self._different)
        """Kernels that nobody had asked for before."""

    @property
    def is_done(self) -> bool:
        return all(map(self._maker.is_made, self._different))

    def finish(self) -> None:
        """Wait for them, and have them launched from now on. Raises what their compiler does."""
        start = time.perf_counter()
        made = self._maker.made(self._different)
        for launch, kind in zip(self._launches, self._kinds, strict=True):
            if made[kind] is not None:
                launch.use(made[kind])
        log.info(
            "%d kernels of %d launches, %d of them new, were waited for %.2f s",
            len(made), len(self._launches), self.new, time.perf_counter() - start,
        )


def prepare(launches: Sequence[Compilable]) -> None:
    """Have the kernels of launches that are to come ready; those that are not compiled yet are, on all cores."""
    PendingKernels(launches).finish()
