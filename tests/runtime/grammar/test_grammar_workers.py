"""What grammars and schemas do to the processes that read them is nobody else's matter."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from random import Random
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import GGUFError, GrammarError, HostMemoryError
from octavo.runtime import Grammar
from octavo.runtime.grammar import host as grammar_host
from octavo.runtime.grammar import workers as grammar_workers
from octavo.runtime.grammar.deadlines import wait_for
from octavo.runtime.grammar.grammar import COMPILED_KEPT, MOST_REPLIES, Grammars, Matched
from octavo.runtime.grammar.grammar_process import SLOW_NICE
from octavo.runtime.grammar.host import Host
from octavo.runtime.grammar.json_schema import read_schema, require_finite
from octavo.runtime.grammar.workers import FATAL
from octavo.runtime.scheduler.constraint import Constraint
from octavo.text import Tokenizer
from tests.limits import HANG_S, processor_time
from tests.runtime import tiny
from tests.runtime.grammar.grammar_walk import allowed_tokens

TOKENIZER = Tokenizer.from_metadata(tiny.TOKENIZER)
PATTERNS = ["a[bc]{3}d", "[0-9]{2,5}x", "(yes|no|never)!", "[a-z]{4}"]


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(TOKENIZER)


def rules(n: int) -> str:
    """This many rules, each of which goes on with the next one."""
    return "start: a0\n" + "\n".join(f'a{i}: "x" a{i + 1} | "y"' for i in range(n)) + f'\na{n}: "z"'


def references(n: int) -> str:
    """This many schemas, each of which refers to the next one, none of them with many entries."""
    defs: dict[str, Any] = {}
    where = "#/$defs/{}/$defs/{}".format
    for i in range(n + 1):
        one = {"anyOf": [{"$ref": where((i + 1) // 900, i + 1)}, {}]} if i < n else {}
        defs.setdefault(str(i // 900), {"$defs": {}})["$defs"][str(i)] = one
    return json.dumps({"$ref": where(0, 0), "$defs": defs}, separators=(",", ":"))


HOSTILE: dict[str, Callable[[], Grammar]] = {
    "3,000 rules in a row": lambda: Grammar.lark(rules(3000)),
    "1,700 references": lambda: Grammar.json_schema(references(1700)),
    "never compiled": lambda: Grammar.lark('start: "a" " " "b"\n%ignore /[ ]+/'),
    "never followed": lambda: Grammar.lark('start: /[a-z]{5}/ " " "b"\n%ignore /[ ]+/'),
    "compiled for seconds": lambda: Grammar.gbnf("root ::= " + " | ".join(['"a"'] * 25_000)),
    "masks of seconds": lambda: Grammar.gbnf("root ::= (root){0,3} | [^a]*"),
    "counted and counted": lambda: Grammar.lark("start: /((((a{1,99}){1,99}){1,99}b){1,99}){1,99}/"),
}


@pytest.mark.few(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_grammar_ends_nothing_but_its_own_reply(grammars: Grammars, name: str) -> None:
    """It can be used, or it can not, which is said; another reply goes on."""
    other = grammars.constraint(Grammar.regex("[ab]{600}"))
    draw, steps = Random(1), 0
    with suppress(GrammarError):
        constraint = grammars.constraint(HOSTILE[name]())
        while steps < 40 and not constraint.stopped:
            steps += 1
            constraint.accept(draw.choice(sorted(allowed_tokens(constraint, TOKENIZER))))
    other.accept(ord("a"))
    assert allowed_tokens(other, TOKENIZER) == {ord("a"), ord("b")}


def test_what_takes_too_long_says_so(grammars: Grammars) -> None:
    with pytest.raises(GrammarError, match="takes more than 1 s of CPU time to compile"):
        grammars.constraint(HOSTILE["never compiled"]())
    constraint = grammars.constraint(HOSTILE["never followed"]())
    for letter in "abcde":
        constraint.accept(ord(letter))
    with pytest.raises(GrammarError, match=r"takes more than 0.25 s of CPU time for a token"):
        allowed_tokens(constraint, TOKENIZER)
    with pytest.raises(GrammarError, match="for a token"):
        constraint.accept(ord(" "))
    assert not constraint.stopped


def test_only_the_reply_that_is_asked_about_fails(grammars: Grammars) -> None:
    """Others of the same grammar go on from where they are."""
    first, second, third = (grammars.constraint(HOSTILE["never followed"]()) for _ in range(3))
    for letter in "abc":
        first.accept(ord(letter))
        third.accept(ord(letter))
    for letter in "abcde":
        second.accept(ord(letter))
    third.accept(ord("d"))
    with pytest.raises(GrammarError, match="for a token"):
        allowed_tokens(second, TOKENIZER)
    letters = set(b"abcdefghijklmnopqrstuvwxyz")
    assert letters <= allowed_tokens(first, TOKENIZER)
    first.accept(ord("d"))
    assert letters <= allowed_tokens(first, TOKENIZER) == allowed_tokens(third, TOKENIZER)


def test_whose_memory_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is said to be one."""
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("[ab]{9}"))
    os.kill(worker_of(constraint), signal.SIGSEGV)
    constraint.accept(ord("a"))
    with pytest.raises(GrammarError, match=r"nested too deep, or takes more than 256 MiB \(SIGSEGV\)"):
        allowed_tokens(constraint, TOKENIZER)


def worker_of(constraint: Constraint) -> int:
    """The process of the only worker that there is."""
    assert isinstance(constraint, Matched)
    host = constraint._worker._host.process
    assert host is not None
    with open(f"/proc/{host.pid}/task/{host.pid}/children") as file:
        (child,) = file.read().split()
    return int(child)


def test_a_worker_and_a_host_that_somebody_ends() -> None:
    """Replies go on with others."""
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("[ab]{9}c"))
    assert isinstance(constraint, Matched)
    constraint.accept(ord("a"))
    os.kill(worker_of(constraint), signal.SIGKILL)
    for _ in range(4):
        constraint.accept(ord("b"))
    host = grammars._host.process
    assert host is not None
    host.kill()
    host.wait()
    os.kill(other := worker_after(grammars), signal.SIGKILL)
    for _ in range(4):
        assert allowed_tokens(constraint, TOKENIZER) == {ord("a"), ord("b")}
        constraint.accept(ord("a"))
    assert allowed_tokens(constraint, TOKENIZER) == {ord("c")}
    assert grammars._host.process is not None
    assert grammars._host.process.pid not in (host.pid, other)


def worker_after(grammars: Grammars) -> int:
    """The process of a new worker."""
    return worker_of(grammars.constraint(Grammar.regex("[xy]")))


@pytest.mark.slow
def test_hundreds_of_grammars_that_nobody_asks_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """How workers ended is told, and taken, so that there is room for what is told next."""
    monkeypatch.setattr(grammar_host, "ENDS_KEPT", 4)
    grammars = Grammars(TOKENIZER)
    for i in range(320):
        grammars.check(Grammar.choice([f"{i}"]))
    assert len(grammars._host._ended) <= 4


def test_how_a_worker_ended_is_waited_for_by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the process that forks them has no time to tell."""
    monkeypatch.setattr(grammar_workers, "TOLD_S", 10 * HANG_S)
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("[ab]{9}"))
    assert grammars._host.process is not None
    os.kill(host := grammars._host.process.pid, signal.SIGSTOP)
    try:
        os.kill(worker_of(constraint), signal.SIGKILL)
        constraint.accept(ord("a"))
        for _ in range(20):
            assert constraint.pending_mask is not None
            wait_for([constraint.pending_mask], 0.01)
    finally:
        os.kill(host, signal.SIGCONT)
    while (late := constraint.pending_mask) is not None:
        wait_for([late], 1.0)
    assert allowed_tokens(constraint, TOKENIZER) == {ord("a"), ord("b")}


def test_one_that_is_ended_again_and_again_fails() -> None:
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("[ab]{9}"))
    with suppress(GrammarError):
        for _ in range(FATAL + 1):
            os.kill(worker_of(constraint), signal.SIGKILL)
            constraint.accept(ord("a"))
            allowed_tokens(constraint, TOKENIZER)
    with pytest.raises(GrammarError, match="the process that makes masks ended"):
        allowed_tokens(constraint, TOKENIZER)
    assert allowed_tokens(grammars.constraint(Grammar.regex("[ab]{9}")), TOKENIZER) == {ord("a"), ord("b")}


def test_an_answer_that_never_comes(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that does not even compute."""
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("[ab]{9}"))
    monkeypatch.setattr(grammar_workers, "LONGEST_S", 0.2)
    os.kill(stopped := worker_of(constraint), signal.SIGSTOP)
    try:
        constraint.accept(ord("a"))
        with pytest.raises(GrammarError, match="takes longer than 0 s"):
            allowed_tokens(constraint, TOKENIZER)
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_no_process_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    grammars = Grammars(TOKENIZER)
    with monkeypatch.context() as broken:
        broken.setattr(grammar_host.subprocess, "Popen", refused)
        grammars.prepare()
        with pytest.raises(HostMemoryError, match="can't start a process for grammars: Resource temporarily"):
            grammars.constraint(Grammar.regex("a"))
        late = grammars.begin(Grammar.regex("a"))
        assert late.pending_mask is None
        with pytest.raises(HostMemoryError, match="a process for grammars"):
            allowed_tokens(late, TOKENIZER)
    assert allowed_tokens(grammars.constraint(Grammar.regex("a")), TOKENIZER) == {ord("a")}


def test_a_model_that_is_closed_before_its_vocabulary_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    with octavo.load("demo", device="reference") as model:
        grammars = Grammars(model.tokenizer)
    with pytest.raises(GGUFError, match="the file is closed"):
        model.tokenizer.metadata()
    grammars.prepare()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("place", ["_send", "_answer", "_take"])
def test_an_interrupt_in_the_middle_of_a_message(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    grammars = Grammars(TOKENIZER)
    constraint, other = (grammars.constraint(Grammar.regex("[ab]{3}c")) for _ in range(2))
    assert isinstance(constraint, Matched)
    worker = constraint._worker
    other.accept(ord("a"))
    with monkeypatch.context() as interrupted:

        def interrupt(*_: object) -> None:
            interrupted.undo()
            raise KeyboardInterrupt

        interrupted.setattr(worker, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            (constraint.accept(ord("a")), allowed_tokens(constraint, TOKENIZER))
    for _ in range(2):
        other.accept(ord("b"))
        assert allowed_tokens(constraint, TOKENIZER) == {ord("a"), ord("b")}
    assert allowed_tokens(other, TOKENIZER) == {ord("c")}


def test_a_forked_process_has_workers_of_its_own() -> None:
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("[ab]{3}c"))
    constraint.accept(ord("a"))
    pid = os.fork()
    if not pid:
        try:
            constraint.accept(ord("b"))
            right = allowed_tokens(constraint, TOKENIZER) == {ord("a"), ord("b")}
            del constraint, grammars
            os._exit(0 if right else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    constraint.accept(ord("a"))
    constraint.accept(ord("a"))
    assert allowed_tokens(constraint, TOKENIZER) == {ord("c")}


def test_a_grammar_that_is_compiled_is_waited_for_by_nobody(grammars: Grammars) -> None:
    constraint = grammars.begin(Grammar.choice(["left", "right"]))
    while (late := constraint.pending_mask) is not None:
        wait_for([late], 1.0)
    assert allowed_tokens(constraint, TOKENIZER) == {ord("l"), ord("r")}
    bad = grammars.begin(Grammar.regex("("))
    while (late := bad.pending_mask) is not None:
        wait_for([late], 1.0)
    with pytest.raises(GrammarError, match="unclosed"):
        allowed_tokens(bad, TOKENIZER)


@pytest.mark.slow
def test_not_many_are_compiled_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the ones that nobody waits for."""
    monkeypatch.setattr(grammar_workers, "MOST_COMPILING", 2)
    grammars, started = Grammars(TOKENIZER), list[int]()
    monkeypatch.setattr(Host, "worker", recorded(Host.worker, started))
    constraints = [grammars.begin(HOSTILE["never compiled"]()), *(grammars.begin(Grammar.regex(f"{i}")) for i in "123")]
    for constraint in constraints:
        _ = constraint.pending_mask
    assert len(started) == 2
    for _ in range(200):
        if all(constraint.pending_mask is None for constraint in constraints):
            break
        wait_for([late for one in constraints if (late := one.pending_mask) is not None], 0.1)
    assert len(started) == 4
    assert [allowed_tokens(one, TOKENIZER) for one in constraints[1:]] == [{ord(i)} for i in "123"]


def recorded(method: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def call(*given: Any) -> Any:
        calls.append(1)
        return method(*given)

    return call


def test_a_schema_is_read_by_nobody_who_begins_with_it(grammars: Grammars) -> None:
    """It may be large, and other replies wait."""
    constraint = grammars.begin(Grammar("json_schema", "{"))
    with pytest.raises(GrammarError, match="not valid JSON"):
        allowed_tokens(constraint, TOKENIZER)


@pytest.mark.parametrize("ends", [True, False])
def test_the_time_to_follow_references_grows_with_their_number(ends: bool) -> None:
    parts = {str(n): {"$defs": {str(i): to_next(n, i) for i in range(900)}} for n in range(2)}
    chain: dict[str, Any] = {"$ref": "#/$defs/0/$defs/0", "$defs": parts}
    if ends:
        parts["1"]["$defs"]["899"] = {}
    with processor_time(1.0), nullcontext() if ends else pytest.raises(GrammarError, match="no finite value"):
        require_finite(read_schema(chain))


def to_next(n: int, i: int) -> dict[str, Any]:
    """A reference to the schema after the `i`th of the `n`th 900, and from the last one to the first."""
    after = (900 * n + i + 1) % 1800
    return {"$ref": f"#/$defs/{after // 900}/$defs/{after % 900}"}


def test_workers_that_give_way_from_the_start() -> None:
    grammars = Grammars(TOKENIZER, SLOW_NICE)
    constraint = grammars.constraint(Grammar.regex("[xy]"))
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, worker_of(constraint)) == min(own + SLOW_NICE, 19)


def test_a_grammar_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, started = Grammars(TOKENIZER), list[int]()
    monkeypatch.setattr(Host, "worker", recorded(Host.worker, started))
    first, second = (grammars.constraint(Grammar.regex("ab")) for _ in range(2))
    first.accept(ord("a"))
    assert allowed_tokens(second, TOKENIZER) == {ord("a")}
    assert allowed_tokens(first, TOKENIZER) == {ord("b")}
    assert len(started) == 1
    for i in range(COMPILED_KEPT):
        grammars.constraint(Grammar.choice([f"{i}"]))
    grammars.constraint(Grammar.regex("ab"))
    assert len(started) == 2 + COMPILED_KEPT, "only the last ones are kept"


def test_many_replies_have_several_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars, started = Grammars(TOKENIZER), list[int]()
    monkeypatch.setattr(Host, "worker", recorded(Host.worker, started))
    replies = [grammars.constraint(Grammar.regex("a[bc]d")) for _ in range(2 * MOST_REPLIES + 1)]
    assert len(started) == 3
    for reply in replies:
        reply.accept(ord("a"))
    assert all(allowed_tokens(reply, TOKENIZER) == {ord("b"), ord("c")} for reply in replies)


def test_what_is_checked_is_not_kept(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    started = list[int]()
    monkeypatch.setattr(Host, "worker", recorded(Host.worker, started))
    for _ in range(2):
        grammars.check(Grammar.regex("check(ed)?"))
    assert len(started) == 1
    for _ in range(2):
        with pytest.raises(GrammarError, match="unclosed"):
            grammars.check(Grammar.regex("check("))


@pytest.mark.parametrize("stopped", [False, True])
def test_workers_end_with_whoever_asks_them(stopped: bool) -> None:
    """Also in the middle of something."""
    grammars = Grammars(TOKENIZER)
    constraint = grammars.constraint(Grammar.regex("ab"))
    worker, host = worker_of(constraint), grammars._host.process
    if stopped:
        os.kill(worker, signal.SIGSTOP)
    assert host is not None
    del constraint, grammars
    assert host.returncode is not None
    for _ in range(600):
        if not os.path.exists(f"/proc/{worker}") or state_of(worker) == "Z":
            break
        time.sleep(0.1)
    else:
        raise AssertionError("the worker goes on")


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_foreseen_is_what_comes(grammars: Grammars, pattern: str) -> None:
    """Masks after tokens are those that come once these are accepted; so is what is known of the end."""
    one, other = (grammars.constraint(Grammar.regex(pattern)) for _ in range(2))
    assert isinstance(one, Matched)
    ahead, came = (np.empty(-(-TOKENIZER.n_vocab // 32), np.int32) for _ in range(2))
    draw, tokens = Random(5), list[int]()
    for _ in range(3):
        tokens.append(draw.choice(sorted(allowed_tokens(other, TOKENIZER))))
        other.accept(tokens[-1])
    one.foresee(tokens)
    for i, token in enumerate(tokens):
        one.fill_after(tokens[i : i + 1], ahead)
        one.accept(token)
        one.fill(came)
        np.testing.assert_array_equal(ahead, came)
    other.fill(came)
    np.testing.assert_array_equal(ahead, came)
    assert one.stopped == other.stopped
    with pytest.raises(GrammarError, match="token 0 is not what the grammar allows"):
        one.fill_after([0], ahead)
