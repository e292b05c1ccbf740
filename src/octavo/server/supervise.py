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

from octavo.server.channel import LENGTH, ChannelError, frame, length_of
from octavo.server.client import EngineClient, EngineFailedError, Stream
from octavo.server.launch import Launched, launch
from octavo.server.messages import Add, Broken, Step, ToEngine, encode, to_front
from octavo.server.options import EngineOptions

log = logging.getLogger("octavo")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 30.0
STABLE_S = 60.0
"""Seconds after which an engine that ends was a good one."""
FATAL = 2
"""Crashes at which a prompt was under way, and is then refused."""
MOST_REMEMBERED = 10_000


class ProcessClient(EngineClient):
    """Starts the engine and watches it.

    Where it ends by itself, what was under way fails, and another one is started: at once, then after pauses that grow.
    A prompt that was under way at two such ends is refused from then on. A model that can't be loaded the first time is
    no reason to try again.
    """

    def __init__(self, options: EngineOptions, launched: Launched | None = None) -> None:
        """`launched`: a process that waits for its options already."""
        super().__init__()
        self.options = options
        self._launched = launched
        self._writer: asyncio.StreamWriter | None = None
        self._watching: asyncio.Task[None] | None = None
        self._under_way: dict[int, int] = {}
        self._crashes: Counter[int] = Counter()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        return None if self._launched is None else self._launched.process

    async def start(self) -> None:
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    async def close(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await self._end()

    async def _watch(self) -> None:
        """Run an engine, and another one when it has ended.

        From its end on requests are refused: while its process is put away there is nobody to send them to.
        """
        pause = FIRST_PAUSE_S
        while True:
            launched = self._launched = self._launched or launch()
            began = monotonic()
            why = await self._run(launched)
            self._count_crashes()
            self.died(why)
            await self._end()
            if self.info is None:
                return
            log.error("the engine ended: %s; it is started again", why)
            pause = FIRST_PAUSE_S if monotonic() - began > STABLE_S else pause
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            self.restarts += 1
            self._set_state("loading")

    async def _run(self, launched: Launched) -> str:
        """Tell an engine its options and take its messages until it ends: why it did."""
        reader, self._writer = await asyncio.open_connection(sock=launched.socket)
        self._writer.write(frame(encode(self.options)))
        try:
            while True:
                payload = await reader.readexactly(length_of(await reader.readexactly(LENGTH.size)))
                message = to_front.decode(payload)
                if isinstance(message, Broken):
                    self.wrong_argument = message.argument
                    return message.message
                if isinstance(message, Step):
                    for row in message.rows:
                        if row.finish is not None:
                            self._under_way.pop(row.id, None)
                self.deliver(message)
        except (OSError, EOFError, ChannelError, msgspec.MsgspecError) as error:
            status = await asyncio.to_thread(_status, launched.process)
            return f"its process ended with status {status}" if status is not None else str(error)

    async def _end(self) -> None:
        """See that the process is gone."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        launched, self._launched = self._launched, None
        if launched is not None:
            await asyncio.to_thread(launched.close)

    def _send(self, message: ToEngine) -> None:
        if self._writer is not None:  # else the engine is about to be gone, and so is what the message is about
            self._writer.write(frame(encode(message)))

    def submit(self, adds: Sequence[Add]) -> Stream:
        for add in adds:
            if self._crashes[_mark(add)] >= FATAL:
                raise EngineFailedError("QuarantineError", "the engine ended twice while this prompt was under way")
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


def _status(process: subprocess.Popen[bytes]) -> int | None:
    """What a process ended with; None for one that has not."""
    try:
        return process.wait(5)
    except subprocess.TimeoutExpired:
        return None


def _mark(add: Add) -> int:
    return hash(tuple(add.prompt))
