"""Generations of one model: requests of an EngineCore, whose steps are computed by whoever waits for a token."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from threading import get_ident

from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.fork import tell_when_forked
from octavo.runtime.scheduler.request import Request, RequestOutput, State

PATIENCE = 1.0
"""Seconds after which a request that nobody asks for its next token gives way to one that waits."""


@dataclass(eq=False)
class Asker:
    """Which thread asked for a token last, until when, and whether it still waits for it: of a request, or of several
    that are read together."""

    thread: int = 0
    last: float = 0.0
    waits: bool = False

    def is_idle(self, asker: int) -> bool:
        """Whether nobody is about to ask: it would be the thread that asks now, or there was time enough."""
        return not self.waits and (self.thread == asker or time.monotonic() - self.last >= PATIENCE)


class Conversation:
    """Requests of a core, each of which is asked for its tokens one by one, in any thread.

    Who waits for a token has steps computed until it is there. Such a step has the next tokens of all requests that are
    asked for, so threads share steps, and what waits for a place gets others to their ends. Nothing is handed over:
    each reads its own request's tokens. A request that nobody asks keeps its place until others wait for it: in its
    own thread at once, in others after `PATIENCE` seconds. Then it waits as they do; what was computed of it is in the
    prefix cache.

    All of this changes in the engine's thread, but for what each asker says of itself. An asker that is interrupted
    leaves its request, and nothing else.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self._asked: dict[Request, Asker] = {}
        tell_when_forked(self)

    def ask(self, request: Request, n: int) -> bool:
        """Compute until a request has an n-th token, or has none because it has ended or was left; whether it has one.

        Raises what `EngineCore.add` and `EngineCore.step` raise.
        """
        asked = self._asked.get(request) or Asker()
        try:
            asked.thread, asked.waits = get_ident(), True
            while request.num_shown < n and not request.over:
                self.core.engine.thread.run(lambda: self._step_for(request, asked, n))
        finally:
            asked.waits, asked.last = False, time.monotonic()
        return request.num_output_tokens >= n

    def ask_any(self, requests: Iterable[Request], asked: Asker, there: Callable[[], bool]) -> None:
        """Compute until `there`, in steps that have the next tokens of all of these requests, as far as there is room.

        Raises what `EngineCore.add` and `EngineCore.step` raise.
        """
        try:
            asked.thread, asked.waits = get_ident(), True
            while not there():
                self.core.engine.thread.run(lambda: self._step_for_all(requests, asked, there))
        finally:
            asked.waits, asked.last = False, time.monotonic()

    def _step_for_all(self, requests: Iterable[Request], asked: Asker, there: Callable[[], bool]) -> None:
        if there():
            return
        for request in requests:
            if not request.over:
                self._take(request, asked)
        self.step(asked)

    def _take(self, request: Request, asked: Asker) -> None:
        if request not in self._asked:
            request.yields = True
            self.core.add(request)
            self._asked[request] = asked

    def _step_for(self, request: Request, asked: Asker, n: int) -> None:
        if request.num_shown >= n or request.over:  # a step for another thread has brought it
            return
        self._take(request, asked)
        self.step(asked)

    def step(self, asker: Asker | None = None) -> list[RequestOutput]:
        """A step for one who asks and those who ask beside it, or for none of these but requests of the caller's own.

        Who calls this has the engine's lock.
        """
        self._asked = {r: a for r, a in self._asked.items() if r.finish_reason is None}
        for request, asked in self._asked.items():
            request.paused = asked is not asker and (asker is None or asked.is_idle(asker.thread))
            if request.cancelled:  # one who was interrupted may have said no more
                self.core.cancel(request)
        idle, scheduler = [r for r in self._asked if r.paused and r.state is State.RUNNING], self.core.scheduler
        while idle and scheduler.wanting and len(scheduler.running) >= scheduler.max_running:
            scheduler.preempt(idle.pop())
        outputs = self.core.step()
        for output in outputs:
            if output.logprobs is not None:
                output.request.found.append(output.logprobs)
        return outputs

    def leave(self, request: Request) -> None:
        """Ask no more. This waits for no step, so that any thread may call it at any time."""
        self.core.cancel(request)

    def forked(self) -> None:
        for asked in self._asked.values():
            asked.waits = asked.waits and asked.thread == get_ident()
