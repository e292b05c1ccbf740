"""The engine's process: its main thread computes steps, another one reads what the front asks for."""

from __future__ import annotations

import gc
import logging
import math
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread, Timer
from typing import TYPE_CHECKING

import msgspec

from octavo.backends import select
from octavo.errors import FileError, OctavoError, RankError, UsageError
from octavo.graph.node import PAGE_SIZE
from octavo.graph.protocol import BoundedBackend
from octavo.io.system_memory import resident, room
from octavo.jit.clock import clock
from octavo.runtime.adapter_pool import AdapterPool, LoadedAdapter, Taken
from octavo.runtime.cache.tiers.open_tiers import open_tiers
from octavo.runtime.cache.tiers.slot_file import SlotFiles
from octavo.runtime.engine.captured_sizes import TILE
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine
from octavo.runtime.grammar.grammar import Grammars
from octavo.runtime.model import Model
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.request import Request, RequestOutput, State
from octavo.runtime.speculation.draft_sources import draft_sources
from octavo.server.engine.channel import Channel, ChannelError
from octavo.server.engine.engine_model import load_model
from octavo.server.engine.engine_protocol import (
    AdapterInfo,
    AdaptersLoaded,
    Add,
    Asks,
    Broken,
    Cancel,
    DraftInfo,
    Embed,
    EngineOutput,
    Failed,
    Go,
    Info,
    LoadAdapter,
    Loading,
    Ping,
    Pong,
    Prefill,
    Quit,
    Ready,
    Score,
    SlotAction,
    StepOutputs,
    ToEngine,
    ToFront,
    UnloadAdapter,
    encode,
    to_engine,
)
from octavo.server.engine.launch import ENDING, STDIN, WAITS
from octavo.server.engine.side_tasks import SideWork
from octavo.server.serve_options import EngineOptions

if TYPE_CHECKING:
    from octavo.server.kv_events.publisher import Publisher

log = logging.getLogger("octavo")
SEEDS = 1 << 64
GRAMMARS_S = 1.0
"""Seconds after which a process for grammars is started that none has asked for."""
TOLD_S = 0.1
"""Seconds after which the front is told again how far a model is."""
DEVICE_ITL_TARGET, HOST_ITL_TARGET = 0.025, 0.25
"""Seconds from one token of a reply to the next that prompts of others may not lengthen, on a GPU and on the CPU."""


@dataclass(eq=False, slots=True)
class TrackedRequest:
    """A request of the front: its number, when it came, and when its prefill began.

    has_output  the front has its first token, or its end
    times_out   seconds from its first token after which it ends, once it has a line end; None for no such limit
    first_at    when its first token came
    progress    the front has been told of its prefill
    adapters    what it is computed with
    """

    id: int
    request: Request
    added: float
    prefill_at: float | None = None
    has_output: bool = False
    progress: bool = False
    adapters: Taken | None = None
    times_out: float | None = None
    first_at: float | None = None


@dataclass(frozen=True)
class ReadAdapter:
    """An adapter that was asked for, once it is read, or why it can't be."""

    asked: LoadAdapter
    adapter: LoadedAdapter | OctavoError


class EngineLoop:
    """Takes messages of the front from `inbox`, computes steps, and sends what they bring.

    Whoever sees `run` raise has to tell the front: what was under way is lost.
    """

    def __init__(self, model: Model, send: Callable[[ToFront], None], *, itl_target: float, embeddings: bool) -> None:
        self.model, self.inbox = model, SimpleQueue[ToEngine | ReadAdapter]()
        self._send = send
        self.core = None
        if not model.engine.config.embeds:
            n_known = model.tokenizer.n_vocab
            self.core = EngineCore(
                model.engine, n_known=n_known, itl_target=itl_target, draft=model.draft, head=model.head
            )
        self.adapters = AdapterPool(model.engine)
        self.side = SideWork(model, self.core, send, embeddings=embeddings)
        self.kv_events: Publisher | None = None
        self._grammars = Grammars(model.tokenizer)
        self._replies: dict[Request, TrackedRequest] = {}
        self._waiting: list[TrackedRequest] = []
        self._prefilling: list[TrackedRequest] = []  # whose progress is sent
        self._by_id: dict[int, Request] = {}
        self._failed: list[EngineOutput] = []
        self._turned: float | None = None

    @property
    def turn_seconds(self) -> float:
        """How long messages have waited to be looked for, whoever asks; 0 while the loop waits for one itself."""
        turned = self._turned
        return 0.0 if turned is None else max(clock() - turned, 0.0)

    def run(self) -> None:
        """Run until `Quit` comes."""
        preparing = Timer(GRAMMARS_S, self._grammars.prepare)
        preparing.daemon = True
        if self.core is not None:  # so that no step waits for the first grammar, nor the first reply for this
            preparing.start()
        self._send(Ready(info_of(self.model, self._adapters())))
        pause: float | None = 0.0
        while self._take_messages(pause):
            self._turned = clock()
            pause = self._go_on_warming()
            with self.model.engine.lock:  # steps are computed here
                self._turn()
                if self.kv_events is not None:
                    self.kv_events.recorder.flush()
        preparing.cancel()
        if self.core is not None:
            self.core.remember()
            self.core.close()

    def _go_on_warming(self) -> float | None:
        """Make a little more ready, which stays: seconds after which there may be more to do, None for never."""
        if self.core is None or self.core.warming is None:
            return None
        pause = self.core.go_on_warming()
        keep()
        return pause

    def _turn(self) -> None:
        """A step, if there is something to do, and a piece of other work after every second one."""
        piece = self.side.takes_turn()
        if self.core is not None and (self._failed or not self.core.scheduler.idle):
            self.side.make_way()
            self._step(self.core, prompts=not piece)
        if piece:
            self.side.piece()

    def warm_up(self) -> None:
        """Compute steps, so that what they need is there before somebody waits for it, and their times are known.

        On a GPU there are sizes of steps that are made later, see `WarmUp`.
        """
        if self.core is None:
            return
        self.core.begin_warm_up()
        n_prompt = max(min(TILE, self.model.engine.n_ctx - 2), 1)
        for token in range(2):  # the first time takes longer than others
            self.core.scheduler.budget.forget()
            self.core.add(Request([token] * n_prompt, make_sampler(SamplingParams(temperature=0.0)), max_tokens=3))
            while not self.core.scheduler.idle:
                self.core.step()
        self.core.scheduler.prompt_tokens = self.core.scheduler.cached_tokens = 0
        self.model.engine.prefixes.clear()

    def _take_messages(self, pause: float | None) -> bool:
        """Take what has come, and wait for something where there is nothing to do, up to `pause` seconds if there is to
        be something then. False: it is time to end."""
        self._turned = None
        idle = not self._failed and not self.side and (self.core is None or self.core.scheduler.idle)
        while True:
            try:
                message = self.inbox.get(idle and pause != 0.0, pause)
            except Empty:
                return True
            if isinstance(message, Quit):
                return False
            self._take(message)
            idle = False

    def _take(self, message: ToEngine | ReadAdapter) -> None:
        if isinstance(message, Add):
            self._add(message)
        elif isinstance(message, LoadAdapter | UnloadAdapter | ReadAdapter):
            self._change_adapters(message)
        elif isinstance(message, Cancel):
            for request in filter(None, map(self._by_id.get, message.ids)):
                assert self.core is not None  # it has been added to it
                self.core.cancel(request)
            with self.model.engine.lock:
                self.side.cancel(message.ids)
        elif isinstance(message, Score | Embed | SlotAction):
            self.side.add(message)

    def _adapters(self) -> list[AdapterInfo]:
        return [AdapterInfo(one.id, one.name, one.path, one.rank) for one in self.adapters.adapters.values()]

    def _change_adapters(self, message: LoadAdapter | UnloadAdapter | ReadAdapter) -> None:
        """Load or unload an adapter; it is read beside steps first."""
        asked = message.asked if isinstance(message, ReadAdapter) else message
        try:
            if isinstance(message, LoadAdapter):
                Thread(target=self._read_adapter, args=(message,), name="adapter", daemon=True).start()
                return
            if isinstance(message, UnloadAdapter):
                self.adapters.unload(message.name)
            elif isinstance(message.adapter, OctavoError):
                raise message.adapter
            else:
                self.adapters.load(message.adapter)
        except OctavoError as error:
            self._send(Failed(asked.id, type(error).__name__, str(error)))
            return
        self._send(AdaptersLoaded(asked.id, self._adapters()))

    def _read_adapter(self, asked: LoadAdapter) -> None:
        found: LoadedAdapter | OctavoError
        try:
            found = self.adapters.read(asked.name, asked.path)
        except OctavoError as error:
            found = error
        except Exception as error:
            log.warning("an adapter could not be read", exc_info=error)
            found = FileError(f"can't be read: {type(error).__name__}", file=asked.path)
        self.inbox.put(ReadAdapter(asked, found))

    def _add(self, add: Add) -> None:
        assert self.core is not None
        taken: list[Taken | None] = []
        try:
            taken.extend(self.adapters.take(tuple(add.adapters)) for _ in add.ids)
            requests = [self._request(add, i, taken[i]) for i in range(len(add.ids))]
            requests[0].siblings = requests[1:]
            self.core.add(requests[0])
        except OctavoError as error:
            for one in filter(None, taken):
                self.adapters.give_back(one)
            why = type(error).__name__, str(error)
            self._failed += [EngineOutput(one, None, "error", error=why) for one in add.ids]
            return
        now = clock()
        replies = [
            TrackedRequest(one, request, now, adapters=with_them, times_out=add.predict_time)
            for one, request, with_them in zip(add.ids, requests, taken, strict=True)
        ]
        self._replies.update({reply.request: reply for reply in replies})
        self._by_id.update({reply.id: reply.request for reply in replies})
        self._waiting += replies
        if add.progress:  # siblings begin where the prompt of the first is read
            self._prefilling.append(replies[0])

    def _request(self, add: Add, i: int, taken: Taken | None) -> Request:
        tokenizer, params = self.model.tokenizer, replace(add.sampling, seed=(add.seed + i) % SEEDS)
        sampler = make_sampler(params, n_prompt=len(add.prompt), end_ids=tokenizer.stop_ids, tokenizer=tokenizer,
                               thinking=add.thinking)
        request = Request(
            add.prompt, sampler, max_tokens=add.max_tokens, logprobs=add.logprobs, after_sampling=add.after_sampling,
            cache_salt=add.cache_salt if taken is None else f"{add.cache_salt}\0lora {taken.key}",
            adapter=None if taken is None else taken.slot,
            stop_ids=frozenset({*tokenizer.stop_ids, *params.stop_token_ids}),
            constraint=None if add.grammar is None else self._grammars.begin(add.grammar, add.thinking),
            priority=add.priority, key=add.key, weight=add.weight,
            deadline=math.inf if add.max_time is None else clock() + add.max_time,
        )
        if add.output:
            self.model.engine.require_tokens(add.output)
            request.go_on(add.output)
        return request

    def _step(self, core: EngineCore, *, prompts: bool) -> None:
        start = clock()
        outputs = core.step(prompts=prompts)
        sent, self._failed = self._failed, []
        now = clock()
        for reply in self._waiting:
            if reply.prefill_at is None and reply.request.state is not State.WAITING:
                reply.prefill_at = start
        self._waiting = [reply for reply in self._waiting if reply.prefill_at is None]
        if self._prefilling:
            sent += self._progress({output.request for output in outputs}, now)
        sent += [self._output(self._replies[output.request], output, now) for output in outputs]
        for output in outputs:
            if output.finish_reason is not None:
                ended = self._replies.pop(output.request)
                del self._by_id[ended.id]
                if ended.adapters is not None:
                    self.adapters.give_back(ended.adapters)
        self._send(StepOutputs(sent, core.stats(), now - start))

    def _progress(self, done: Set[Request], now: float) -> Iterator[EngineOutput]:
        """How far prompts are computed, of requests that have no token yet, or get their first one in this step."""
        for reply in self._prefilling:
            request, n = reply.request, len(reply.request.prompt)
            if reply.prefill_at is None or (request.over and request not in done):
                continue
            if not reply.progress:
                reply.progress = True
                yield EngineOutput(reply.id, None, prefill=Prefill(request.cached, request.cached, 0.0))
            read = n if request in done else min(len(request.sequence), n)
            yield EngineOutput(reply.id, None, prefill=Prefill(request.cached, read, now - reply.prefill_at))
        self._prefilling = [one for one in self._prefilling if one.request not in done and not one.request.over]

    def _output(self, reply: TrackedRequest, output: RequestOutput, now: float) -> EngineOutput:
        prefill = error = None
        if reply.times_out is not None and output.token is not None:
            self._limit(reply, output.token, now)
        if not reply.has_output:
            reply.has_output = True
            first = now if reply.prefill_at is None else reply.prefill_at
            prefill = Prefill(reply.request.cached, len(reply.request.prompt), now - first, first - reply.added)
        if (why := reply.request.failure) is not None:
            error = (type(why).__name__, str(why))
        drafts = reply.request.drafts
        drafted = (drafts.drafted, drafts.accepted) if output.finish_reason is not None and drafts.drafted else None
        return EngineOutput(reply.id, output.token, output.finish_reason, output.logprobs, prefill, error, drafted)

    def _limit(self, reply: TrackedRequest, token: int, now: float) -> None:
        """End a reply some seconds after its first token, as soon as it has a line end."""
        assert self.core is not None
        reply.first_at = now if reply.first_at is None else reply.first_at
        if reply.times_out is not None and b"\n" in self.model.tokenizer.token_bytes(token):
            self.core.scheduler.limit(reply.request, reply.first_at + reply.times_out)
            reply.times_out = None


def info_of(model: Model, adapters: Sequence[AdapterInfo] = ()) -> Info:
    """What the front has to know of a model."""
    engine, hparams, infos = model.engine, model.engine.model.hparams, model.file.tensors.values()
    embeds = engine.config.embeds
    return Info(
        n_ctx=engine.n_ctx, n_ctx_train=hparams.n_ctx_train, n_vocab=model.tokenizer.n_vocab,
        n_params=sum(info.size for info in infos), nbytes=sum(info.nbytes for info in infos),
        n_pages=engine.pool.n_pages, page_size=PAGE_SIZE, max_sequences=engine.config.max_sequences,
        device=engine.backends[0].name, embeds=embeds, pid=os.getpid(),
        pooling=model.embedder.pooling if embeds else None, max_loras=engine.config.max_loras, adapters=[*adapters],
        drafts=[] if embeds else [
            DraftInfo(one.kind, one.tokens, None if one.file is None else one.file.path)
            for one in draft_sources(engine, model.head, model.draft)
        ],
    )


def serve_engine(sock: socket.socket) -> None:
    """Be the engine at the other end of a socket, on which the options come first."""
    channel = Channel(sock)
    messages = channel.received()
    first = next(messages, None)
    if first is None:
        return
    options = msgspec.msgpack.decode(first, type=EngineOptions)
    loop: EngineLoop | None = None
    allowed = Event()

    def read() -> None:
        """Until the front closes its end, which ends this process at once."""
        try:
            for payload in messages:
                message = to_engine.decode(payload)
                if isinstance(message, Ping):
                    channel.send(encode(Pong(0.0 if loop is None else loop.turn_seconds)))
                elif isinstance(message, Go):
                    allowed.set()
                elif loop is not None:  # before it is there it is asked for nothing
                    loop.inbox.put(message)
        except (OSError, ChannelError) as error:
            log.info("the server is gone: %s", error)
        finally:
            os._exit(0)

    Thread(target=read, daemon=True, name="reader").start()
    try:
        loop = make_loop(options, lambda message: channel.send(encode(message)), allowed)
    except OctavoError as error:
        channel.send(encode(Broken.of(error)))
        return

    def end(error: RankError) -> None:
        """Without one of its ranks there is no engine; the front starts another one."""
        try:
            channel.send(encode(Broken.of(error)))
        finally:
            os._exit(1)

    loop.model.engine.call_on_rank_failure(end)
    loop.run()


def make_loop(
    options: EngineOptions, send: Callable[[ToFront], None], allowed: Event | None = None
) -> EngineLoop:
    """Load a model, and make a loop for it. Raises OctavoError.

    One that is to ask waits, before it reads weights, until it is `allowed` to.
    """
    if options.asks and allowed is not None:
        model = _asked_for(options, send, allowed)
    else:
        model = load_model(options, lambda engine: send(Loading("reading weights", 0, 1)))
    usual = DEVICE_ITL_TARGET if model.engine.on_device else HOST_ITL_TARGET
    target = usual if options.itl_target is None else options.itl_target
    loop = EngineLoop(model, send, itl_target=target, embeddings=options.embeddings)
    for name, path in options.lora_modules:
        loop.adapters.load(loop.adapters.read(name, path))
    if model.engine.on_device or not options.asks:  # else a request waits for the model, and does the same
        loop.warm_up()
    if loop.core is not None:
        folder = None if options.cache_dir is None else Path(options.cache_dir)
        tiers = open_tiers(
            model.engine, disk=options.cache_disk, ram=options.cache_ram, folder=folder, slots=options.slots
        )
        if tiers is not None and tiers.tiers:
            loop.core.use_tiers(tiers)
        if tiers is not None and options.slots:
            loop.side.slots = SlotFiles(tiers, loop.core.scheduler)
    if options.kv_events is not None:
        loop.kv_events = publisher(model, options)
    keep()
    return loop


def _asked_for(options: EngineOptions, send: Callable[[ToFront], None], allowed: Event) -> Model:
    """A model that is loaded once there is room for it, with the front told how far it is."""
    told = 0.0

    def ask(engine: Engine) -> None:
        needs, machine = engine.needs(), room()
        card = next((one for one in engine.backends if isinstance(one, BoundedBackend)), None)
        free = card.free() if card is not None else None if machine is None else machine.free
        send(Asks(needs.weights, needs.caches, needs.work, resident(), free))
        allowed.wait()

    def show(what: str, done: int, total: int) -> None:
        nonlocal told
        if (now := clock()) - told >= TOLD_S or done >= total:
            told = now
            send(Loading(what, done, total))

    return load_model(options, ask, show)


def publisher(model: Model, options: EngineOptions) -> Publisher:
    """What publishes KV events of a model. Raises UsageError for an address that can't be used, and for a model whose
    pages no other prompt can begin with."""
    from octavo.server.kv_events.publisher import Publisher

    engine = model.engine
    assert options.kv_events is not None
    if engine.config.embeds or not engine.pool.shares:
        why = "is an embedding model" if engine.config.embeds else "has sliding windows"
        raise UsageError(f"the model {why}, and keeps no pages for later prompts: leave --kv-events out")
    lora = [("lora", Path(path).name, f"{path}={scale:g}") for path, scale in options.lora]
    made = Publisher(engine.prefixes, options.kv_events, lora)
    made.recorder.flush()
    return made


def keep() -> None:
    """Leave what is there now out of later searches for garbage, which hold all replies up; it is to stay."""
    gc.freeze()


def main() -> None:
    """Run with the number of a socket that this process was given, or STDIN, and how much it is to say.

    The front ends it: signals are for the front.
    """
    for name in ENDING:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if "fork" in multiprocessing.get_all_start_methods():  # Numba's lock then has no name, and ends with the process
        multiprocessing.set_start_method("fork", force=True)
    logging.basicConfig(format="octavo: %(levelname)s: engine: %(message)s", level=logging.WARNING)
    log.setLevel(int(sys.argv[2]))
    if WAITS in sys.argv:
        with suppress(OctavoError):  # of which the first model tells
            select("cpu")
    serve_engine(_socket(sys.argv[1]))


def _socket(place: str) -> socket.socket:
    if place == STDIN:
        return socket.fromshare(sys.stdin.buffer.read())  # type: ignore[attr-defined, no-any-return, unused-ignore]
    return socket.socket(fileno=int(place))


if __name__ == "__main__":
    main()
