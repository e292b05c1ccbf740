"""The replicas of a front: started, watched, restarted, and chosen from."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Literal, Protocol

from octavo.errors import OctavoError
from octavo.replicas.replica import Served
from octavo.replicas.routing import PrefixRouter
from octavo.replicas.upstream import Upstream, UpstreamLostError
from octavo.server.engine.client import EngineDiedError
from octavo.server.engine.launch import ENDS
from octavo.server.generation.handover import HEADER, OWN

log = logging.getLogger("octavo")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
STABLE_S = 60.0
"""Seconds after which a replica that ends was a good one."""
LOOK_S, ANSWER_S, LATE = 1.0, 5.0, 3
"""Seconds between looks at a replica's health, which it has for an answer, and answers that may be missing."""
OUT_S = 60.0
"""Seconds that a replica may take to end once it is told to, beside those that its replies have."""
State = Literal["loading", "up", "unwell", "draining", "restarting", "down"]


class Running(Protocol):
    """A replica's process, wherever it runs."""

    async def served(self) -> Served:
        """Where it listens, once its model is loaded. Raises OctavoError where it can't be."""

    async def ended(self) -> str:
        """Wait until it has ended: how."""

    def stop(self) -> None:
        """Have it end in order."""

    async def close(self) -> None:
        """See that it is gone."""


class Launcher(Protocol):
    """What starts replicas."""

    async def start(self, number: int) -> Running:
        """Start a replica. Raises OctavoError or OSError where there is no room for it."""

    async def close(self) -> None:
        """Give back what it needed for all of them."""


@dataclass(eq=False)
class Replica:
    """One of the replicas.

    load      requests under way
    answered  requests answered to their ends
    restarts  times that it was started again after it had ended by itself
    rolled    times that it was started again as asked, see `Pool.roll`
    pid       of its process, on its machine; 0 where it is not known
    why       it ended last; "" before, and where it was asked to
    called    what the log calls it; "" for its number
    """

    number: int
    state: State = "loading"
    upstream: Upstream | None = None
    running: Running | None = None
    load: int = 0
    answered: int = 0
    restarts: int = 0
    rolled: int = 0
    pid: int = 0
    why: str = ""
    called: str = ""

    def __str__(self) -> str:
        return self.called or f"replica {self.number}"


class Pool:
    """Keeps replicas running: where no model was loaded yet, ENDS processes each.

    served  what the first one said when its model was loaded; None before
    suspect  held by the request that may be why replicas end, of which one at a time is under way
    secret  by which replicas know the front, see `proof`
    keeps   whether a replica that has ended by itself is started again
    called  what the log calls the only one
    """

    def __init__(
        self, launcher: Launcher, n: int, drain_s: float, secret: str, keeps: Callable[[], bool] = lambda: True,
        called: str = "",
    ) -> None:
        self.replicas = [Replica(i, called=called) for i in range(n)]
        self.router, self.secret = PrefixRouter(), secret
        self.ending = False
        self._launcher, self._drain_s, self._keeps = launcher, drain_s, keeps
        self._tasks = list[asyncio.Task[None]]()
        self._changed = asyncio.Event()
        self._failed: OctavoError | None = None
        self._rolling, self.suspect = asyncio.Lock(), asyncio.Lock()
        self.served: Served | None = None

    def start(self) -> None:
        """Start all replicas; `ready` waits for the first."""
        self._tasks = [asyncio.get_running_loop().create_task(self._keep(one)) for one in self.replicas]

    async def ready(self) -> None:
        """Wait until a replica has its model loaded. Raises OctavoError where that can't be."""
        while self.served is None:
            if self._failed is not None:
                raise self._failed
            await self._change()

    async def over(self) -> None:
        """Wait until no replica is there any more, nor is to be."""
        await asyncio.wait(self._tasks)

    async def close(self, *, at_once: bool = False) -> None:
        """End all replicas, which have the time to finish what is under way; `at_once`: nothing is, and they need none.
        """
        self.ending = True
        for one in self.replicas:
            if one.running is not None and at_once:
                await one.running.close()
            elif one.running is not None:
                one.running.stop()
        await asyncio.wait(self._tasks, timeout=self._drain_s + OUT_S)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._launcher.close()

    @property
    def up(self) -> list[Replica]:
        """Those that take requests."""
        return [one for one in self.replicas if one.state == "up"]

    async def choose(
        self, blocks: Sequence[int], tried: Collection[Replica], seconds: float, wanted: int | None = None
    ) -> Replica | None:
        """A replica for a request, not one that was tried, the `wanted` one if it takes requests.

        None where there is none within some seconds.
        """
        end = monotonic() + seconds
        while not (able := [one for one in self.up if one not in tried]):
            if (left := end - monotonic()) <= 0 or self.up or self.ending:
                return None
            try:
                async with asyncio.timeout(left):
                    await self._change()
            except TimeoutError:
                return None
        return self.replicas[self.router.choose(blocks, {one.number: one.load for one in able}, wanted)]

    @property
    def rolling(self) -> bool:
        """Whether replicas are being started anew."""
        return self._rolling.locked()

    async def roll(self) -> None:
        """Start each replica anew, one after the other, once its replies are at their ends: a rolling update."""
        async with self._rolling:
            for one in self.replicas:
                log.warning("rolling restart: %s finishes its requests and is started anew", one)
                before = one.restarts + one.rolled
                if one.running is not None:
                    one.state = "draining"
                    one.running.stop()
                while not self.ending and not (one.restarts + one.rolled > before and one.state == "up"):
                    await self._change()
            if not self.ending:
                log.warning("rolling restart: all replicas are started anew")

    async def _keep(self, replica: Replica) -> None:
        """Run a replica, and another process for it when that has ended."""
        pause = FIRST_PAUSE_S
        while not self.ending:
            began, why = monotonic(), "the front ends"
            try:
                replica.running = await self._launcher.start(replica.number)
                why = await self._run(replica, replica.running)
            except Exception as error:
                log.info("traceback", exc_info=True)
                why = str(error) or type(error).__name__
                if self.served is None and isinstance(error, OctavoError):
                    self._failed = error
            finally:
                drained = replica.state == "draining"
                self._down(replica, "" if drained else why, "restarting" if drained else "down")
                if replica.running is not None:
                    await replica.running.close()
                    replica.running = None
            if self.ending or (self._failed is not None and self.served is None):
                return
            lost = self.served is None and replica.restarts + 1 == ENDS
            if not drained and (lost or not self._keeps()):
                self.ending, self._failed = True, EngineDiedError(why)
                self._tell()
                return
            pause = FIRST_PAUSE_S if drained or monotonic() - began > STABLE_S else pause
            log.log(logging.INFO if drained else logging.ERROR, "%s ended: %s; restarting it in %.1f s",
                    replica, why, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            replica.restarts += not drained
            replica.rolled += drained
            self._set(replica, "loading")

    async def _run(self, replica: Replica, running: Running) -> str:
        """Have a process be the replica until it ends: how."""
        ended = asyncio.ensure_future(running.ended())
        serving = asyncio.ensure_future(running.served())
        looking: asyncio.Future[str] | None = None
        try:
            await asyncio.wait([ended, serving], return_when=asyncio.FIRST_COMPLETED)
            served = serving.result() if serving.done() else None
            if served is None:
                return ended.result()
            replica.upstream = Upstream(served.host, served.port)
            replica.pid = served.pid
            self.served = self.served or served
            self._set(replica, "up")
            looking = asyncio.ensure_future(self._look(replica, replica.upstream))
            await asyncio.wait([ended, looking], return_when=asyncio.FIRST_COMPLETED)
            return looking.result() if looking.done() else ended.result()
        finally:
            for task in (ended, serving, looking):
                if task is not None:
                    task.cancel()
            await asyncio.gather(*(t for t in (ended, serving, looking) if t is not None), return_exceptions=True)

    async def _look(self, replica: Replica, upstream: Upstream) -> str:
        """See how a replica is, again and again, until it does not answer any more: what it did not do.

        Of one whose engine does not answer, requests go to others.
        """
        missing = 0
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                async with asyncio.timeout(ANSWER_S):
                    status, _ = await self.get(upstream, "/health")
            except (TimeoutError, UpstreamLostError):
                missing += 1
                if missing >= LATE:
                    return f"it did not answer {missing} times"
                continue
            missing = 0
            well = status == 200
            if replica.state == "up" and not well:
                level = logging.DEBUG if self.ending else logging.WARNING  # Ctrl-C reaches those of a local Ray too
                log.log(level, "%s is not well: its /health says %d", replica, status)
                self._set(replica, "unwell")
                if self.up:
                    self._lose(replica)
            elif replica.state == "unwell" and well:
                self._set(replica, "up")

    def _down(self, replica: Replica, why: str, state: State) -> None:
        replica.state, replica.why = state, why
        self.router.forget(replica.number)
        self._lose(replica)
        replica.upstream, replica.pid = None, 0
        self._tell()

    def _lose(self, replica: Replica) -> None:
        """Let others go on with what a replica has under way."""
        if replica.upstream is not None:
            replica.upstream.abort()

    def _set(self, replica: Replica, state: State) -> None:
        replica.state = state
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        """Wait until something has changed."""
        await self._changed.wait()

    def proof(self, size: int | None = None) -> bytes:
        """The header without which a replica answers nothing.

        `size`: bytes of what it is told before the body; None for what the front itself asks.
        """
        return b"%b: %b %b" % (HEADER, self.secret.encode(), OWN if size is None else b"%d" % size)

    async def get(self, upstream: Upstream, path: str, lines: bytes = b"") -> tuple[int, bytes]:
        """Status and body of what a replica says of itself; `lines`: further headers. Raises UpstreamLostError."""
        connection = await upstream.take()
        try:
            proof = self.proof()
            connection.send(b"GET %b HTTP/1.1\r\nHost: localhost\r\n%b%b\r\n\r\n" % (path.encode(), lines, proof))
            return await connection.begun(), await connection.whole()
        finally:
            upstream.give_back(connection)
