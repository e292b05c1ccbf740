"""The processes that llguidance runs in: what it is given may crash it, never end, or take all memory.

The first one, `python -m octavo.runtime.grammar.grammar_process`, reads the vocabulary and then only forks: a worker
for each grammar, which compiles it and makes the masks of replies. A worker ends with the socket that it was given, or
where a signal ends it that its limits send. So nothing but what is asked of that grammar is lost.

Messages are a header, JSON, and bytes; see `framed`. A worker is asked
    open ID TOKENS   for a reply, after some tokens: answered with what may come next
    go ID TOKENS     to go on with them: answered likewise
    see ID TOKENS    what may come after each of them: answered with that for each, up to one that may not come
    close ID         to forget a reply: not answered
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import pickle
import re
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, NamedTuple

from octavo.errors import GrammarError, TokenizerError
from octavo.runtime.grammar.closed_schema import closed
from octavo.runtime.grammar.json_schema import read_schema, require_finite
from octavo.text import Tokenizer

COMPILE_S, TOKEN_S, REPLAYED_S = 1.0, 0.25, 0.01
"""Seconds of processor time: to compile a grammar, for what may come next, and for each token of several."""
SLOW_S, EARNED_S, SLOW_NICE = 0.008, 0.002, 10
"""Seconds of processor time after which a worker gets less of the processor where others want it, and those that it may
take more for each answer."""
MEMORY, STACK = 256 << 20, 64 << 20
"""Bytes that a grammar may take, and those of the stack."""
LIMITS = {
    "initial_lexer_fuel": 300_000, "step_lexer_fuel": 50_000, "max_lexer_states": 40_000, "max_grammar_size": 200_000,
    "max_items_in_row": 6000, "verbose_errors": False,
}
"""Limits for llguidance, which most grammars meet that are too much: it says what it has no room for. An optional
property of an object is four items of a row, so that the 1,000 that a schema may have need twice its usual limit."""
JSON = {"whitespace_pattern": r" |\n[ \t]{0,20}", "whitespace_flexible": True}
"""White space in JSON: a space, or a line with what it is indented by, so that a reply is not filled with it."""

FRAME = struct.Struct("<II")
"""Before a message: the bytes of its header, and those after that."""
FORKED = struct.Struct("<Ii")
"""A worker's number; to the first process with what it is to do, and from it with how it ended: as `os.waitpid` tells,
or NO_FORK."""
NO_FORK = -1
REFUSED = "doesn't satisfy the grammar"
"""What llguidance says of a token, and not of what it has no room for."""
_SHOWN = re.compile(r"\n\s*\d+ \| .*", re.DOTALL)


def framed(header: Any, payload: bytes = b"") -> bytes:
    """A message."""
    data = json.dumps(header).encode()
    return FRAME.pack(len(data), len(payload)) + data + payload


def main() -> None:
    """Run with the numbers of two descriptors: a socket, and a file with the vocabulary's metadata, pickled.

    And with how much less of the processor workers get from the start, see SLOW_NICE.
    """
    import resource  # which Windows lacks

    for name in ("SIGINT", "SIGTERM", "SIGHUP"):  # they are for whoever started it, whose end is its own
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # a limit of workers, which the server's engine ignores
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    control = socket.socket(fileno=int(sys.argv[1]))
    with open(int(sys.argv[2]), "rb") as file:
        file.seek(0)
        tokenizer = Tokenizer.from_metadata(pickle.load(file))
    vocabulary = GrammarVocabulary.of(tokenizer)
    gc.collect()
    gc.freeze()  # so that pages stay shared with workers
    _fork_workers(control, vocabulary, int(sys.argv[3]))


class _Child(NamedTuple):
    number: int
    pid: int


def _fork_workers(control: socket.socket, vocabulary: GrammarVocabulary, nice: int) -> None:
    """Fork a worker whenever one is asked for, and tell how each ends, until the socket is closed, which ends them all.

    Each has a pipe, on which it says that it is slow; its end is the pipe's.
    """
    poll, children = select.poll(), dict[int, _Child]()
    poll.register(control, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd != control.fileno():
                child = children[fd]
                if os.read(fd, 64):
                    with suppress(OSError):
                        os.setpriority(os.PRIO_PROCESS, child.pid, SLOW_NICE)
                    continue
                poll.unregister(fd)
                os.close(fd)
                del children[fd]
                control.sendall(FORKED.pack(child.number, os.waitpid(child.pid, 0)[1]))
                continue
            asked, given, _, _ = socket.recv_fds(control, FORKED.size, 2)
            if not asked:
                for child in children.values():
                    os.kill(child.pid, signal.SIGKILL)
                return
            number, _ = FORKED.unpack(asked)
            reads, writes = os.pipe()
            try:
                pid = os.fork()
            except OSError:
                os.close(reads)
                control.sendall(FORKED.pack(number, NO_FORK))
            else:
                if not pid:
                    for one in (control.detach(), reads, *children):
                        os.close(one)
                    os.nice(nice)
                    _be_worker(vocabulary, writes, *given)
                children[reads] = _Child(number, pid)
                poll.register(reads, select.POLLIN)
            for one in (writes, *given):
                os.close(one)


def _be_worker(vocabulary: GrammarVocabulary, pipe: int, sock: int, file: int) -> None:
    """Take what is asked on a socket, of the grammar in a file."""
    try:
        os.set_blocking(pipe, False)
        signal.signal(signal.SIGVTALRM, lambda *_: None)
        signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)  # written to in the middle of a call, too
        _limit_memory()
        with open(file, "rb") as source, socket.socket(fileno=sock) as channel:
            source.seek(0)
            _Worker(vocabulary, channel).run(json.loads(source.read()))
    finally:
        os._exit(0)


def _limit_memory() -> None:
    import resource

    with suppress(OSError, ValueError):  # where the system has no such limits
        _, most = resource.getrlimit(resource.RLIMIT_STACK)
        resource.setrlimit(resource.RLIMIT_STACK, (STACK if most < 0 else min(STACK, most), most))
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        size = pages * os.sysconf("SC_PAGE_SIZE") + MEMORY + STACK
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _limit_time(seconds: float) -> None:
    """End this process once it has computed for so long from now."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    left, _ = signal.getitimer(signal.ITIMER_VIRTUAL)
    signal.setitimer(signal.ITIMER_VIRTUAL, min(left + EARNED_S, SLOW_S))


class _Worker:
    """The replies of a grammar."""

    def __init__(self, vocabulary: GrammarVocabulary, channel: socket.socket) -> None:
        self._vocabulary, self._channel = vocabulary, channel
        self._replies: dict[int, Any] = {}
        self._mask = ctypes.create_string_buffer(4 * vocabulary.words)
        self._empty = bytes(4 * vocabulary.words)

    def run(self, source: dict[str, Any]) -> None:
        """Compile a grammar, say what is wrong with it if something is, and answer until nothing more is asked."""
        _limit_time(COMPILE_S)
        try:
            compiled = self._vocabulary.compiled(**source)
            self._require_first(compiled)
        except GrammarError as error:
            self._channel.sendall(framed(str(error)))
            return
        except MemoryError:
            self._channel.sendall(framed("the grammar or schema can't be used: it takes too much memory"))
            return
        except BaseException as error:  # a panic is not an Exception
            said = brief(str(error)) or type(error).__name__
            self._channel.sendall(framed(f"the grammar or schema can't be used: {said}"))
            return
        self._channel.sendall(framed(None))
        with self._channel.makefile("rb") as asked:
            while len(head := asked.read(FRAME.size)) == FRAME.size:
                op, number, *rest = json.loads(asked.read(sum(FRAME.unpack(head))))
                if op == "close":
                    self._replies.pop(number, None)
                    continue
                tokens: list[int] = rest[0]
                _limit_time(TOKEN_S + REPLAYED_S * len(tokens))
                if op == "open":
                    self._replies[number] = compiled.deep_copy()
                try:
                    answer = (self._after_each if op == "see" else self._after)(self._replies[number], tokens)
                except BaseException as error:
                    said = brief(str(error)) or type(error).__name__
                    answer = framed([[False, [], f"the grammar or schema can't be followed: {said}"]], self._empty)
                self._channel.sendall(answer)

    def _require_first(self, compiled: Any) -> None:
        """Raise GrammarError where no token begins, or what may come after the first one is too much to follow."""
        _, _, problem = self._next(compiled)
        if problem is None:
            first, byte = next((i, byte) for i, byte in enumerate(self._mask.raw) if byte)
            problem = _taken(compiled.deep_copy(), [8 * first + (byte & -byte).bit_length() - 1])
        if problem is not None:
            raise GrammarError(problem)

    def _after(self, reply: Any, tokens: Sequence[int]) -> bytes:
        problem = _taken(reply, tokens)
        if problem is not None:
            return framed([[False, [], problem]], self._empty)
        return framed([self._next(reply)], self._mask.raw)

    def _after_each(self, reply: Any, tokens: Sequence[int]) -> bytes:
        found, masks, taken = list[Any](), list[bytes](), 0
        for token in tokens:
            if not reply.try_consume_tokens([token]):
                break
            taken += 1
            found.append(self._next(reply))
            masks.append(self._mask.raw)
        if taken:
            reply.rollback(taken)
        return framed(found, b"".join(masks))

    def _next(self, reply: Any) -> tuple[bool, list[int], str | None]:
        """Whether a reply is complete, which tokens are forced, and why none may come; the mask is in `_mask`."""
        stopped = bool(reply.is_stopped())
        reply.unsafe_compute_mask_ptr(ctypes.addressof(self._mask), len(self._mask))
        problem = None
        if reply.is_error():
            problem = f"the grammar or schema can't be followed: {brief(reply.get_error())}"
        elif not stopped and self._mask.raw == self._empty:
            problem = "the grammar or schema can't be followed: no token of the vocabulary can come next"
        forced = [] if stopped or problem is not None else list(reply.compute_ff_tokens())
        return stopped, forced, problem


def _taken(reply: Any, tokens: Sequence[int]) -> str | None:
    """Go on by tokens: what is wrong with one of them, if something is."""
    for token in tokens:
        if not reply.consume_token(token):
            said = reply.get_error()
            problem = f"token {token} is not what the grammar allows" if REFUSED in said else CANT_FOLLOW
            return f"{problem}: {brief(said)}"
    return None


CANT_FOLLOW = "the grammar or schema can't be followed"


class GrammarVocabulary:
    """A tokenizer with the attributes that llguidance looks for, and as llguidance has it itself."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self.words = tokenizer, -(-tokenizer.n_vocab // 32)
        self.eos_token_id, self.bos_token_id = min(tokenizer.stop_ids), tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        self.special_token_ids = [*{*tokenizer.special_ids, *tokenizer.stop_ids}]

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> GrammarVocabulary:
        """With all that workers need, so that they have it from the first process."""
        found = cls(tokenizer)
        _ = found._compiled, found._longest
        return found

    @cached_property
    def _compiled(self) -> Any:
        from llguidance import LLTokenizer

        ends: Any = sorted(self._tokenizer.stop_ids)
        return LLTokenizer(self, n_vocab=self._tokenizer.n_vocab, eos_token=ends)  # type: ignore[arg-type]

    def compiled(self, kind: str, text: str, spaced: bool) -> Any:
        """A matcher of a grammar. Raises GrammarError.

        spaced: before what the grammar says comes the first space of a reply, which is not shown.
        """
        from llguidance import LLMatcher, LLParserLimits

        grammars = [_source(kind, text)]
        if spaced:
            grammars = [
                {"lark_grammar": '%llguidance {"no_forcing": true}\nstart: " " @answer'},
                {**grammars[0], "name": "answer"},
            ]
        whole = json.dumps({"grammars": grammars}, ensure_ascii=False)
        limits = LLParserLimits(**LIMITS)  # type: ignore[arg-type]
        matcher = LLMatcher(self._compiled, whole, log_level=0, limits=limits)
        if matcher.is_error():
            raise GrammarError(f"the grammar or schema can't be used: {brief(matcher.get_error())}")
        return matcher

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text in the middle of a reply."""
        data = text.encode() if isinstance(text, str) else text
        try:
            ids = self._tokenizer.encode(data.decode(), add_special=False, parse_special=False, continued=True)
        except (TokenizerError, UnicodeDecodeError):
            return self._longest_first(data)
        exact = b"".join(self.tokens[i] for i in ids) == data  # some tokenizers change letters
        return ids if exact else self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        """The ids of a text, each the longest token that it goes on with; bytes that no token has are left out."""
        ids, at = [], 0
        while at < len(data):
            ends = range(min(at + self._longest, len(data)), at, -1)
            end = next((end for end in ends if data[at:end] in self._by_bytes), None)
            if end is not None:
                ids.append(self._by_bytes[data[at:end]])
            at = end or at + 1
        return ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {text: i for i, text in enumerate(self.tokens) if text and i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=1)


def _source(kind: str, text: str) -> dict[str, Any]:
    """A grammar as a part of one of llguidance's. Raises GrammarError."""
    if kind == "json_schema":
        from llguidance import LLMatcher

        schema = read_schema(text)
        require_finite(schema)
        text = json.dumps(closed(schema))
        made = LLMatcher.grammar_from_json_schema(text, defaults=JSON, overrides={"lenient": False})  # type: ignore[arg-type]
        part: dict[str, Any] = json.loads(made)["grammars"][0]
        return part
    return {"lark_grammar": _LARK[kind](text)}


def _lark_of_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # it is written for grammars that are right
        raise GrammarError(f"the GBNF grammar can't be read: {brief(str(error) or type(error).__name__)}") from None


def _lark_of_regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(pattern, use_ascii='d')}/"


def _lark_of_choice(texts: str) -> str:
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(texts))


_LARK: dict[str, Callable[[str], str]] = {
    "lark": str, "calls": str, "reply": str, "gbnf": _lark_of_gbnf, "regex": _lark_of_regex,
    "choice": _lark_of_choice,
}


def brief(message: str) -> str:
    """What llguidance says, without the lines of the grammar that it shows at the end."""
    return " ".join(_SHOWN.sub("", message).split())[:200]


if __name__ == "__main__":
    main()
