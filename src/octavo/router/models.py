"""The models of a front: loaded when they are asked for, within memory, and put to sleep."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic
from typing import Any, Literal

import msgspec

from octavo.errors import MemoryLimitError, OctavoError, UsageError
from octavo.replicas.pool import Launcher, Pool
from octavo.replicas.upstream import UpstreamLostError
from octavo.router.catalog import Catalog, KnownModel
from octavo.router.events import Events
from octavo.router.memory import at_least, estimate, in_unit, too_large
from octavo.router.model_process import ModelLauncher, Spare
from octavo.server.engine.engine_protocol import Asks, Loading
from octavo.server.http.api_errors import ApiError, bad, ending
from octavo.server.model_name import plain_name
from octavo.server.serve_options import ServerOptions

log = logging.getLogger("octavo.models")
STARTING = 256 << 20
"""Bytes that the processes of a model take before they ask for more."""
SPARE = 128 << 20
"""Bytes that a process takes which waits for the next model; measured: 105 MiB."""
PATIENCE_S = 2.0
"""Seconds that a model waits for one that answers nobody, before one that answers takes no more requests."""
MOST_COPIES = 1000
FAILED_S = 5.0
"""Seconds in which a model that could not be loaded is not tried again."""
State = Literal["unloaded", "loading", "loaded", "draining", "stopping", "sleeping"]


SHOWN: Mapping[State, str] = {
    "unloaded": "unloaded", "loading": "loading", "loaded": "loaded", "draining": "loaded", "stopping": "loaded",
    "sleeping": "sleeping",
}
"""What llama-server calls them."""
STAGE = "text_model"
"""And what is loaded."""


class UnwantedError(OctavoError):
    """Nobody waits for the model any more."""


@dataclass(eq=False)
class Model:
    """A model of the catalog.

    pool       its server; None where it has none
    held       bytes that it may take
    needs      what it asked for last; None before it is known
    granted    is set when there is room for it, which is made by who has `making`
    waiting    requests that wait until it is loaded, `answering` those that its server has
    wanted     it is to be loaded though no request waits
    keep       seconds without a request after which it is put to sleep, by its last one; None for all models' own
    used       when it was asked for something last, `began` when it was loaded, `failed` when it could not be
    failure    why that was
    info       what its server tells of it
    closing    ends its server, whoever waits for that
    progress   how far it is while it is loaded
    loads      times that it was loaded, the last time in `seconds`
    failures   times that it could not be, or ended by itself
    """

    known: KnownModel
    state: State = "unloaded"
    pool: Pool | None = None
    held: int = 0
    needs: Asks | None = None
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0
    answering: int = 0
    wanted: bool = False
    keep: float | None = None
    used: float = 0.0
    began: float = 0.0
    failed: float = float("-inf")
    failure: OctavoError | None = None
    info: dict[str, Any] = field(default_factory=dict)
    loading: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None
    progress: Loading | None = None
    loads: int = 0
    seconds: float = 0.0
    failures: int = 0

    @property
    def name(self) -> str:
        return self.known.name

    @property
    def is_wanted(self) -> bool:
        return self.wanted or self.waiting > 0


class Models:
    """Loads models and ends them, see `Behind`.

    A model that is to be loaded waits for its turn, then for room: models that answer nobody are ended, the least
    recently used first. Where all that are loaded answer, the one that has been loaded longest takes no more requests
    after PATIENCE_S, so that nobody waits for ever; what it has under way it finishes. While nobody is answered, and
    there is room, a process is started for the next one.

    memory  bytes that all loaded models may take; None for what is free where their engines look
    unit    of memory as it was typed, see `in_unit`
    idle    seconds without a request after which a model is put to sleep; None for never
    copies  further names that clients have given to models
    """

    def __init__(
        self, catalog: Catalog, options: ServerOptions, memory: int | None = None, idle: float | None = None,
        launcher: Callable[..., Launcher] = ModelLauncher, unit: str = "G", begin: Callable[[], Spare] = Spare,
    ) -> None:
        self.catalog, self.options, self.memory, self.idle, self.unit = catalog, options, memory, idle, unit
        self.models = {name: Model(known) for name, known in catalog.models.items()}
        self.events, self.ending, self.evictions = Events(), False, 0
        self.copies = dict[str, str]()
        self._leaving = set[Model]()  # that the catalog has no more
        self._launcher, self._begin_spare = launcher, begin
        self._spare: Spare | None = None
        self._dropped: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._tasks = set[asyncio.Task[None]]()

    def start(self) -> None:
        """Load those that are to be loaded at the start, and warn of models that are too large."""
        if self.memory is not None:
            self._begin(self._warn(self.memory))
        for model in self.models.values():
            if model.known.load:
                self.load(model)
        self._begin(self._put_to_sleep())
        self._begin(self._keep_spare())

    async def _warn(self, memory: int) -> None:
        for model in list(self.models.values()):
            needs = await asyncio.to_thread(estimate, model.known.engine)
            if needs is not None and needs.total > memory:
                log.warning("%s", too_large(model.name, 0, needs, memory, None, self.unit))

    async def ready(self) -> None:
        """Requests can be answered at once."""

    async def close(self) -> None:
        self.ending = True
        self._tell()
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(self._drop_spare(), *(self._end(one, "unloaded") for one in self._all()))

    def find(self, name: str) -> Model:
        """The model of a name, or of MODEL:ADAPTER where it has adapters. Raises ApiError for none."""
        found = self.catalog.find(self.copies.get(plain_name(name), name))
        if found is None and (base := self.catalog.find(name.partition(":")[0])) is not None:
            found = base if self.models[base].known.engine.max_loras else None
        if found is None:
            raise ApiError(404, self.catalog.unknown(name), param="model", code="model_not_found")
        return self.models[found]

    def copy(self, source: str, name: str) -> None:
        """Give a model another name. Raises ApiError for one that a model of the catalog has, and for too many."""
        model, name = self.find(source), plain_name(name)
        if self.catalog.find(name) is not None:
            raise bad(f"{name!r} is a model already", "destination")
        if len(self.copies) >= MOST_COPIES:
            raise bad(f"{MOST_COPIES} copies were made, which is the limit", "destination")
        self.copies[name] = model.name

    def rest(self, model: Model) -> float:
        """Seconds without a request after which a model is put to sleep; infinity for never."""
        return model.keep if model.keep is not None else inf if self.idle is None else self.idle

    def only(self) -> Model | None:
        """The model that a request means which names none: the only one that there is."""
        return next(iter(self.models.values())) if len(self.models) == 1 else None

    def replace(self, catalog: Catalog) -> None:
        """Know other models from now on; those that are gone, or are served otherwise, are ended once they are idle."""
        before, self.catalog, self.models = self.models, catalog, {}
        for name, known in catalog.models.items():
            same = name in before and before[name].known == known
            self.models[name] = before.pop(name) if same else Model(known)
        self.copies = {name: one for name, one in self.copies.items() if one in self.models}
        for old in before.values():
            if old.pool is not None or old.loading is not None:
                self._leaving.add(old)
                self.unload(old)
        self.events.tell("*", "models_reload")

    @asynccontextmanager
    async def taken(self, model: Model) -> AsyncIterator[Pool]:
        """A model's server, for a request; it is loaded for that. Raises ApiError where it can't be."""
        most = model.known.server.limits.queue
        if model.state != "loaded" and model.waiting >= most:
            raise ApiError(429, f"{model.waiting} requests wait for {model.name} (allowed: {most})", code="queue_full",
                           headers={"Retry-After": "1"})
        model.waiting += 1
        try:
            pool = await self._loaded(model)
        finally:
            model.waiting -= 1
            self._tell()
        model.answering += 1
        try:
            yield pool
        finally:
            model.answering -= 1
            model.used = monotonic()
            self._tell()

    async def _loaded(self, model: Model) -> Pool:
        """Wait until a model is loaded. Raises ApiError where it can't be."""
        while True:
            if self.ending:
                raise ending()
            if model.state == "loaded" and model.pool is not None and not model.pool.ending:
                model.used = monotonic()
                return model.pool
            if model.state in ("draining", "stopping", "loaded"):  # the last one's process has just ended
                await self._change()
                continue
            if model.failure is not None and monotonic() - model.failed < FAILED_S:
                raise not_loaded(model)
            loading = self._start_loading(model)
            await asyncio.wait([loading])
            if model.failure is not None and model.state == "unloaded":
                raise not_loaded(model)

    def load(self, model: Model) -> None:
        """Begin to load a model."""
        model.wanted, model.failed, model.keep = True, float("-inf"), None
        self._start_loading(model)

    def _start_loading(self, model: Model) -> asyncio.Task[None]:
        if model.loading is None:
            model.failure = None
            model.loading = self._begin(self._load(model))
        return model.loading

    def unload(self, model: Model) -> None:
        """Begin to end a model: what it has under way has the time that there is for that."""
        model.wanted = False
        if model.loading is not None:
            model.loading.cancel()
        elif model.state in ("loaded", "draining"):
            self._set(model, "draining")
            self._begin(self._drain(model, self.options.limits.drain_time))

    async def unloaded(self, model: Model) -> None:
        """End a model, and wait until it is."""
        self.unload(model)
        while model.state not in ("unloaded", "sleeping"):
            await self._change()

    async def _load(self, model: Model) -> None:
        """Load a model when it is its turn and there is room."""
        began = monotonic()
        try:
            while model.state in ("draining", "stopping"):
                await self._change()
            self._set(model, "loading")
            async with self._turn:
                pool = await self._started(model)
            await pool.ready()
            await self._ask_info(model, pool)
            model.began = model.used = monotonic()
            model.loads, model.seconds = model.loads + 1, model.began - began
            model.progress, model.wanted = None, False
            self._set(model, "loaded", info=model.info)
            of = "" if self.memory is None else f" of {self._shown(self.memory)}"
            log.info("%s: loaded in %.1f s, memory %s%s", model.name, model.seconds, self._shown(model.held), of)
            self._begin(self._watch(model, pool))
        except (asyncio.CancelledError, UnwantedError):
            await self._end(model, "unloaded")
        except Exception as error:
            self._fail(model, error)
            await self._end(model, "unloaded")
        finally:
            model.loading = None
            self._tell()

    async def _started(self, model: Model) -> Pool:
        """A model's server, which has room for its model. Raises OctavoError where that can't be."""
        self._require_wanted(model)
        log.info("%s: loading", model.name)
        if self.memory is not None:
            await self._make_room(model, STARTING)
        model.granted.clear()
        spare, self._spare = self._spare, None
        model.pool = pool = Pool(
            self._launcher(model.known, partial(self._allow, model), partial(self._show, model), spare), 1,
            self.options.limits.drain_time, self.options.secret, partial(self._keeps, model), model.name,
        )
        pool.start()
        ready, granted = asyncio.ensure_future(pool.ready()), asyncio.ensure_future(model.granted.wait())
        left = asyncio.ensure_future(self._unwanted(model))
        try:
            if self.memory is not None and model.needs is not None:  # while the process starts
                await self._make_room(model, model.needs.total)
            await asyncio.wait([ready, granted, left], return_when=asyncio.FIRST_COMPLETED)
            if ready.done():
                ready.result()
            elif not granted.done():
                raise UnwantedError(f"nobody waits for {model.name} any more")
        finally:
            for one in (ready, granted, left):
                one.cancel()
        return pool

    async def _unwanted(self, model: Model) -> None:
        """Wait until nobody waits for a model any more."""
        while model.is_wanted:
            await self._change()

    def _keeps(self, model: Model) -> bool:
        """Whether a model whose process has ended by itself gets another one: while requests wait."""
        return model.answering > 0 or (model.state == "loading" and model.is_wanted)

    async def _allow(self, model: Model, asks: Asks) -> None:
        """Have room for what a model's engine asks for, where it waits. Raises OctavoError where there can be none."""
        model.needs = asks
        await self._make_room(model, asks.total, None if self.memory is not None else asks.free)
        model.held = asks.total
        model.granted.set()

    async def _make_room(self, model: Model, nbytes: int, free: int | None = None) -> None:
        """Hold this many bytes for a model, and end others for that.

        free  bytes of the memory that nobody has; None where `memory` says what all may have

        Raises MemoryLimitError where there can't be room, UnwantedError where nobody waits any more.
        """
        async with model.making:
            since = monotonic()
            while (short := self._short(model, nbytes, free)) > 0:
                self._require_wanted(model)
                if self._spare is not None:
                    await self._drop_spare()
                    free = None if free is None else free + SPARE
                    continue
                others = [one for one in self._all() if one is not model]
                if short > sum(one.held for one in others):
                    raise await self._too_large(model, nbytes, free)
                freed = sum(one.held for one in others if one.state == "stopping")
                idle = [one for one in others if one.state == "loaded" and not one.answering and not one.waiting]
                if short > freed and idle:
                    victim = min(idle, key=lambda one: one.used)
                    freed, self.evictions = victim.held, self.evictions + 1
                    log.info("%s: ended to make room for %s (%s)", victim.name, model.name, self._shown(victim.held))
                    await self._end(victim, "unloaded")
                    free = None if free is None else free + freed
                    continue
                busy = [one for one in others if one.state == "loaded"]
                patient = since + PATIENCE_S - monotonic()
                if short > freed and busy and patient <= 0 and not any(one.state == "draining" for one in others):
                    victim = min(busy, key=lambda one: one.began)
                    log.info("%s: finishes its requests, to make room for %s", victim.name, model.name)
                    self._set(victim, "draining")
                    self._begin(self._drain(victim))
                await self._change(patient if patient > 0 else None)
            model.held = max(model.held, nbytes)

    async def _too_large(self, model: Model, nbytes: int, free: int | None) -> MemoryLimitError:
        """That there is no room for a model, which is asked anew the next time."""
        needs, model.needs = model.needs, None
        if self.memory is not None:
            estimated = await asyncio.to_thread(estimate, model.known.engine)
            needs = estimated if needs is None else at_least(needs, estimated, model.known.engine)
        return too_large(model.name, nbytes, needs, self.memory, free, self.unit)

    def _short(self, model: Model, nbytes: int, free: int | None) -> int:
        """Bytes that have to be freed before a model can have `nbytes`."""
        if nbytes <= model.held:
            return 0
        others = [one for one in self._all() if one is not model]
        if self.memory is not None:
            return nbytes + sum(one.held for one in others) + (SPARE if self._spare else 0) - self.memory
        loading = sum(one.held for one in others if one.state == "loading")  # which don't have it yet
        return 0 if free is None else nbytes - free + loading

    async def _drain(self, model: Model, seconds: float | None = None) -> None:
        """End a model once it answers nobody, or after some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while model.answering and model.state == "draining":
                    await self._change()
        if model.state == "draining":
            log.info("%s: ended (%s)", model.name, self._shown(model.held))
            await self._end(model, "unloaded")

    def _shown(self, nbytes: int) -> str:
        return in_unit(nbytes, self.unit)

    async def _end(self, model: Model, state: State) -> None:
        """End a model's server if it has one, and have its room back, also where who waits for that is cancelled."""
        while model.state == "stopping":
            await self._change()
        if model.pool is None:
            self._ended(model, state)
        else:
            self._set(model, "stopping")
            known = model.known  # a line of the log may still come
            at_once = not (model.answering or known.engine.close_time or known.server.log_requests)
            model.closing = closing = asyncio.get_running_loop().create_task(model.pool.close(at_once=at_once))
            closing.add_done_callback(lambda _: self._ended(model, state))
            await asyncio.shield(closing)

    def _ended(self, model: Model, state: State) -> None:
        model.pool, model.closing, model.held, model.progress = None, None, 0, None
        self._leaving.discard(model)
        self._set(model, state)

    async def _watch(self, model: Model, pool: Pool) -> None:
        """See that a model whose server has ended while nobody asked it is loaded no more."""
        await pool.over()
        if model.pool is pool and model.state in ("loaded", "draining"):
            self._fail(model, OctavoError(pool.replicas[0].why), again=True)
            await self._end(model, "unloaded")

    async def _put_to_sleep(self) -> None:
        """End models that were not asked for anything for so long as each may be idle."""
        while True:
            able = [one for one in self._all() if one.state == "loaded" and not one.answering and not one.waiting]
            due = min((one.used + self.rest(one) - monotonic() for one in able), default=inf)
            if due > 0:
                await self._change(due if due < inf else None)
                continue
            for one in able:
                rest = self.rest(one)
                if one.state == "loaded" and not one.answering and one.used + rest <= monotonic():
                    log.info("%s: sleeping after %g s without a request", one.name, rest)
                    await self._end(one, "sleeping")

    async def _keep_spare(self) -> None:
        """Have a process for the next model, started while nobody is answered."""
        while True:
            busy = any(one.waiting or one.answering or one.loading for one in self._all())
            lacks = any(one.pool is None for one in self.models.values())
            room = inf if self.memory is None else self.memory - sum(one.held for one in self._all())
            if self._spare is None and lacks and not busy and room >= SPARE + STARTING:
                with suppress(OSError):  # then it is tried again once something has changed
                    self._spare = self._begin_spare()
            await self._change()

    async def _drop_spare(self) -> None:
        """End the process that waits for a model, also where who waits for that is cancelled."""
        spare, self._spare = self._spare, None
        if spare is not None:
            self._dropped = asyncio.get_running_loop().create_task(spare.close())
        if self._dropped is not None:
            await asyncio.shield(self._dropped)

    async def _ask_info(self, model: Model, pool: Pool) -> None:
        """Have what a model's server tells of it at /v1/models."""
        upstream = pool.replicas[0].upstream
        key = b"authorization: Bearer %b\r\n" % self.options.keys[0].encode() if self.options.keys else b""
        with suppress(UpstreamLostError, msgspec.MsgspecError, LookupError):
            if upstream is not None:
                _, body = await pool.get(upstream, "/v1/models", key)
                model.info = msgspec.json.decode(body)["data"][0]

    def _fail(self, model: Model, error: Exception, *, again: bool = False) -> None:
        """Count a failure, and remember it for a while; `again`: the next request tries at once."""
        logging.getLogger("octavo").info("traceback", exc_info=error)
        model.failure = error if isinstance(error, OctavoError) else OctavoError(f"{type(error).__name__}: {error}")
        model.failed = float("-inf") if again else monotonic()
        model.failures, model.wanted = model.failures + 1, False
        log.error("%s: %s: %s", model.name, "ended" if again else "can't be loaded", model.failure)

    def _show(self, model: Model, to: Loading) -> None:
        model.progress = to
        self.events.tell(model.name, "model_status", status_of(model))

    def _require_wanted(self, model: Model) -> None:
        if not model.is_wanted and not model.answering:
            raise UnwantedError(f"nobody waits for {model.name} any more")

    def _all(self) -> list[Model]:
        return [*self.models.values(), *self._leaving]

    def _begin(self, doing: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(doing)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _set(self, model: Model, state: State, **more: Any) -> None:
        before, model.state = SHOWN[model.state], state
        if before != SHOWN[state]:
            self.events.tell(model.name, "model_status", status_of(model) | more)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self, seconds: float | None = None) -> None:
        """Wait until something has changed, or for some seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()


def status_of(model: Model) -> dict[str, Any]:
    """How a model is, in llama-server's words."""
    found: dict[str, Any] = {"status": SHOWN[model.state]}
    if (to := model.progress) is not None:
        done = to.done / max(to.total, 1)
        found["progress"] = {"stages": [STAGE], "current": STAGE, "value": round(done, 4), "what": to.what}
    if model.failure is not None and model.state == "unloaded":
        found |= {"failed": True, "why": str(model.failure)}
    return found


def not_loaded(model: Model) -> ApiError:
    """What a client is told of a model that could not be loaded."""
    error = model.failure
    if isinstance(error, MemoryLimitError):
        return ApiError(400, str(error), param="model", code="model_too_large")
    words = f"{model.name} can't be loaded: {error}"
    if isinstance(error, UsageError):
        return ApiError(400, words, param="model", code="model_not_loaded")
    return ApiError(500, words, code="model_not_loaded", headers={"x-should-retry": "false"})
