"""Generations of one model: requests of an EngineCore, whose steps are computed by whoever waits for a token."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from threading import Condition, get_ident

from octavo.runtime.core import EngineCore
from octavo.runtime.lock import tell_when_forked
from octavo.runtime.request import Output, Request, State

PATIENCE = 1.0
"""Seconds after which a request that nobody asks for its next token gives way to one that waits."""


class ClosedError(Exception):
    """Who has left is told nothing more."""


@dataclass(eq=False)
class Asked:
    """Outputs of a request that were not taken yet, and who asked for one last, when; `waits`: is waiting for it."""

    outputs: deque[Output] = field(default_factory=deque)
    thread: int = 0
    last: float = 0.0
    waits: bool = False

    @property
    def is_idle(self) -> bool:
        """Whether nobody is about to ask: it would be this thread, or there was time enough."""
        gone = self.thread == get_ident() or time.monotonic() - self.last >= PATIENCE
        return gone and not self.waits


class Conversation:
    """Requests of a core, each of which is asked for its outputs one by one, in any thread.

    Requests that are asked for at the same time share steps. One that is not asked is at most a token ahead. It keeps
    its place until others wait for it in vain: in its own thread at once, in others after `PATIENCE` seconds. Then it
    waits as they do; what was computed of it is in the prefix cache.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._changed = Condition()
        self._asked: dict[Request, Asked] = {}
        tell_when_forked(self)

    def ask(self, request: Request) -> Output:
        """The next output of a request, which begins with the first one.

        Raises ClosedError after `leave`, and what `EngineCore.add` and `EngineCore.step` raise.
        """
        asked = self._asked.get(request) or self._added(request)
        asked.thread, asked.waits = get_ident(), True
        try:
            while not asked.outputs:
                if not self._step_for(request, asked):
                    with self._changed:
                        if not asked.outputs:
                            self._changed.wait(PATIENCE)
            return asked.outputs.popleft()
        finally:
            asked.waits, asked.last = False, time.monotonic()
            if request.cancelled:
                self._asked.pop(request, None)
            with self._changed:
                self._changed.notify_all()

    def _added(self, request: Request) -> Asked:
        """Begin a request; what another thread's step brings for it has a place at once."""
        request.yields = True
        asked = self._asked[request] = Asked()
        try:
            self.core.add(request)
        except BaseException:
            del self._asked[request]
            raise
        return asked

    def _step_for(self, request: Request, asked: Asked) -> bool:
        """Compute a step, unless another thread's has brought what is waited for; whether that helped anybody."""
        with self.core.engine.lock:
            if asked.outputs:
                return True
            if request.cancelled:
                raise ClosedError
            before = self.core.steps
            self._give_way(request)
            self._taken(self.core.step())
            return bool(asked.outputs) or self.core.steps > before or request.state is State.RUNNING

    def step(self) -> list[Output]:
        """A step for requests that nobody asks for here. Who calls this has the engine's lock."""
        self._give_way(None)
        return self._taken(self.core.step())

    def _taken(self, outputs: list[Output]) -> list[Output]:
        """Hand outputs to those who ask for them; what is left."""
        others = []
        for output in outputs:
            asked = self._asked.get(output.request)
            if asked is None:
                others.append(output)
            else:
                asked.outputs.append(output)
        with self._changed:
            self._changed.notify_all()
        return others

    def _give_way(self, request: Request | None) -> None:
        """Pause those that nobody is about to ask, or that are a token ahead; idle ones make room if there is none."""
        idle = []
        for other, asked in list(self._asked.items()):
            is_idle = other is not request and (request is None or asked.is_idle)
            other.paused = is_idle or len(asked.outputs) > 0
            if is_idle and other.state is State.RUNNING:
                idle.append(other)
        scheduler = self.core.scheduler
        while idle and scheduler.wanting and len(scheduler.running) >= scheduler.max_running:
            scheduler.give_way(idle.pop())

    def leave(self, request: Request) -> None:
        """Ask no more. This waits for no step, so that any thread may call it at any time."""
        request.cancelled = True
        asked = self._asked.get(request)
        if asked is not None and not asked.waits:
            self._asked.pop(request, None)
        with self._changed:
            self._changed.notify_all()

    def forked(self) -> None:
        self._changed = Condition()
        for asked in self._asked.values():
            asked.waits = asked.waits and asked.thread == get_ident()
