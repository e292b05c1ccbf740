"""Messages of KV events: arrays of msgpack, whose fields are told by their places, as routers read them.

A message has three frames: the topic, a number (8 bytes, big-endian, one more each time) and an `EventBatch`. Source:
vllm/distributed/kv_events.py. From 0.30 or so vLLM itself writes events as maps; AIBrix's router reads arrays only,
Dynamo's and llm-d's both.
"""

from __future__ import annotations

import msgspec

MEDIUM = "GPU"
"""Where pages lie that can be used as they are, whatever the engine's device is: routers weigh other words less."""


class BlockStored(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """Full pages, each after the one before it, that later prompts may begin with.

    block_hashes       of these pages, see `short_hash`
    parent_block_hash  of the page before the first one; None for the first page of sequences
    token_ids          in them, block_size to a page
    lora_id, lora_name  of adapters that requests choose: None, as those of a server are for all requests
    extra_keys         for each page what its hash depends on besides: the salt of a first page
    """

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """Pages that are gone."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, array_like=True, frozen=True, gc=False):
    """No page is there any longer."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class EventBatch(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What happened in a step, in order.

    ts  when it did, in seconds since 1970
    """

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


encode = msgspec.msgpack.Encoder().encode
END = (-1).to_bytes(8, "big", signed=True)
"""In place of a number, behind the last message of a replay."""
