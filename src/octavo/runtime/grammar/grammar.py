"""Grammars: what a reply may be, and which tokens may come next, on the `llguidance` package.

It is given the bytes of every token. Control tokens, and those that end a reply, never count as text, so a reply ends
only where its grammar does.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal, Self

import numpy as np

from octavo.errors import INSTALL_BASE, GrammarError, OctavoError, UsageError, import_failure
from octavo.jit.clock import clock
from octavo.runtime.grammar.host import Host
from octavo.runtime.grammar.json_schema import not_plain, read_schema
from octavo.runtime.grammar.workers import GrammarWorker
from octavo.runtime.output.thinking import AfterThinking, Thinking
from octavo.runtime.scheduler.constraint import Constraint
from octavo.text import Tokenizer

Kind = Literal["json_schema", "regex", "lark", "gbnf", "choice", "calls", "reply"]
Mask = np.ndarray[tuple[int], np.dtype[np.int32]]

MOST_CHARACTERS = 200_000
MOST_OF_CALLS = 1_000_000
"""Of grammars that are written for calls: 800 tools of four parameters have about that."""
MOST_CHOICES = 1000
COMPILED_KEPT, USABLE_KEPT = 16, 256
"""Grammars that were used last: requests with the same tools come again and again. Of more it is known that they can
be used."""
MOST_REPLIES = 8
"""Replies of a worker: with more there are others for the same grammar, which work at the same time."""
PATIENCE_S, LOOK_S = 0.002, 1.0
"""Seconds that a step waits for what may come next, and those between looks where nothing else is to be done."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply may be. Made by `json_schema`, `json_object`, `regex`, `lark`, `gbnf` or `choice`.

    `text` is the schema and the choices as JSON, the others as they were given. Of a grammar, `start` (Lark) or `root`
    (GBNF) is the whole reply. Kinds "calls" and "reply" are Lark that is written for tools, "reply" of a reply with the
    space that some models begin one with. A grammar is compiled, and its faults are found, where a model first uses it.
    """

    kind: Kind
    text: str

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any] | bool) -> Self:
        """A JSON value that is valid for a schema (JSON Schema 2020-12, but for what llguidance refuses by name)."""
        return cls("json_schema", json.dumps(read_schema(schema)))

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object."""
        return cls("json_schema", '{"type": "object"}')

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """A text that a regular expression matches as a whole, in the syntax of Rust's regex."""
        return cls("regex", _text("regex", pattern))

    @classmethod
    def lark(cls, text: str) -> Self:
        """A text of a grammar in llguidance's variant of Lark."""
        return cls("lark", _text("lark", text))

    @classmethod
    def gbnf(cls, text: str) -> Self:
        """A text of a grammar as llama.cpp writes them."""
        return cls("gbnf", _text("gbnf", text))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """One of several texts."""
        if isinstance(texts, str) or not all(isinstance(t, str) for t in texts) or not 0 < len(texts) <= MOST_CHOICES:
            raise GrammarError(f"choice is {str(texts)[:40]!r} (allowed: a list of 1 to {MOST_CHOICES} strings)")
        return cls("choice", _text("choice", json.dumps(list(texts), ensure_ascii=False)))


class Grammars:
    """Compiles grammars for a tokenizer, each once as long as it is among the last ones. Any thread may use it.

    That is done by processes which can be ended, see `grammar_workers`. With `nice` they get so much less of the
    processor where others want it.
    """

    def __init__(self, tokenizer: Tokenizer, nice: int = 0) -> None:
        self.tokenizer = tokenizer
        self._lock = Lock()
        self._host = Host(tokenizer, nice)
        self._workers: OrderedDict[tuple[Grammar, bool], GrammarWorker] = OrderedDict()
        self._usable: OrderedDict[bytes, None] = OrderedDict()

    def constraint(self, grammar: Grammar, thinking: Thinking | None = None) -> Constraint:
        """A constraint for one request; with `thinking` it begins after that.

        Raises GrammarError for a grammar that is invalid, too large, or that no token can begin, UsageError where
        llguidance is not installed, and HostMemoryError where the system has no room for a process.
        """
        found = self._matched(grammar, thinking)
        found.require()
        return self._after(found, thinking)

    def begin(self, grammar: Grammar, thinking: Thinking | None = None) -> Constraint:
        """`constraint` without waiting: whatever is wrong with the grammar `fill` says."""
        return self._after(self._matched(grammar, thinking), thinking)

    def check(self, grammar: Grammar, thinking: Thinking | None = None) -> None:
        """Raise what `constraint` raises; nothing is kept of a grammar but that it can be used."""
        spaced = self._spaced(grammar, thinking)
        key = hashlib.sha256(f"{grammar.kind} {spaced} {grammar.text}".encode("utf-8", "surrogatepass")).digest()
        with self._lock:
            if key in self._usable:
                self._usable.move_to_end(key)
                return
        Matched(self._worker(grammar, spaced), self.tokenizer.n_vocab).require()
        with self._lock:
            self._usable[key] = None
            if len(self._usable) > USABLE_KEPT:
                self._usable.popitem(last=False)

    def _spaced(self, grammar: Grammar, thinking: Thinking | None) -> bool:
        """Whether the first space of a reply, which is not shown, comes before what a grammar says."""
        first = (thinking is None or not thinking.begun) and grammar.kind != "reply"
        return first and self.tokenizer.add_space_prefix

    def _matched(self, grammar: Grammar, thinking: Thinking | None) -> Matched:
        key = grammar, self._spaced(grammar, thinking)
        with self._lock:
            worker = self._workers.get(key)
            if worker is None or len(worker.replies) >= MOST_REPLIES:
                worker = self._workers[key] = self._worker(*key)
            self._workers.move_to_end(key)
            if len(self._workers) > COMPILED_KEPT:
                self._workers.popitem(last=False)
            return Matched(worker, self.tokenizer.n_vocab)

    def _after(self, found: Matched, thinking: Thinking | None) -> Constraint:
        return found if thinking is None else AfterThinking(found, thinking, self.tokenizer)

    def _worker(self, grammar: Grammar, spaced: bool) -> GrammarWorker:
        if not self.tokenizer.stop_ids:
            raise GrammarError("the model has no token that ends a reply, so it can't follow a grammar")
        _require_llguidance()
        _text(grammar.kind, grammar.text)
        return GrammarWorker(self._host, {"kind": grammar.kind, "text": grammar.text, "spaced": spaced})

    def prepare(self) -> None:
        """Have the vocabulary read now, which takes a second or two of a large one.

        What is in the way (no llguidance, no room for a process, a closed model) the first grammar says.
        """
        with suppress(OctavoError):
            _require_llguidance()
            if self.tokenizer.stop_ids:
                self._host.start()


@dataclass(slots=True)
class _Next:
    """What may come next: a mask, tokens that are forced, whether a reply is complete, and why nothing may come."""

    mask: Mask
    stopped: bool
    forced: list[int]
    problem: str | None


class Matched:
    """A Constraint: what a worker says of its grammar. Where that fails, nothing may come.

    A token that is accepted is sent at once, so that what may come after it is found while other work is done.

    number  the worker's for it
    tokens  those that were accepted
    lost    workers that have ended while it was asked about
    """

    def __init__(self, worker: GrammarWorker, n_vocab: int) -> None:
        self._worker, self._words = worker, -(-n_vocab // 32)
        self.tokens: list[int] = []
        self.lost = 0
        self._sent = self._waiting = 0
        self._next: _Next | None = None
        self._ahead, self._asked_ahead = _Ahead(0, [], []), deque[_Ahead]()
        self._failure: OctavoError | None = None
        self._asked, self._quick = 0.0, True
        self.number = worker.add(self)

    def __del__(self) -> None:
        self._worker.left.append(self.number)

    @property
    def pending_mask(self) -> Matched | None:
        if self._known:
            return None
        if not self._waiting:
            if not self._worker.may_begin:
                return self
            self._begin()
        self._worker.take(0.0)
        if self._known:
            return None
        self._quick = self._quick and clock() <= self.due
        return self

    @property
    def _known(self) -> bool:
        return self._next is not None or self._failure is not None

    @property
    def due(self) -> float:
        return self._asked + PATIENCE_S * self._quick

    def fileno(self) -> int:
        return self._worker.fileno()

    def began_again(self) -> None:
        self._waiting, self._sent, self._next = 1, len(self.tokens), None
        self._asked_ahead.clear()

    def answered(self, op: str, found: Sequence[Any], masks: bytes) -> None:
        states = [
            _Next(np.frombuffer(masks, np.int32, self._words, 4 * self._words * i), *one) for i, one in enumerate(found)
        ]
        if op == "see":
            self._ahead = self._asked_ahead.popleft()
            self._ahead.states = states
            return
        self._waiting -= 1
        if not self._waiting:
            self._next = states[0]
            self._quick = self._quick or clock() - self._asked < PATIENCE_S

    def failed(self, why: OctavoError) -> None:
        self._failure = why

    def _begin(self) -> None:
        """Ask what may come after all tokens that there are."""
        self._go("open", self.tokens)

    def _go(self, op: str, tokens: Sequence[int]) -> None:
        self._next, self._asked = None, clock()
        try:
            self._worker.ask(self, op, tokens)
        except OctavoError as error:
            self.failed(error)
        self._sent, self._waiting = len(self.tokens), self._waiting + 1

    def _settled(self) -> _Next:
        """What may come next, once that is known. Raises what went wrong."""
        while self._next is None:
            self._require_worker()
            if not self._waiting:
                self._begin()
            else:
                self._worker.take(LOOK_S)
        self._require_worker()
        return self._next

    def _require_worker(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(*self._failure.args)

    def require(self) -> None:
        """Raise GrammarError where no token may come."""
        _require_some(self._settled())

    def fill(self, mask: Mask) -> None:
        _copy(self._settled(), mask)

    def fill_after(self, tokens: Sequence[int], mask: Mask) -> None:
        self._settled()
        wanted = [*self.tokens, *tokens]
        while self.pending_mask_after(tokens) is not None:
            if self._asked_ahead:
                self._worker.take(LOOK_S)
            else:
                self.foresee(tokens)
        self._require_worker()
        found = self._ahead.after(wanted) if tokens else self._settled()
        if found is None:
            raise GrammarError(f"token {wanted[self._ahead.end]} is not what the grammar allows")
        _copy(found, mask)

    def foresee(self, tokens: Sequence[int]) -> None:
        """Ask what may come after each of some tokens."""
        ahead = _Ahead(self._sent, [*self.tokens[self._sent :], *tokens], [])
        self._asked_ahead.append(ahead)
        try:
            self._worker.ask(self, "see", ahead.tokens)
        except OctavoError as error:
            self.failed(error)

    def pending_mask_after(self, tokens: Sequence[int]) -> Matched | None:
        if self._asked_ahead:
            self._worker.take(0.0)
        known = not tokens or self._failure is not None or self._ahead.has([*self.tokens, *tokens])
        return None if known else self

    def forced(self) -> list[int]:
        return [] if self._next is None else self._next.forced

    def accept(self, token: int) -> None:
        allowed = self._settled()
        _require_some(allowed)
        if not 0 <= token < 32 * self._words or not int(allowed.mask[token >> 5]) >> (token & 31) & 1:
            problem = f"token {token} is not what the grammar allows"
            self._failure = GrammarError(f"the grammar or schema can't be followed: {problem}")
            raise GrammarError(problem)
        self._next = None
        self.tokens.append(token)
        found = self._ahead.after(self.tokens)
        if found is None:
            self._go("go", self.tokens[self._sent :])
        else:
            self._next = found

    def replay(self, tokens: Sequence[int]) -> None:
        asked = self._known or self._waiting
        self.tokens += tokens
        if asked:
            self._go("go", tokens)

    @property
    def stopped(self) -> bool:
        with suppress(OctavoError):  # which `fill` raises
            return self._settled().stopped
        return False


@dataclass(slots=True)
class _Ahead:
    """What may come after each of some tokens, of which there were `begin` before, up to one that may not come."""

    begin: int
    tokens: list[int]
    states: list[_Next]

    @property
    def end(self) -> int:
        return self.begin + len(self.states)

    def has(self, tokens: Sequence[int]) -> bool:
        n = len(tokens) - self.begin
        return 0 < n <= len(self.tokens) and self.tokens[:n] == tokens[self.begin :]

    def after(self, tokens: Sequence[int]) -> _Next | None:
        """What may come after tokens; None where that is not known, or they may not come."""
        return self.states[len(tokens) - self.begin - 1] if len(tokens) <= self.end and self.has(tokens) else None


def _require_some(found: _Next) -> None:
    if found.problem is not None:
        raise GrammarError(found.problem)


def _copy(found: _Next, mask: Mask) -> None:
    """Fill a mask. Raises GrammarError where no token may come."""
    _require_some(found)
    mask[: len(found.mask)] = found.mask
    mask[len(found.mask) :] = 0


def _text(kind: str, given: str) -> str:
    written = kind in ("calls", "reply")
    most = MOST_OF_CALLS if written else MOST_CHARACTERS
    if not isinstance(given, str) or not given or len(given) > most:
        found = f"{len(given)} characters" if isinstance(given, str) else repr(given)[:40]
        what = "the grammar of all calls" if written else kind
        raise GrammarError(f"{what} is {found} (allowed: a string of 1 to {most} characters)")
    if not_plain(given) is not None:
        raise GrammarError(f"{kind} has a lone surrogate, which is not valid text")
    return given


def _require_llguidance() -> None:
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(f"grammars need llguidance: {import_failure('llguidance', error, INSTALL_BASE)}") from None
    del llguidance
