"""A reader of KV events, after what vLLM documents of them: its own types, its own hashes, nothing of Octavo's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import cbor2
import msgspec
import zmq

SEED = "vllm-none-hash"


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, tag=True):
    pass


class BlockStored(KVCacheEvent):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


decode = msgspec.msgpack.Decoder(KVEventBatch).decode
Path = tuple[str, tuple[int, ...]]
"""The salt of a sequence, and its tokens up to the end of a page."""


class Tree:
    """Pages by the hashes that events call them. What can't be is an AssertionError."""

    def __init__(self, lora: tuple[tuple[str, str, str], ...] = ()) -> None:
        self.first = hashlib.sha256(cbor2.dumps(SEED, canonical=True)).digest()
        self.lora = lora
        self.pages: dict[int, tuple[bytes, int | None, Path]] = {}
        self.counts = {"stored": 0, "removed": 0, "cleared": 0}

    @property
    def paths(self) -> set[Path]:
        return {path for _, _, path in self.pages.values()}

    def take(self, batch: KVEventBatch) -> None:
        for event in batch.events:
            if isinstance(event, BlockStored):
                self._store(event)
            elif isinstance(event, BlockRemoved):
                self._remove(event)
            else:
                self.counts["cleared"] += 1
                self.pages.clear()

    def _store(self, event: BlockStored) -> None:
        assert event.medium == "GPU"
        assert len(event.token_ids) == event.block_size * len(event.block_hashes)
        parent, keys = event.parent_block_hash, event.extra_keys or [None] * len(event.block_hashes)
        for i, name in enumerate(event.block_hashes):
            assert name not in self.pages
            before, salt, tokens = self.first, "", ()
            if parent is not None:
                before, _, (salt, tokens) = self.pages[parent]
                assert keys[i] is None
            elif keys[i] is not None:
                (salt,) = keys[i]
            page = tuple(event.token_ids[i * event.block_size : (i + 1) * event.block_size])
            extra = (*self.lora, *([("cache_salt", salt)] if salt and parent is None else []))
            digest = hashlib.sha256(cbor2.dumps((before, page, extra or None), canonical=True)).digest()
            assert name == int.from_bytes(digest, "big") & ((1 << 64) - 1)
            self.pages[name] = digest, parent, (salt, (*tokens, *page))
            parent = name
            self.counts["stored"] += 1

    def _remove(self, event: BlockRemoved) -> None:
        for name in event.block_hashes:
            del self.pages[name]
            assert all(parent != name for _, parent, _ in self.pages.values())
            self.counts["removed"] += 1


class Reader:
    """Follows a publisher: what it missed, it asks for again.

    loses  whether the message of a number is to be lost on its way
    """

    def __init__(
        self, endpoint: str, replay: str, topic: str = "", loses: Callable[[int], bool] = lambda number: False
    ) -> None:
        self.tree, self.last, self.replays, self.ranks = Tree(), -1, 0, set[int | None]()
        self._loses, self._topic = loses, topic.encode()
        self._context = zmq.Context()
        self._sub = self._context.socket(zmq.SUB)
        self._sub.setsockopt(zmq.LINGER, 0)
        self._sub.connect(endpoint)
        self._sub.subscribe(topic)
        self._replay = self._context.socket(zmq.DEALER)  # a REQ socket takes one message for each that it sends
        self._replay.setsockopt(zmq.LINGER, 0)
        self._replay.connect(replay)

    def close(self) -> None:
        self._context.destroy(linger=0)

    def poll(self, seconds: float = 0.05) -> bool:
        """Take a message, if one comes in time."""
        if not self._sub.poll(int(1000 * seconds)):
            return False
        topic, number, payload = self._sub.recv_multipart()
        assert topic == self._topic
        at = int.from_bytes(number, "big")
        if self._loses(at):
            return True
        if at > self.last + 1:
            self.catch_up()
        if at > self.last:
            self._take(at, payload)
        return True

    def catch_up(self) -> None:
        """Take all that was missed."""
        self.replays += 1
        self._replay.send_multipart((b"", (self.last + 1).to_bytes(8, "big")))
        while True:
            _, topic, number, payload = self._replay.recv_multipart()
            if not payload:
                assert number == b"\xff" * 8
                return
            assert topic == self._topic
            self._take(int.from_bytes(number, "big"), payload)

    def _take(self, at: int, payload: bytes) -> None:
        batch = decode(payload)
        assert batch.events
        assert at == self.last + 1 or isinstance(batch.events[0], AllBlocksCleared)
        self.ranks.add(batch.data_parallel_rank)
        self.tree.take(batch)
        self.last = at
