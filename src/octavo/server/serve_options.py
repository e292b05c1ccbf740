"""What an engine is loaded with, and what the front is told to hold its clients to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, NamedTuple

import msgspec

from octavo.server.http.tls import Certificate

CLOSE_S = 5.0
"""Seconds that an engine has to write what it keeps."""


class KVEvents(msgspec.Struct, frozen=True):
    """Where an engine tells which pages its prefix cache has, see `octavo.server.kv_events`.

    endpoint, replay  addresses of ZeroMQ's, for events and for events once more; no replay: None
    topic             of the messages
    rank              of the engine, told with each batch
    """

    endpoint: str
    replay: str | None = None
    topic: str = ""
    rank: int = 0

    def of_rank(self, rank: int) -> KVEvents:
        """Those of another engine on the same machine: ports are as many higher, as vLLM's are."""
        replay = None if self.replay is None else _of_rank(self.replay, rank)
        return KVEvents(_of_rank(self.endpoint, rank), replay, self.topic, rank)


def _of_rank(address: str, rank: int) -> str:
    if not address.startswith("tcp://"):
        return f"{address}.{rank}" if rank else address
    place, _, port = address.rpartition(":")
    return f"{place}:{int(port) + rank}"


class EngineOptions(msgspec.Struct, frozen=True):
    """See `octavo.load`, whose arguments these are.

    kv_memory   None for a quarter of the memory that is free, or half of what weights leave of a GPU's, but no more
                than `max_sequences` of `n_ctx` tokens take
    itl_target  seconds from one token of a reply to the next that prompts of others may not lengthen; 0: no bound;
                None for 0.25 on the CPU and 0.025 on a GPU
    speculate   where drafts of replies come from; None for "auto"
    draft       the path of a draft model, or of a head
    embeddings  what vectors of a model that generates need is made at the start
    deterministic  the text of a reply does not depend on what else is computed, on a GPU or with AMX too
    lora        paths of adapters, with what each is multiplied by
    servers     that share this machine's memory, if `kv_memory` is None
    kv_events   tell routers which pages the prefix cache has
    step_timeout  seconds of a step, or of a load, after which the engine is ended, or its ranks are; 0: no limit
    asks        the engine says what the model needs, and waits to be allowed, before it reads weights
    memory      bytes that it shares with other models; a usual cache takes its share of no more
    cache_disk  bytes of prefixes that are kept on disk, in `cache_dir`, and `cache_ram` in the host's memory; 0: none
    slots       conversations can be saved to files
    lora_modules  names and paths of adapters that requests choose
    max_loras   of these, and of mixes of them, that may be loaded at a time
    max_lora_rank  the highest rank of one; None for the highest of `lora_modules`, or 16 if that is more
    """

    path: str
    device: str = "auto"
    n_ctx: int | None = None
    threads: int | None = None
    cache_type: Literal["f16", "f32", "q8_0", "int8", "fp8", "int4"] = "f16"
    gpu_layers: int | str | None = None
    n_cpu_moe: int | Literal["all"] = 0
    override_tensor: tuple[tuple[str, str], ...] = ()
    max_sequences: int = 32
    kv_memory: int | None = None
    itl_target: float | None = None
    embeddings: bool = False
    speculate: Literal["auto", "mtp", "draft", "lookup", "off"] | None = None
    draft: str | None = None
    deterministic: bool = False
    attention: Literal["exact", "int8", "fp8"] = "exact"
    lora: tuple[tuple[str, float], ...] = ()
    servers: int = 1
    tensor_parallel: int = 1
    pipeline: int = 1
    weight_cache: bool = True
    kv_events: KVEvents | None = None
    step_timeout: float = 600.0
    asks: bool = False
    memory: int | None = None
    cache_disk: int = 0
    cache_ram: int = 0
    cache_dir: str | None = None
    slots: bool = False
    lora_modules: tuple[tuple[str, str], ...] = ()
    max_loras: int = 0
    max_lora_rank: int | None = None

    @property
    def close_time(self) -> float:
        """Seconds that the engine has to end."""
        return CLOSE_S if self.cache_disk else 0.0


@dataclass(frozen=True)
class Limits:
    """What the front takes of its clients.

    queue          replies that may wait; further ones are refused with 429
    queue_tokens   tokens of prompts that may be under way
    body           bytes of a request, where the context does not take more
    token          bytes of a request for each token of the context
    header         bytes of its headers
    depth          of its JSON
    header_time    seconds until all headers are there
    body_time      seconds until the body is there; one that comes faster than 1 KB/s may take longer
    write_time     seconds that a client may leave what is sent to it unread
    ping           seconds without output after which a stream gets a comment
    drain_time     seconds that replies under way have when the server ends
    connections    that may have a request under way
    bodies         bytes that the large bodies of requests under way may take
    values         values of a body's JSON, where the context does not take more
    """

    queue: int = 256
    queue_tokens: int = 1 << 22
    body: int = 16 << 20
    token: int = 16
    header: int = 64 << 10
    depth: int = 64
    header_time: float = 10.0
    body_time: float = 30.0
    write_time: float = 30.0
    ping: float = 5.0
    drain_time: float = 30.0
    connections: int = 1024
    bodies: int = 256 << 20
    values: int = 1 << 20


class KeyShare(NamedTuple):
    """What an API key is called, and its weight beside others."""

    name: str
    weight: float = 1.0


@dataclass(frozen=True)
class ServerOptions:
    """How the front is reached, and by whom.

    name           what the model is called
    aliases        other names of it
    tags           words that /v1/models tells with it
    certificate    that is shown, with its key; None for plain HTTP
    keys           one of which every request needs, but those for /health; () for none
    shares         of keys; those without one are called key-1, key-2 and so on, and have a weight of 1
    hosts          names that a Host header may have besides localhost, numbers of machines, and this machine's name
    origins        of web pages that may use the server, besides its own
    strict_model   refuse names of other models
    share_cache    clients with different keys share cached prompts
    chat_template  what the model calls the template for all requests; None: the one without a name, and that for tools
    template_text  a chat template for all requests, in place of the model's own
    variables      of the chat template, where a request does not set them
    reasoning      whether the model is to think, where neither the request nor `variables` says; "auto" is "on" where
                   the template leaves a choice
    sampling       fields of SamplingParams, where a request does not have them
    seed           likewise; -1 for a random one
    max_tokens     of a reply that asks for no number; None for what each route has
    log_requests   have a line of each request in the log
    lora           paths of the model's adapters, with what each is multiplied by
    slot_path      folder of the files that slots are saved to; None: they are not
    loads_adapters  clients may load and unload adapters that requests choose
    secret         by which the front of replicas is known, see `HandoverReader`; "" where there is none
    data_dir       folder of what is kept over restarts: responses, files, batches; None for responses in memory alone
    """

    name: str
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    certificate: Certificate | None = None
    keys: tuple[str, ...] = ()
    shares: Mapping[str, KeyShare] = field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    strict_model: bool = False
    share_cache: bool = False
    chat_template: str | None = None
    template_text: str | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    reasoning: Literal["auto", "on", "off"] = "auto"
    sampling: Mapping[str, Any] = field(default_factory=dict)
    seed: int = -1
    max_tokens: int | None = None
    log_requests: bool = False
    lora: tuple[tuple[str, float], ...] = ()
    slot_path: str | None = None
    loads_adapters: bool = False
    secret: str = ""
    data_dir: str | None = None
    limits: Limits = Limits()

    def shares_by_digest(self) -> dict[str, KeyShare]:
        """The shares of keys, by what requests have of these (see `AccessGuard`); none where there is one key."""
        usual = (self.shares.get(key, KeyShare(f"key-{i}")) for i, key in enumerate(self.keys, 1))
        found = {sha256(key.encode()).hexdigest(): share for key, share in zip(self.keys, usual, strict=True)}
        return found if len(found) > 1 else {}
