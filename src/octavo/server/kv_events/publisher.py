"""The publisher's thread: a PUB socket for events as they come, and a ROUTER socket for those that a reader missed."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread

import zmq

from octavo.errors import UsageError
from octavo.runtime.cache.prefix_tree import PrefixTree
from octavo.server.kv_events.address import binds, require_free
from octavo.server.kv_events.block_hash import ExtraKey
from octavo.server.kv_events.recorder import Events, Recorder
from octavo.server.kv_events.wire import END, encode
from octavo.server.serve_options import KVEvents

log = logging.getLogger("octavo")
KEPT_BATCHES = 10_000
"""The last batches, which can be asked for again."""
MOST_UNREAD = 100_000
"""Messages that wait for a slow reader, who misses those that come then."""


class Publisher:
    """Publishes what happens in a prefix tree, from when it is made until `close`.

    Call `recorder.flush()` after each step. A request for a replay is 8 bytes, big-endian: the number of the first
    batch. The answers are messages as they were published, then one with the number -1 and without a batch. If the
    first batch is no longer kept, there is one answer in place of all: every page that there is, behind an
    `AllBlocksCleared`, with the number of the last batch.

    Raises UsageError for an address that can't be used.
    """

    def __init__(self, tree: PrefixTree, options: KVEvents, lora: Sequence[ExtraKey] = ()) -> None:
        self.options = options
        self._context = zmq.Context()
        try:
            self._pub = self._socket(zmq.PUB, options.endpoint, MOST_UNREAD, connects=not binds(options.endpoint))
            self._replay = None
            if options.replay is not None:  # a whole replay fits into the queue of a reader
                self._replay = self._socket(zmq.ROUTER, options.replay, 2 * (KEPT_BATCHES + 1))
            self._inner = self._context.socket(zmq.PULL)
            self._inner.bind("inproc://wake")
            self._wake = self._context.socket(zmq.PUSH)
            self._wake.connect("inproc://wake")
        except UsageError:
            self._context.destroy(linger=0)
            raise
        self.recorder = Recorder(tree, lambda: self._signal(b""))
        self._events, self._kept, self._next = Events(options.rank, lora), deque[bytes](maxlen=KEPT_BATCHES), 0
        self._thread = Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def _socket(self, kind: int, endpoint: str, most: int, *, connects: bool = False) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        made.setsockopt(zmq.SNDHWM, most)
        made.setsockopt(zmq.LINGER, 0)
        made.setsockopt(zmq.IPV6, int("[" in endpoint))
        try:
            if connects:
                made.connect(endpoint)
            else:
                require_free(endpoint)
                made.bind(endpoint)
        except zmq.ZMQError as error:
            raise UsageError(f"KV events can't be published at {endpoint}: {error}", argument="kv_events") from None
        return made

    def _signal(self, word: bytes) -> None:
        with suppress(zmq.Again):  # it has been woken often enough
            self._wake.send(word, zmq.NOBLOCK)

    def close(self) -> None:
        """Publish what is left, and end."""
        self._wake.send(b"end")
        self._thread.join()
        self._context.destroy(linger=0)

    def _run(self) -> None:
        poller = zmq.Poller()
        for sock in filter(None, (self._inner, self._replay)):
            poller.register(sock, zmq.POLLIN)
        ended = False
        while not ended:
            ready = dict(poller.poll())
            if self._inner in ready:
                ended = self._inner.recv() == b"end"
                self._publish()
            if self._replay is not None and self._replay in ready:
                self._answer(self._replay)

    def _publish(self) -> None:
        """Send the batches that wait."""
        queue, topic = self.recorder.queue, self.options.topic.encode()
        while queue:
            try:
                payload = encode(self._events.batch(queue.popleft()))
                self._pub.send_multipart((topic, self._next.to_bytes(8, "big"), payload))
            except Exception:
                log.exception("KV events of a step could not be published; all pages will be told again")
                self.recorder.tell_all = True
                continue
            self._kept.append(payload)
            self._next += 1

    def _answer(self, replay: zmq.Socket[bytes]) -> None:
        """Send batches again, to who asked for them."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            log.info("a request for KV events is not understood: it has frames of %s bytes", [*map(len, frames)])
            return
        reader, _, number = frames
        first, oldest = int.from_bytes(number, "big"), self._next - len(self._kept)
        if first < oldest:
            self._say(replay, reader, self._next - 1, encode(self._events.snapshot()))
        else:
            for at in range(first, self._next):
                self._say(replay, reader, at, self._kept[at - oldest])
        replay.send_multipart((reader, b"", b"", END, b""))

    def _say(self, replay: zmq.Socket[bytes], reader: bytes, number: int, payload: bytes) -> None:
        replay.send_multipart((reader, b"", self.options.topic.encode(), number.to_bytes(8, "big"), payload))
