"""RankGroup: the processes of the other ranks, started, told what to do, and watched, by rank 0."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from threading import Condition, RLock, Thread, get_ident
from time import monotonic
from typing import Any
from weakref import WeakSet, finalize

from octavo.backends.cores import cores
from octavo.errors import RankError, UsageError, end_of_process
from octavo.formats.spec import AnyArray
from octavo.graph.communicator import Reduction
from octavo.graph.executor import Executor
from octavo.graph.node import Attention
from octavo.graph.protocol import Call
from octavo.runtime.parallel.messages import Failed, FromRank, Here, Load, Ready, RowPart, ToRank, encode, from_rank
from octavo.runtime.parallel.step_limit import LOOK_S, StepLimit, is_stopped

log = logging.getLogger("octavo")

GONE_S = 5.0
"""Seconds that a process may take to end once it is told to, or has said that it does."""
NOTICE_S = 3.0
"""Seconds in which the end of a rank is seen after a collective has failed."""
LEAST_CORES = 8
"""Ranks that share a machine's cores may be as many as these, or as this where it has fewer."""


class GroupCommunicator:
    """Rank 0's communicator of a stage, which a backend is made with before there are other ranks."""

    def __init__(self, group: RankGroup, ranks: int) -> None:
        self.group, self.rank, self.ranks = group, 0, ranks
        self.inner: Any = None

    @property
    def failure(self) -> str:
        return self.group.failure

    @property
    def captures(self) -> bool:
        """As that of ranks with a GPU each, see `GpuCommunicator`."""
        assert self.inner is not None
        return bool(self.inner.captures)

    def sum_calls(self, c: Any, x: Any, terms: Sequence[Any], out: Any) -> list[Call]:
        """As `GpuCommunicator`'s."""
        assert self.inner is not None
        calls: list[Call] = self.inner.sum_calls(c, x, terms, out)
        return calls

    def all_reduce(self, value: Any, reduction: Reduction) -> None:
        assert self.inner is not None
        self.inner.all_reduce(value, reduction)

    def all_gather(self, part: Any, out: Any) -> None:
        assert self.inner is not None
        self.inner.all_gather(part, out)

    def abort(self) -> None:
        if self.inner is not None:
            self.inner.abort()


@dataclass
class _Rank:
    """Another rank: its process, and the pipe to it; what it has said of itself."""

    number: int
    process: subprocess.Popen[bytes]
    pipe: Connection
    here: bool = False
    ready: Ready | None = None
    answer: RowPart | None = None
    words: str = ""


@dataclass
class _Shared:
    """What the thread that watches has in common with the group, to which it does not refer."""

    limit: StepLimit
    ranks: list[_Rank] = field(default_factory=list)
    changed: Condition = field(default_factory=Condition)
    failure: str = ""
    closing: bool = False
    owner: int = field(default_factory=os.getpid)
    on_failure: Callable[[RankError], None] | None = None
    communicators: Sequence[Any] = ()

    def fail(self, why: str) -> None:
        with self.changed:
            tell = None if self.failure else self.on_failure
            self.failure = self.failure or why
            self.changed.notify_all()
        self.let_go()
        if tell is not None:
            tell(RankError(why))

    def let_go(self) -> None:
        """End what rank 0 waits for on its devices, and its communicators."""
        for each in self.communicators:
            each.abort()


class RankGroup:
    """Ranks 1 to ranks - 1, processes of this machine, for a model whose rank 0 this process has; of `stages` each.

    They are started when the model is loaded, follow what `together` sends, and end with the group. Where one ends
    before, or fails, so do all: from then on each call raises RankError, which says which and why.
    """

    def __init__(
        self, ranks: int, stages: int = 1, *, device: str, threads: int | None, deterministic: bool = False,
        attention: Attention = "exact", step_timeout: float = 600.0,
    ) -> None:
        """`step_timeout`: seconds for a step, and for others to load what rank 0 has loaded; 0: no limit."""
        self.ranks, self.communicators = ranks, [GroupCommunicator(self, ranks) for _ in range(stages)]
        self.device, self.threads = device, threads
        self._deterministic, self._attention = deterministic, attention
        self._shared, self._lock, self._acting = _Shared(StepLimit(step_timeout)), RLock(), 0
        self.waits = self._shared.limit.counted
        self.executors = WeakSet[Executor]()
        """Those that lead: their captured steps end with the group, or NCCL's would not."""
        self._ended = finalize(self, _end, self._shared)

    def start(self, path: str, lora: tuple[tuple[str, float], ...], config: dict[str, Any]) -> None:
        """Start the other ranks, which load the model at `path` for this configuration, and find them.

        Raises UsageError for more than the machine can have, BackendError without torch, RankError where one ends.
        """
        from octavo.backends.gloo import open_store
        from octavo.backends.ranks import environment, has_cards, meet

        ranks, stages, shared = self.ranks, len(self.communicators), self._shared
        most = max(cores(), LEAST_CORES)
        if ranks > most and not has_cards(self.device, ranks * stages):
            problem = f"tensor_parallel is {ranks}, but this machine has {cores()} cores (allowed: 1 to {most})"
            raise UsageError(problem, argument="tensor_parallel")
        store = open_store()
        if shared.closing:
            raise RankError(shared.failure or "the other ranks have ended")
        environments, started = [environment(self.device, rank, ranks) for rank in range(1, ranks)], Future[None]()
        Thread(target=_start_and_watch, args=(shared, environments, started), name="ranks", daemon=True).start()
        started.result()
        for one in shared.ranks:
            self._told(one, encode(Load(
                one.number, ranks, stages, store.port, path, lora, self.device, self.threads, self._deterministic,
                self._attention, config,
            )))

        def meet_others() -> None:
            with shared.changed:
                while not shared.failure and not all(one.here for one in shared.ranks):
                    shared.changed.wait()
            if shared.failure:
                return
            try:
                found = meet(store, self.device, 0, ranks, stages)
                for outer, inner in zip(self.communicators, found, strict=True):
                    outer.inner = inner
                shared.communicators = found
            except Exception as error:
                shared.fail(f"the ranks did not find each other: {error}")
            with shared.changed:
                shared.changed.notify_all()

        Thread(target=meet_others, name="meeting", daemon=True).start()

    def wait_until_ready(self, collectives: str) -> None:
        """Wait until the others have loaded their parts. Raises RankError where one ends, or would not act as one."""
        shared = self._shared
        with self.waits(), shared.changed:
            while not shared.failure and not (
                shared.communicators and all(one.ready is not None for one in shared.ranks)
            ):
                shared.changed.wait()
        for one in shared.ranks:
            if one.ready is not None and one.ready.collectives != collectives:
                shared.fail(f"rank {one.number} exchanges other values than rank 0")
        self.require()

    def call_on_failure(self, tell: Callable[[RankError], None]) -> None:
        """Call `tell`, from a thread of the group's, when a rank ends or fails by itself."""
        with self._shared.changed:
            self._shared.on_failure, failed = tell, self._shared.failure
        if failed:
            tell(RankError(failed))

    @property
    def failure(self) -> str:
        """How a rank has ended or failed; empty while none has."""
        return self._shared.failure

    def require(self) -> None:
        """Raise RankError where a rank has ended, or in a process that was forked from the group's."""
        if os.getpid() != (owner := self._shared.owner):
            problem = f"the other ranks follow process {owner}, from which this one was forked"
            raise RankError(f"{problem}: load the model here")
        if self._shared.failure:
            self.close()
            raise RankError(self._shared.failure)

    @contextmanager
    def together(self, message: ToRank) -> Iterator[None]:
        """What is done inside, the others do too, as the message says.

        Where it fails here they wait for what never comes: then the group ends.
        """
        self.require()  # before the lock, which another thread may have had when this process was forked
        with self._lock, self.waits():
            self.require()
            data = encode(message)
            for one in self._shared.ranks:
                self._told(one, data)
            self._acting = get_ident()
            try:
                yield
            except BaseException as error:
                self._give_up(error)
                raise
            finally:
                self._acting = 0

    def ask(self, message: ToRank) -> list[AnyArray]:
        """What each of the others answers. Raises RankError where one ends."""
        shared = self._shared
        with self.together(message), shared.changed:
            while not shared.failure and not all(one.answer for one in shared.ranks):
                shared.changed.wait()
            answers = [one.answer.values.array() for one in shared.ranks if one.answer is not None]
            for one in shared.ranks:
                one.answer = None
        self.require()
        return answers

    @property
    def acts(self) -> bool:
        """Whether this thread is in `together`."""
        return self._acting == get_ident()

    def _told(self, rank: _Rank, data: bytes) -> None:
        try:
            rank.pipe.send_bytes(data)
        except OSError:
            self._give_up(None)

    def _give_up(self, error: BaseException | None) -> None:
        """Raise RankError of the rank that has ended, or end all because rank 0 has failed."""
        shared, until = self._shared, monotonic() + NOTICE_S
        if shared.closing and not shared.failure and (error is None or isinstance(error, RuntimeError)):
            raise RankError("the model was closed by another thread") from error
        with shared.changed:
            while not shared.failure and (error is None or isinstance(error, RuntimeError)) and monotonic() < until:
                shared.changed.wait(max(until - monotonic(), 0))
        if not shared.failure:
            shared.fail(f"rank 0 failed: {type(error).__name__}: {error}" if error is not None else "a rank is gone")
            self.close()
            return
        self.close()
        raise RankError(shared.failure) from error

    def close(self) -> None:
        """End the other ranks."""
        for executor in list(self.executors):
            executor.rebind()
        self._ended()


def group_of(communicator: object) -> RankGroup | None:
    """The group whose rank 0 has this communicator."""
    return communicator.group if isinstance(communicator, GroupCommunicator) else None


def _start(rank: int, environment: Mapping[str, str]) -> _Rank:
    """Start the process of a rank. Raises OSError where the system has no room for it."""
    if sys.platform == "win32":
        raise UsageError("tensor parallelism needs Linux or macOS: use one rank here", argument="tensor_parallel")
    ours, theirs = socket.socketpair()
    level = str(log.getEffectiveLevel())
    with theirs, ExitStack() as failing:
        failing.enter_context(ours)
        process = subprocess.Popen(
            [sys.executable, "-m", "octavo.runtime.parallel.follower", str(theirs.fileno()), str(os.getpid()), level],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, **environment},
        )
        failing.pop_all()
    return _Rank(rank, process, Connection(ours.detach()))


def _start_and_watch(shared: _Shared, environments: Sequence[Mapping[str, str]], started: Future[None]) -> None:
    """Start the ranks in a thread that lasts as long as they do: on Linux they are killed when it ends."""
    try:
        for rank, environment in enumerate(environments, 1):
            shared.ranks.append(_start(rank, environment))
    except BaseException as error:
        started.set_exception(error)
        return
    started.set_result(None)
    _watch(shared)


def _watch(shared: _Shared) -> None:
    """Take what ranks say, and see whether one ends, until all have."""
    open_pipes = {one.pipe: one for one in shared.ranks}
    while open_pipes and not shared.closing:
        if shared.limit.exceeded() and not shared.failure:
            shared.fail(_stuck(shared))
            for one in shared.ranks:  # rank 0 waits for them, and does not close the group
                one.process.kill()
        for pipe in wait(list(open_pipes), LOOK_S):
            assert isinstance(pipe, Connection)
            rank = open_pipes[pipe]
            try:
                said: FromRank = from_rank.decode(pipe.recv_bytes())
            except (EOFError, OSError):
                del open_pipes[pipe]
                if not shared.closing:
                    shared.fail(_end_of(rank, len(shared.ranks) + 1))
                continue
            if isinstance(said, Failed):
                rank.words = said.error
                continue
            with shared.changed:
                if isinstance(said, Here):
                    rank.here = True
                elif isinstance(said, Ready):
                    rank.ready = said
                else:
                    rank.answer = said
                shared.changed.notify_all()


def _end_of(rank: _Rank, ranks: int) -> str:
    """How a rank has ended, in words: its own, or its status."""
    with suppress(subprocess.TimeoutExpired):
        rank.process.wait(GONE_S)
    status, name = rank.process.returncode, f"rank {rank.number} of {ranks} (process {rank.process.pid})"
    if rank.words:
        return f"{name} failed: {rank.words}"
    return f"{name} {'closed its pipe' if status is None else end_of_process(status)}"


def _stuck(shared: _Shared) -> str:
    """Which of the others keeps a step from its end, as far as the system tells."""
    ranks = len(shared.ranks) + 1
    stopped = [f"rank {one.number} of {ranks} (process {one.process.pid}) is stopped"
               for one in shared.ranks if is_stopped(one.process.pid)]
    return f"{', '.join(stopped) or f'one of the {ranks} ranks is stuck'}: no step has ended for " \
           f"{shared.limit.seconds:g} s"


def _end(shared: _Shared) -> None:
    """Shut the pipes down, at which processes end by themselves, and kill those that don't."""
    if os.getpid() != shared.owner:
        return  # forked from it
    shared.closing = True
    for one in shared.ranks:
        if shared.failure:
            one.process.kill()
        with suppress(OSError), socket.socket(fileno=os.dup(one.pipe.fileno())) as pipe:
            pipe.shutdown(socket.SHUT_RDWR)  # which the thread that watches sees, unlike a descriptor that is closed
    until = monotonic() + GONE_S
    for one in shared.ranks:
        try:
            one.process.wait(max(until - monotonic(), 0))
        except subprocess.TimeoutExpired:
            one.process.kill()
            with suppress(subprocess.TimeoutExpired):
                one.process.wait(GONE_S)
    shared.let_go()
