"""The engine: a model on its backends with a KV cache; sequences in, logits out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING
from weakref import finalize

import numpy as np

from octavo.errors import (
    BackendError,
    ContextFullError,
    DeviceMemoryError,
    HostMemoryError,
    ModelError,
    NonFiniteError,
    RankError,
    UsageError,
)
from octavo.formats.spec import F32, AnyArray
from octavo.graph.chosen_adapters import with_adapters
from octavo.graph.communicator import Communicator
from octavo.graph.executor import Executor
from octavo.graph.factors import LowRank
from octavo.graph.node import PAGE_SIZE, Graph, Sizes
from octavo.graph.plan import Fed, Plan, StepHandle, Watch
from octavo.graph.protocol import AsyncBackend, Backend
from octavo.graph.schedule import Place, Schedule
from octavo.models import ModelSpec
from octavo.models.shared.head import HeadSpec
from octavo.runtime.argument_checks import integer
from octavo.runtime.cache.hidden_rows import nbytes_of
from octavo.runtime.cache.page_pool import PagePool, Sequence
from octavo.runtime.cache.prefix_tree import PrefixTree
from octavo.runtime.cache.state_pool import StatePool, slots_for
from octavo.runtime.cache.step_hidden import handed_over, kept
from octavo.runtime.cache.window_pool import WindowPool, most_pages, pages_for, window_of
from octavo.runtime.engine.batch import Feed, make_batch, places
from octavo.runtime.engine.captured_sizes import (
    CapturedSizes,
    DummySlots,
    StepSize,
    all_sizes,
    chunk_sizes,
    dummy_feed,
    pad_to_bucket,
    size_of,
)
from octavo.runtime.engine.engine_config import EngineConfig, Speculate
from octavo.runtime.engine.engine_limits import cache_pages, context_of, require_context, require_heads, step_limits
from octavo.runtime.engine.kept_weights import keeping_weights
from octavo.runtime.engine.kernels_ahead import compile_ahead
from octavo.runtime.engine.memory_plan import Needs, needs_of, require_memory
from octavo.runtime.engine.placement import Placement, scheduled
from octavo.runtime.engine.thread import EngineThread, Pieces
from octavo.runtime.lora_adapters import Chosen
from octavo.runtime.sampling.draw import DeviceDraws
from octavo.runtime.sampling.processors import DeviceAdjustments
from octavo.runtime.sampling.top_k import DRAWN, LOGITS

ONE_TOKEN: Sizes = {"tokens": 1, "outputs": 1, "sequences": 1, "boundaries": 2}
MOST_ADAPTERS, MOST_RANK = 1024, 512
FEW_LACKING = 8
"""The most tokens that a state lacks which are computed in the step of the next one, not before it."""

__all__ = ["Engine", "EngineConfig", "Speculate"]

if TYPE_CHECKING:
    from octavo.runtime.parallel.group import RankGroup


class Engine:
    """Runs steps: `step` appends tokens to sequences and returns logits. An `EngineCore` gets tokens from it.

    `backends` are in order of preference; the first is where weights are placed, or the first few are, of a pipeline,
    unless `config` or `place` says otherwise. `gpu_layers` is how many layers lie there, `stages` how many on each, and
    `cpu_experts` how many of them have experts on the host. Any thread may call: steps wait for each other. They are
    computed in `thread`, or by who has `lock`. A sequence is for one thread at a time.

    head    steps keep hidden states of their sequences for this head
    shares  of a head's engine: its model's, whose embedding and output it takes
    """

    def __init__(
        self,
        model: ModelSpec,
        backends: Seq[Backend],
        config: EngineConfig | None = None,
        place: Place | None = None,
        *,
        head: HeadSpec | None = None,
        shares: Engine | None = None,
    ) -> None:
        self.head, self.shares = head, shares
        self.hidden: F32 = np.zeros((0, 0), np.float32)
        """Of a head's engine: what the last step gave, see `HeadSpec.build`."""
        self.model, self.backends = model, tuple(backends)
        self.config = config or EngineConfig()
        communicator = backends[0].communicator
        self.rank, self.ranks = (0, 1) if communicator is None else (communicator.rank, communicator.ranks)
        self._group = None if communicator is None else _group_of(communicator)
        self.lora: Chosen = ()
        """The adapters that the model has, for other ranks to read."""
        self.n_ctx = context_of(model, self.config.n_ctx)
        self._require_config()
        self.thread = EngineThread()
        finalize(self, self.thread.end).atexit = False
        self._max_pages = pages_for(self.n_ctx)
        self.on_device = isinstance(backends[0], AsyncBackend)
        """Steps run on a device of their own, beside the host."""
        self.pads = self.config.max_sequences > 1 and self.on_device
        """Steps of several sequences are padded to sizes that repeat, each of which is captured."""
        graph = self._open_cache()
        self.limits: Sizes = step_limits(self.config, self.pool, self._max_pages, pads=self.pads)
        adapted = self._with_adapters(graph) if self.config.max_loras else None
        self._schedule(graph, adapted, place)
        self._sizes = chunk_sizes(self.config.n_batch)
        self.captured: CapturedSizes | None = None
        """During the warm-up: the sizes that are captured so far, to which steps are padded."""
        self._executor: Executor | None = None
        self._adapted: Executor | None = None
        self._adapted_schedule = None if adapted is None else scheduled(
            adapted, self.backends, self.limits, self.place, fused=self.config.fuse
        )

    def _with_adapters(self, graph: Graph) -> Graph:
        """The graph of steps in which a sequence has an adapter. Raises UsageError where there can be none."""
        config = self.config
        integer("max_loras", config.max_loras, 1, MOST_ADAPTERS)
        integer("max_lora_rank", config.max_lora_rank, 1, MOST_RANK)
        if config.embeds or self.ranks > 1:
            why = "the model is divided among ranks" if self.ranks > 1 else "the model gives vectors of texts"
            raise UsageError(f"max_loras is {config.max_loras}, but {why} (allowed: 0)", argument="max_loras")
        return with_adapters(graph, config.max_loras, config.max_lora_rank)

    @property
    def adapted_weights(self) -> frozenset[str]:
        """The names of the weights that adapters of sequences can add to."""
        if self._adapted_schedule is None:
            return frozenset()
        tables = self._adapted_schedule.graph.leaves("adapters")
        return frozenset(name for table in tables for name in table.attrs["names"])

    def put_adapter(self, slot: int, added: Mapping[str, LowRank]) -> None:
        """Have an adapter in a slot: what it adds, by names of weights; no sequence that is in steps may have it."""
        with self.lock:
            self.load()
            assert self._adapted is not None
            self._adapted.put_adapter(slot, added)

    @property
    def n_launched(self) -> int:
        """Steps launched so far."""
        return self.load().n_launched + (0 if self._adapted is None else self._adapted.n_launched)

    def _executor_of(self, feeds: Seq[Feed]) -> Executor:
        """What computes a step: where no sequence has an adapter, what there is without any."""
        plain = self._executor or self.load()
        return self._adapted if self._adapted is not None and self._adapters_of(feeds) else plain

    def _adapters_of(self, feeds: Seq[Feed]) -> int:
        """How many slots of adapters a step reads."""
        return self.config.max_loras if any(f.sequence.adapter is not None for f in feeds) else 0

    def _require_config(self) -> None:
        """Raise ModelError for a model without logits, UsageError for a size or a cache that it can't have."""
        model, config = self.model, self.config
        if model.architecture.encoder and not config.embeds:
            problem = f"{model.architecture.name} is an embedding model, which gives no logits; use octavo embed"
            raise ModelError(problem, file=model.file.path)
        sizes = {name: getattr(config, name) for name in ("n_batch", "max_sequences", "n_outputs")}
        for name, value in {"n_ctx": self.n_ctx, **sizes}.items():
            integer(name, value, 1)
        require_context(model, self.n_ctx)
        for layer in range(model.hparams.n_layer):
            require_heads(config.cache_type, model.hparams.kv_heads(layer)[1])

    def _open_cache(self) -> Graph:
        """Make the pools of pages and of slots for states, and the graph that reads them."""
        config = self.config
        graph, windows = self._with_windows(partial(self.graph_of, vectors=config.embeds))
        states = StatePool(slots_for(config.max_sequences)) if any(graph.leaves("state")) else None
        pages = cache_pages(graph, config, self._max_pages, windows, states, self.ranks)
        self.pool = PagePool(pages, windows, states)
        self.pool.copier.copy_with(self._copy_page)
        if states is not None:
            states.copier.copy_with(self._copy_state)
        self.prefixes = PrefixTree(self.pool)
        return graph

    def graph_of(self, *, vectors: bool, window_pages: bool = False) -> Graph:
        """The model's graph as this rank computes it; see `ModelSpec.graph`."""
        graph = self.model.graph(
            cache_type=self.config.cache_type, page_size=PAGE_SIZE, n_ctx=self.n_ctx, vectors=vectors,
            window_pages=window_pages, tap=None if self.head is None else self.head.tap,
        )
        if self.ranks == 1:
            return graph
        from octavo.graph.shard import shard

        return shard(graph, self.rank, self.ranks)

    @property
    def _shared(self) -> frozenset[str]:
        """The names of weights that a head takes of its model."""
        return self.model.shared if isinstance(self.model, HeadSpec) else frozenset()

    def executor_for(self, planned: Schedule, limits: Sizes, outputs: Seq[int] | None = None) -> Executor:
        """An executor, which the other ranks have as well if there are any; the first is the engine's, the second that
        for vectors of tokens, which has the same weights and caches."""
        shares = self._executor
        if self.shares is not None and shares is None:
            return Executor(planned, self.backends, limits, outputs, self.shares.load(), shared=self._shared)
        if self._group is None:
            return Executor(planned, self.backends, limits, outputs, shares)
        from octavo.runtime.parallel.leader import FIRST, VECTORS, LeadingExecutor, collectives_of
        from octavo.runtime.parallel.messages import Vectors

        make = partial(LeadingExecutor, self._group, FIRST if shares is None else VECTORS)
        if shares is not None:
            with self._group.together(Vectors()):
                return make(planned, self.backends, limits, outputs, shares)
        config = {f.name: getattr(self.config, f.name) for f in fields(self.config)}
        config |= {"n_ctx": self.n_ctx, "n_pages": self.pool.n_pages, "kv_memory": None, "gpu_layers": "all"}
        config |= {"pipeline": self.stages}
        self._group.start(self.model.file.path, self.lora, config)
        try:
            executor = make(planned, self.backends, limits, outputs)
            self._group.wait_until_ready(collectives_of(planned.graph))
        except BaseException:
            self.close()
            raise
        return executor

    def _schedule(self, graph: Graph, adapted: Graph | None, place: Place | None) -> None:
        """Give the nodes of a graph to backends, and see what steps can do then."""
        config = self.config
        self._placement = Placement(
            graph, self.model.hparams.n_layer, self.backends, self.limits, config.gpu_layers, pipeline=config.pipeline,
            fused=config.fuse, searched=not config.embeds, overrides=config.overrides, adapted=adapted,
        )
        self.gpu_layers, self.stages = self._placement.layers, self._placement.counts
        self.cpu_experts = self._placement.cpu_experts
        self.place: Place = place or self._placement.place
        self.schedule: Schedule = self._placement.scheduled(place, strict=config.strict)
        self.graph = self.schedule.graph
        gives_hidden = self.head is not None or isinstance(self.model, HeadSpec)
        n_outputs = len(self.graph.outputs) - gives_hidden
        self._hidden = (n_outputs,) if gives_hidden else ()
        self.finds_candidates = n_outputs > 1
        """The graph finds the largest logits on the device."""
        self.draws = n_outputs > DRAWN
        """The graph draws tokens from these."""
        used = {split.backend for split in self.schedule.splits}
        beside_the_host = all(isinstance(self.backends[b], AsyncBackend) for b in used)
        self.supports_async = self.finds_candidates and beside_the_host and self.pool.states is None
        """A step can be launched with the sampled tokens of the one before it, before these are read.

        Not where there are states, which can't take a step back that turns out to be one too many.
        """

    def sizes(self) -> tuple[list[StepSize], list[StepSize]]:
        """The sizes that steps are padded to: those that do for any step, and all others, few replies first."""
        return all_sizes(self.config.max_sequences, [n for n in self._sizes if 1 < n <= self.n_ctx])

    def dummy_step(self, size: StepSize, *, adapted: bool = False) -> list[Feed]:
        """A step of this size whose results nobody reads, to capture the size; `adapted`: as if it had adapters."""
        prompts = [size.tokens] if size.tokens else []
        feeds = [dummy_feed(n, self._dummy_slots()) for n in (*[1] * size.replies, *prompts)]
        if adapted:
            feeds[0].sequence.adapter = 0
        return pad_to_bucket(feeds, self._sizes, self._dummy_slots(), self._max_pages)

    def _dummy_slots(self) -> DummySlots:
        """Where dummy feeds write: the page and the slot after the last ones."""
        windows, states = self.pool.windows, self.pool.states
        return DummySlots(
            self.pool.n_pages,
            None if windows is None else windows.n_pages,
            None if states is None else states.n_slots,
        )

    def padded(self, feeds: Seq[Feed]) -> list[Feed]:
        """Feeds, and after them dummy ones, if steps are padded to sizes that repeat."""
        if not self.pads:
            return list(feeds)
        return pad_to_bucket(feeds, self._sizes, self._dummy_slots(), self._max_pages, self.captured)

    def size_of(self, replies: int, prompts: int, tokens: int) -> tuple[int, int, int]:
        """The size that `padded` gives a step of these replies, and prompts with these tokens."""
        return size_of(replies, prompts, tokens, self._sizes, self.captured)

    def _with_windows(self, build: Callable[..., Graph]) -> tuple[Graph, WindowPool | None]:
        """The graph, in which layers with a window have pages of their own where that takes less memory; their pool."""
        graph, config = build(), self.config
        window = window_of(graph)
        most = most_pages(window, config.n_batch, self.n_ctx)
        if not window or most >= self._max_pages or isinstance(self.model, HeadSpec):
            return graph, None
        windows = WindowPool(window, most * config.max_sequences)
        windows.copier.copy_with(self._copy_window_page)
        return build(window_pages=True), windows

    @property
    def lock(self) -> AbstractContextManager[bool]:
        """Who has it has the engine for more than one step, and computes these itself."""
        return self.thread.lock

    def _copy_page(self, target: int, source: int) -> None:
        with self.lock:
            self.load().copy_page(target, source)

    def _copy_window_page(self, target: int, source: int) -> None:
        with self.lock:
            self.load().copy_page(target, source, "window_rows")

    def _copy_state(self, target: int, source: int) -> None:
        with self.lock:
            self.load().copy_state(target, source)

    def load(self) -> Executor:
        """Load the weights, with kernels for steps of one token, unless that is done; the first step does it too.

        Raises HostMemoryError, before any weight is read, where the system's memory does not hold them.
        """
        if self._executor is not None:
            return self._executor
        with self.lock:
            if self._executor is None:
                problem, short = "", None
                try:
                    with self._keeping() as mapped:
                        self._require_memory(mapped)
                        self._executor = self._loaded()
                except DeviceMemoryError as error:
                    problem = str(error)
                except MemoryError as error:
                    short = HostMemoryError(f"out of memory: {error}")
                if self._executor is None:  # out of the handler, so that what was loaded is free again
                    raise short or BackendError(f"{problem}; {self._placement.advice_after()}")
            return self._executor

    def require_memory(self) -> None:
        """Raise HostMemoryError, saying what would fit, unless the system's memory holds the model; reads no weight."""
        with self._keeping() as mapped:
            self._require_memory(mapped)

    def needs(self) -> Needs:
        """What the model takes once it is loaded; reads no weight."""
        needs = needs_of(self.schedule, self.backends, self.limits, self.ranks)
        if isinstance(self.model, HeadSpec):
            shared = {w.name: w.tensor.nbytes for w in self.graph.leaves("weight") if w.name in self._shared}
            rows = 0 if self.on_device else nbytes_of(self.model.width, self.config.max_sequences)
            needs = replace(needs, weights=max(0, needs.weights - sum(shared.values())), work=needs.work + rows)
        return needs if self._adapted_schedule is None else needs.beside(self._adapted_schedule, self.limits)

    def _keeping(self) -> AbstractContextManager[int]:
        if self.shares is not None:
            return nullcontext(0)
        return keeping_weights(self.model, self.schedule, self.backends, keep=self.config.weight_cache)

    def _require_memory(self, mapped: int) -> None:
        if self.shares is not None:  # counted with its model, before that was loaded
            return
        schedule, config = self.schedule, self.config
        require_memory(schedule, self.backends, self.limits, self.n_ctx, config, self.ranks, mapped)

    def call_on_rank_failure(self, tell: Callable[[RankError], None]) -> None:
        """Call `tell`, from another thread, when one of the other ranks ends by itself; there may be none."""
        if self._group is not None:
            self._group.call_on_failure(tell)

    def close(self) -> None:
        """End the other ranks, if there are any."""
        if self._group is not None:
            self._group.close()

    def _loaded(self) -> Executor:
        ahead = self.ranks == 1 and not self.config.embeds and compile_ahead(self.schedule, self.backends, self.limits)
        executor = self.executor_for(self.schedule, self.limits, (LOGITS,))
        if not ahead:
            executor.plan(ONE_TOKEN).make_ready()
        if self._adapted_schedule is not None:
            self._adapted = Executor(self._adapted_schedule, self.backends, self.limits, (LOGITS,), executor)
            self._adapted.plan(ONE_TOKEN).make_ready()
        return executor

    def step(self, feeds: Seq[Feed], watch: Watch | None = None) -> F32:
        """Append each feed's tokens to its sequence; logits [sum of outputs, n_vocab], sequences in the order given.

        `watch` sees what each node of `schedule.graph` is given, before it runs.
        Raises ContextFullError where a sequence would not fit, NonFiniteError where the model computed NaN or Inf.
        After an error every sequence is as it was.
        """
        return self.thread.run(lambda: self._step(feeds, watch))

    def _step(self, feeds: Seq[Feed], watch: Watch | None = None) -> F32:
        self._check(feeds)
        with self.appending(feeds):
            logits = self.compute(feeds, watch)
            if not np.isfinite(logits).all():
                raise self.not_finite()
            return logits

    def compute(self, feeds: Seq[Feed], watch: Watch | None = None) -> F32:
        """The logits of `step`, finite or not; the sequences get pages, but not yet their tokens."""
        if self._hidden and watch is None:
            (found,) = self.launch(feeds, (LOGITS,), check=False).read()
            return found
        inputs, sizes = self.batch(feeds)
        executor = self._executor_of(feeds)
        (logits,) = executor.run(inputs, sizes) if watch is None else executor.watch(inputs, sizes, watch)
        return logits

    def launch(
        self, feeds: Seq[Feed], outputs: tuple[int, ...], fed: Fed | None = None,
        more: DeviceAdjustments | DeviceDraws | None = None, *, check: bool = True,
    ) -> StepHandle:
        """Launch a step that makes some outputs of `top_k`; the sequences get pages, but not yet their tokens.

        `fed` are tokens on the device to take in place of the first ones of `feeds`; `more` is for outputs CHANGED and
        DRAWN.
        """
        if check:
            self._check(feeds)
        if self._hidden:
            feeds = self.ready(feeds)
        inputs, sizes = self._inputs(feeds, more)
        executor = self._executor_of(feeds)
        handle = executor.launch(inputs, sizes, (*outputs, *self._hidden), None if fed is None else {"tokens": fed})
        if not self._hidden:
            return handle
        return handed_over(handle, self) if self.head is None else kept(handle, places(feeds))

    def plan(
        self, feeds: Seq[Feed], outputs: tuple[int, ...], more: DeviceAdjustments | DeviceDraws | None = None
    ) -> Plan:
        """What `launch` runs for such a step."""
        return self._executor_of(feeds).plan(self._inputs(feeds, more)[1], (*outputs, *self._hidden))

    def _inputs(
        self, feeds: Seq[Feed], more: DeviceAdjustments | DeviceDraws | None
    ) -> tuple[dict[str, AnyArray], dict[str, int]]:
        inputs, sizes = self.batch(feeds)
        return (inputs, sizes) if more is None else (inputs | more.inputs(), sizes | more.sizes())

    @contextmanager
    def appending(self, feeds: Seq[Feed]) -> Iterator[None]:
        """A step of `feeds`: after it their sequences have the tokens, after an error they are as they were."""
        before = [len(f.sequence) for f in feeds]
        try:
            yield
        except BaseException:
            self.shrink([f.sequence for f in feeds], before)
            raise
        for feed in feeds:
            feed.sequence.tokens.extend(feed.tokens)

    def shrink(self, sequences: Seq[Sequence], lengths: Seq[int]) -> None:
        """Let sequences forget what is after these lengths."""
        for sequence, length in zip(sequences, lengths, strict=True):
            self.pool.shrink(sequence, length)

    def not_finite(self) -> NonFiniteError:
        return NonFiniteError(
            f"{self.model.file.path}: the model computed NaN or Inf; `octavo inspect --check` looks for it in "
            "the weights"
        )

    def batch(self, feeds: Seq[Feed]) -> tuple[dict[str, AnyArray], dict[str, int]]:
        """Pages for the new tokens, and the inputs and sizes of the step, which is to be run."""
        feeds = self.ready(feeds)
        if self.pool.states is not None:
            for feed in feeds:
                feed.sequence.seen = feed.stop
        width = self.model.width if isinstance(self.model, HeadSpec) else 0
        return make_batch(feeds, self._max_pages, self._adapters_of(feeds), width)

    def ready(self, feeds: Seq[Feed]) -> list[Feed]:
        """The same with pages for their tokens, and states that have seen all before these.

        Tokens that a state lacks are computed before the step; a few of them, as after a draft that was refused, in it.
        """
        for feed in feeds:
            if len(feed.sequence.tokens) + feed.ahead + len(feed.tokens) > feed.sequence.room:
                self.pool.grow(feed.sequence, feed.stop)
        if self.pool.states is None:
            return list(feeds)
        merges = not self.pads and self.pool.windows is None
        room, found = self.limits["tokens"] - sum(len(feed.tokens) for feed in feeds), list[Feed]()
        for feed in feeds:
            sequence = feed.sequence
            lacking = feed.start - sequence.seen
            if 0 < lacking <= min(FEW_LACKING, sequence.seen, room) and merges:
                room -= lacking
                tokens = [*sequence.tokens[sequence.seen :], *feed.tokens]
                found.append(Feed(sequence, tokens, feed.outputs, feed.ahead - lacking))
                continue
            if lacking:
                self._recompute_state(sequence)
                self.pool.grow(sequence, feed.stop)
                sequence.seen = feed.start
            found.append(feed)
        return found

    def _recompute_state(self, sequence: Sequence) -> None:
        """Compute what a sequence's state lacks; after a discarded step has changed it, all of it.

        Where pages before its window have been given back, those of its window are computed again as well.
        """
        done = sequence.seen if sequence.seen <= len(sequence) and self.pool.windows is None else 0
        again = Sequence(sequence.pages, sequence.tokens[:done], sequence.window, slot=sequence.slot)
        again.adapter = sequence.adapter
        lacking = self.pool.windows if sequence.window.given_back > 0 else None
        if lacking is not None:
            lacking.shrink(sequence.window, 0)
        for start in range(done, len(sequence), self.config.n_batch):
            chunk = sequence.tokens[start : start + self.config.n_batch]
            if lacking is not None:
                self.pool.grow(again, start + len(chunk))
            feeds = self.padded([Feed(again, chunk)])
            self._executor_of(feeds).run(*make_batch(feeds, self._max_pages, self._adapters_of(feeds)))
            again.tokens += chunk

    def _check(self, feeds: Seq[Feed]) -> None:
        if not feeds or len(feeds) > self.config.max_sequences:
            raise UsageError(f"{len(feeds)} sequences in a step (allowed: 1 to {self.config.max_sequences})")
        if len({id(f.sequence) for f in feeds}) < len(feeds):
            raise UsageError("a sequence occurs twice in one step")
        for feed in feeds:
            if not feed.tokens or not 0 <= feed.outputs <= len(feed.tokens):
                raise UsageError(f"a feed of {len(feed.tokens)} tokens has {feed.outputs} outputs")
            self.require_tokens(feed.tokens)
            length = len(feed.sequence) + len(feed.tokens)
            if length > self.n_ctx:
                raise ContextFullError(f"{length} tokens do not fit the context of {self.n_ctx}")
        total = sum(len(f.tokens) for f in feeds)
        if total > self.limits["tokens"]:
            raise UsageError(f"{total} tokens in a step (allowed: up to {self.limits['tokens']})")
        outputs = sum(f.outputs for f in feeds)
        if outputs > self.limits["outputs"]:
            raise UsageError(f"{outputs} outputs in a step (allowed: up to {self.limits['outputs']})")

    def require_tokens(self, tokens: Seq[int]) -> None:
        """Raise UsageError for a token that is not in the vocabulary."""
        n_vocab = self.model.hparams.n_vocab
        if tokens and not 0 <= min(tokens) <= max(tokens) < n_vocab:
            wrong = next(t for t in tokens if not 0 <= t < n_vocab)
            raise UsageError(f"token {wrong} is not in the vocabulary (allowed: 0 to {n_vocab - 1})")

    def _require_logits(self) -> None:
        if self.config.embeds:
            raise UsageError(f"{self.model.file.path} is loaded for embeddings and gives no logits")

    def prefill(self, sequence: Sequence, tokens: Seq[int], *, progress: Callable[[int], None] | None = None) -> F32:
        """Append a prompt in as many steps as it takes; logits [n_vocab] after its last token."""
        self._require_logits()
        if len(sequence) + len(tokens) > self.n_ctx:
            raise ContextFullError(
                f"the prompt of {len(sequence) + len(tokens)} tokens does not fit the context of {self.n_ctx}"
            )
        if not tokens:
            raise UsageError("the prompt has no tokens")
        start = len(sequence)
        size = self.config.n_batch
        launched = deque[StepHandle]()
        for i in range(0, len(tokens), size):
            feed = Feed(sequence, tokens[i : i + size], outputs=int(i + size >= len(tokens)))
            if feed.outputs:
                logits = self.step([feed])
            else:
                launched.append(self.thread.run(partial(self._launch_part, feed)))
            if len(launched) > len(self.stages):
                launched.popleft().read()
            if progress is not None:
                progress(len(sequence) - start)
        row: F32 = logits[-1]
        return row

    def _launch_part(self, feed: Feed) -> StepHandle:
        """Launch a step of a prompt of which nothing is read, so that the next one may be launched at once."""
        self._check([feed])
        with self.appending([feed]):
            return self.launch([feed], (LOGITS,), check=False)

    def logits(self, tokens: Seq[int]) -> F32:
        """Logits [n, n_vocab] after each of `tokens`, in a sequence of their own."""
        self._require_logits()
        if not tokens:
            raise UsageError("no tokens were given")
        if len(tokens) > self.n_ctx:
            raise ContextFullError(f"{len(tokens)} tokens do not fit the context of {self.n_ctx}")
        return self.thread.finish(self._logits(tokens), alone=True)

    def _logits(self, tokens: Seq[int]) -> Pieces[F32]:
        sequence, rows = Sequence(), list[F32]()
        size = min(self.config.n_batch, self.limits["outputs"])
        try:
            for i in range(0, len(tokens), size):
                chunk = tokens[i : i + size]
                rows.append(self._step([Feed(sequence, chunk, outputs=len(chunk))]))
                yield
            return np.concatenate(rows)
        finally:
            self.release(sequence)

    def release(self, sequence: Sequence) -> None:
        """Take back all pages of a sequence."""
        self.thread.run(lambda: self.pool.release(sequence))


def _group_of(communicator: Communicator) -> RankGroup | None:
    """The other ranks, where this engine is rank 0's; imported where there are any."""
    from octavo.runtime.parallel.group import group_of

    return group_of(communicator)
