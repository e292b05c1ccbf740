"""ProcessClient: an engine in a process of its own, which is started again when it ends."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic

import msgspec

from octavo.errors import RankError, end_of_process
from octavo.server.engine.channel import LENGTH, ChannelError, frame, length_of
from octavo.server.engine.client import EngineClient, EngineFailedError, EngineStream
from octavo.server.engine.engine_protocol import Add, Broken, Ping, Pong, Quit, StepOutputs, ToEngine, encode, to_front
from octavo.server.engine.launch import ENDS, GONE_S, Launched, launch
from octavo.server.serve_options import EngineOptions

log = logging.getLogger("octavo")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
STATUS_S = 5.0
"""Seconds that a process may take to end once it says nothing more."""
STABLE_S = 60.0
"""Seconds after which an engine that ends was a good one."""
PING_S = 5.0
"""Seconds that the engine has for an answer to a ping."""
LATE, LOST = 3, 12
"""Pings without a sign of life after which nothing more is asked of an engine, and after which it is ended."""
STALLED = 0.2
"""Of the seconds that a step may take: as long without one, while replies are under way, and nothing is asked."""
FATAL = 2
"""Crashes at which a prompt was under way, and is then refused."""
MOST_REMEMBERED = 10_000


async def read_payload(reader: asyncio.StreamReader) -> bytes:
    """The next payload. Raises asyncio.IncompleteReadError where the other end closes, ChannelError as `length_of`."""
    return await reader.readexactly(length_of(await reader.readexactly(LENGTH.size)))


class ProcessClient(EngineClient):
    """Starts the engine and watches it.

    Where it ends by itself, what was under way fails, and another one is started: at once, then after pauses that grow,
    as where the system has no room for a process. A prompt that was under way at two such ends is refused from then on.
    An engine that refuses its model the first time is not started again, one that ends then by itself up to ENDS times.

    An engine is asked for signs of life: its process answers beside its steps. One that does not, as it is stopped or a
    driver holds it, or whose step does not end, is killed. So is one that ends no step though replies are under way, as
    they wait for something that never comes. What is counted are pings, so that a front that was stopped itself finds
    its engine well.
    """

    def __init__(
        self, options: EngineOptions, launched: Launched | None = None, *, grouped: bool = False
    ) -> None:
        """`launched`: a process that waits for its options, or has them; `grouped` is that of `launch`."""
        super().__init__()
        self._grouped = grouped
        self.options, self.step_timeout = options, options.step_timeout or float("inf")
        self._launched = launched
        self._writer: asyncio.StreamWriter | None = None
        self._watching: asyncio.Task[None] | None = None
        self._under_way: dict[int, int] = {}
        self._crashes: Counter[int] = Counter()
        self._heard, self._step_seconds, self._closing, self._refused = False, 0.0, False, False

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return None if self._launched is None else self._launched.process

    async def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        self._closing, launched = True, self._launched
        if launched is not None and self.state != "loading" and self.options.close_time:
            self._send(Quit())
            await _status(launched.process, self.options.close_time)
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._end()

    async def _watch(self) -> None:
        """Run an engine, and another one when it has ended.

        From its end on requests are refused: while its process is put away there is nobody to send them to.
        """
        pause, ends = FIRST_PAUSE_S, 0
        while True:
            began = monotonic()
            try:
                if self._launched is None:
                    self._launched = launch(grouped=self._grouped)
                    self.restarts += ends > 0
                why = await self._run(self._launched)
            except Exception as error:  # no descriptor, process or memory is free, as a rule
                log.info("traceback", exc_info=True)
                why = f"it could not be started: {type(error).__name__}: {error}"
            if self._closing:  # it was told to end
                return
            self._count_crashes()
            ends += 1
            is_last = self.info is None and (self._refused or ends == ENDS)
            if self.info is not None or is_last:  # else nobody has been told of it yet
                self.died(why)
            await self._end()
            if is_last:
                return
            pause = FIRST_PAUSE_S if monotonic() - began > STABLE_S else pause
            log.error("the engine ended: %s; restarting it in %.1f s", why, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            self._set_state("loading")

    async def _run(self, launched: Launched) -> str:
        """Tell an engine its options and take its messages until it ends: why it did."""
        reader, self._writer = await asyncio.open_connection(sock=launched.socket)
        if not launched.told:
            self._send(self.options)
        taking = asyncio.ensure_future(self._take_all(reader, launched.process))
        looking = asyncio.ensure_future(self._look(launched))
        try:
            await asyncio.wait([taking, looking], return_when=asyncio.FIRST_COMPLETED)
            return looking.result() if looking.done() else taking.result()
        finally:
            taking.cancel()
            looking.cancel()
            self.answers, self.stalled = True, False

    async def _take_all(self, reader: asyncio.StreamReader, process: subprocess.Popen[bytes]) -> str:
        try:
            while True:
                payload = await read_payload(reader)
                message = to_front.decode(payload)
                self._heard = self.answers = True
                if isinstance(message, Broken):
                    self.wrong_argument, self._refused = message.argument, message.kind != RankError.__name__
                    return message.message
                if isinstance(message, Pong):
                    self._step_seconds = message.seconds
                if isinstance(message, StepOutputs):
                    for row in message.outputs:
                        if row.finish is not None:
                            self._under_way.pop(row.id, None)
                self.deliver(message)
        except (OSError, EOFError, ChannelError, msgspec.MsgspecError) as error:
            status = await _status(process, STATUS_S)
            return f"its process {end_of_process(status)}" if status is not None else str(error)

    async def _look(self, launched: Launched) -> str:
        """Ask an engine for signs of life, and kill it where there are none: what it did not do."""
        silent, stuck, steps, self._step_seconds = 0, 0, -1, 0.0
        while True:
            self._heard = False
            self._send(Ping())
            await asyncio.sleep(PING_S)
            silent = 0 if self._heard else silent + 1
            stuck = stuck + 1 if self.under_way and self.stats.steps == steps else 0
            steps = self.stats.steps
            self.answers, self.stalled = silent < LATE, stuck * PING_S > STALLED * self.step_timeout
            most = LOST if self.state == "ready" else max(LOST, self.step_timeout / PING_S)
            seconds = max(self._step_seconds, stuck * PING_S)
            if silent >= most or seconds > self.step_timeout:
                launched.process.kill()
                seconds, what = (silent * PING_S, "answer") if silent >= most else (seconds, "end a step")
                return f"it did not {what} for {seconds:.0f} s, and was killed"

    async def _end(self) -> None:
        """See that the process is gone, without a thread, for which there may be no room."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None
        launched = self._launched
        if launched is not None:
            launched.socket.close()
            launched.process.kill()
            if await _status(launched.process, GONE_S) is None:
                log.warning("the engine's process %d can't be killed and is left alone", launched.process.pid)
            self._launched = None  # only now: who cancels this sees to the process itself

    def _send(self, message: ToEngine | EngineOptions) -> None:
        """To an engine that is gone, nothing: so is what the message is about. uvloop would raise there."""
        if self._writer is not None and not self._writer.transport.is_closing():
            self._writer.write(frame(encode(message)))

    def submit(self, adds: Sequence[Add]) -> EngineStream:
        for add in adds:
            if self._crashes[_mark(add)] >= FATAL:
                raise EngineFailedError("QuarantineError", "the engine ended twice while it computed this prompt")
        stream = super().submit(adds)
        self._under_way.update((one, _mark(add)) for add in adds for one in add.ids)
        return stream

    def cancel(self, ids: list[int]) -> None:
        super().cancel(ids)
        for one in ids:
            self._under_way.pop(one, None)

    def _count_crashes(self) -> None:
        """Remember which prompts were under way."""
        self._crashes.update(set(self._under_way.values()))
        self._under_way.clear()
        if len(self._crashes) > MOST_REMEMBERED:
            self._crashes = Counter(dict(self._crashes.most_common(MOST_REMEMBERED // 2)))


async def _status(process: subprocess.Popen[bytes], seconds: float) -> int | None:
    """What a process ended with; None for one that does not within some seconds."""
    end = monotonic() + seconds
    while (status := process.poll()) is None and monotonic() < end:
        await asyncio.sleep(0.02)
    return status


def _mark(add: Add) -> int:
    return hash(tuple(add.prompt))
