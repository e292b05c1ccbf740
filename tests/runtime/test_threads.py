"""Several threads on one model, and several generations in a thread: all get right results, and nobody hangs."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import UsageError
from octavo.jit import prepare
from octavo.runtime import Model, conversation
from octavo.runtime.scheduler.request import Request, RequestOutput
from tests.limits import HANG_S
from tests.runtime.tiny import ALPHABET, END

GREEDY: Any = {"temperature": 0.0}
QUESTIONS = ("12*7", "5/0", "47 times 38")


def together(*work: Callable[[], Any], timeout: float = HANG_S) -> list[Any]:
    """What each gives, all run at the same time in threads of their own."""
    start = threading.Barrier(len(work))

    def begin(run: Callable[[], Any]) -> Any:
        start.wait()
        return run()

    with ThreadPoolExecutor(len(work)) as threads:
        return [done.result(timeout=timeout) for done in [threads.submit(begin, run) for run in work]]


def test_threads_on_the_cpu_get_right_results() -> None:
    with octavo.load("demo", device="cpu", threads=1, n_ctx=128) as model:
        tokens = [list(range(3 + i, 70 + i)) for i in range(3)]
        logits = [model.logits(t) for t in tokens]
        replies = [model.generate(q, max_tokens=8, **GREEDY).text for q in QUESTIONS]

        def computes(i: int) -> Callable[[], bool]:
            return lambda: all(np.array_equal(model.logits(tokens[i]), logits[i]) for _ in range(2))

        def says(i: int) -> Callable[[], bool]:
            return lambda: model.generate(QUESTIONS[i], max_tokens=8, **GREEDY).text == replies[i]

        assert together(*(computes(i) for i in range(3))) == [True] * 3
        assert together(computes(0), *(says(i) for i in range(3))) == [True] * 4


WITHOUT_OPENMP = """
import sys
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import octavo, octavo.ops
from octavo.jit import prepare

if sys.argv[1] == "without":
    sys.modules["numba.np.ufunc.omppool"] = None  # as where the system has no libgomp: importing it fails
a = np.arange(640, dtype=np.int8).reshape(10, 64)
one = np.float32(1)
with octavo.load("demo", device="cpu", threads=2, n_ctx=64) as model:
    work = [lambda: model.logits(list(range(3, 40))).sum(), lambda: octavo.ops.int8_gemm(a, a, one, one).sum()]
    with ThreadPoolExecutor(4) as threads:
        results = [run.result() for run in [threads.submit(work[i % 2]) for i in range(16)]]
print(prepare.layer(), results)
"""


def printed(script: str, *arguments: str) -> str:
    """What a process of its own prints."""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=HANG_S).stdout


@pytest.mark.slow
def test_without_openmp_threads_are_numbas_own() -> None:
    def said(how: str) -> tuple[str, str]:
        layer, _, results = printed(WITHOUT_OPENMP, how).partition(" ")
        return layer, results

    (layer, results), (usual, wanted) = said("without"), said("with")
    assert (layer, usual) == ("workqueue", prepare.layer())
    assert results == wanted


IDLE = """
import time
import octavo

def idle():
    model.logits([1, 2, 3])
    before = time.process_time()
    time.sleep(0.02)
    return time.process_time() - before

with octavo.load("demo", device="cpu", threads=2, n_ctx=64) as model:
    print(min(idle() for _ in range(5)))
"""


def test_threads_that_wait_sleep() -> None:
    assert float(printed(IDLE)) < 0.001


def test_generations_of_one_thread_take_turns(alphabet: Model) -> None:
    first, second = alphabet.generate("hi", **GREEDY), alphabet.generate([ord("w")], **GREEDY)
    assert [next(first) + next(second) for _ in range(3)] == ["ax", "by", "cz"]
    assert first.text == ALPHABET
    abandoned = alphabet.generate("hi", **GREEDY)
    next(abandoned)
    assert alphabet.generate("hi", **GREEDY).text == ALPHABET
    assert abandoned.text == ALPHABET


def test_a_thread_waits_for_the_generation_that_another_one_reads(
    alphabet: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first token is made after the other's last, whichever of the two computes the steps."""
    made: list[int | None] = []
    step = alphabet.core.step

    def noted() -> list[RequestOutput]:
        outputs = step()
        made.extend(output.token for output in outputs)
        return outputs

    monkeypatch.setattr(conversation, "PATIENCE", 1000.0)  # however long this thread is kept from asking
    monkeypatch.setattr(alphabet.core, "step", noted)
    running = alphabet.generate("hi", **GREEDY)
    assert next(running) == "a"
    with ThreadPoolExecutor(1) as threads:
        reply = threads.submit(lambda: alphabet.generate([ord("w")], **GREEDY).text)
        assert running.text == ALPHABET
        assert reply.result(timeout=HANG_S) == "xyz"
    assert made == [*map(ord, ALPHABET), END, *map(ord, "xyz"), END]


def test_replies_that_threads_read_share_steps(alphabet_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have begun, as long as somebody is about to ask for more of them."""
    monkeypatch.setattr(conversation, "PATIENCE", 1000.0)
    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=3, speculate="off") as model:
        alone = [model.generate([ord(c)], **GREEDY).text for c in "abc"]
        before = model.core.steps
        generations = [model.generate([ord(c)], **GREEDY) for c in "abc"]
        assert [next(g) for g in generations] == [text[0] for text in alone]
        assert together(*(lambda g=g: g.text for g in generations)) == alone
        assert model.core.steps - before == 2 + max(len(g.tokens) for g in generations), "the first three are alone"
        assert (model.engine.pool.held, model.core.scheduler.idle) == (0, True)


@pytest.mark.parametrize("rounds", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_replies_are_read_and_left_at_once(alphabet_path: str, rounds: int) -> None:
    """More threads than places and pages, which read replies, close them, drop them, break off and want all at once."""
    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=2) as model:
        want = {c: model.generate([ord(c)], **GREEDY).text for c in "adghklvw"}

        def uses(seed: int) -> Callable[[], bool]:
            return lambda: all(use_somehow(model, want, random.Random(f"{seed}, {i}")) for i in range(rounds))

        assert together(*(uses(seed) for seed in range(5))) == [True] * 5
        gc.collect()  # replies that errors still refer to
        assert model.generate([ord("w")], **GREEDY).text == "xyz", "this drops those that were left"
        assert (model.engine.pool.held, model.core.scheduler.idle) == (0, True)


def use_somehow(model: Model, want: dict[str, str], draw: random.Random) -> bool:
    """Have a reply or several made, to the end or not; whether they are what is wanted."""
    letters = draw.sample(sorted(want), 3)
    replies, texts = [model.generate([ord(c)], **GREEDY) for c in letters], [want[c] for c in letters]
    first, way = replies[0], draw.choice(["close", "drop", "break", "fail", "side by side", "all", "read"])
    if draw.randrange(2):
        assert next(first) == texts[0][0]
    if way == "side by side":
        while [None for reply in replies if next(reply, None)]:
            pass
        return [reply.text_so_far for reply in replies] == texts
    if way == "all":
        return [reply.text for reply in model.generate_many([[ord(c)] for c in letters], **GREEDY)] == texts
    if way in ("read", "close"):
        return first.text == texts[0] if way == "read" else first.close() is None
    for _ in first:
        if way == "break":
            break
        if way == "fail":
            with pytest.raises(ZeroDivisionError):
                [1 // 0 for _ in first]
    return texts[0].startswith(first.text_so_far)


@pytest.mark.parametrize(
    "where", ["engine.compute", "core.scheduler.commit", "core.scheduler._take", "core.scheduler.schedule"]
)
def test_an_interrupted_step_leaves_the_model_usable(
    alphabet: Model, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    left, generation = alphabet.generate("hi", **GREEDY), alphabet.generate("hi", **GREEDY)
    assert next(left) + next(generation) == "aa"
    (*path, name), owner = where.split("."), alphabet
    for part in path:
        owner = getattr(owner, part)
    whole = getattr(owner, name)

    def interrupted(*args: Any, **more: Any) -> Any:
        monkeypatch.undo()
        if name != "compute":  # before and after differ there
            whole(*args, **more)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(generation)
    assert (list(generation), generation.finish_reason) == ([], "interrupted")
    assert left.text == ALPHABET
    assert alphabet.generate("hi", **GREEDY).text == ALPHABET
    assert (alphabet.engine.pool.held, alphabet.core.scheduler.idle) == (0, True)


def test_nobody_waits_long_for_a_generation_that_nobody_reads(alphabet: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "PATIENCE", 0.01)
    left = alphabet.generate("hi", **GREEDY)
    assert next(left) == "a"
    (reply,) = together(lambda: alphabet.generate([ord("w")], **GREEDY).text)
    assert reply == "xyz"
    assert left.text == ALPHABET, "it goes on where it was"


def test_a_generation_goes_from_thread_to_thread(alphabet: Model) -> None:
    generation = alphabet.generate("hi", **GREEDY)
    assert together(lambda: next(generation)) == ["a"]
    assert together(lambda: next(generation)) == ["b"]
    assert generation.text == ALPHABET


def test_one_generation_in_two_threads_is_refused(alphabet: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, goes_on = threading.Event(), threading.Event()
    run = alphabet.engine.load().run

    def slow(*args: Any) -> Any:
        inside.set()
        assert goes_on.wait(HANG_S)
        return run(*args)

    monkeypatch.setattr(alphabet.engine.load(), "run", slow)
    generation = alphabet.generate("hi", **GREEDY)
    with ThreadPoolExecutor(1) as threads:
        reply = threads.submit(lambda: list(generation))
        assert inside.wait(HANG_S)
        try:
            with pytest.raises(UsageError, match="already iterating over"):
                list(generation)
        finally:
            goes_on.set()
        assert reply.result(timeout=HANG_S) == list(ALPHABET)


def test_close_ends_a_generation_that_another_thread_reads(alphabet: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    generation = alphabet.generate("hi", **GREEDY)
    run, steps = alphabet.engine.load().run, []

    def closing(*args: Any) -> Any:
        steps.append(1)
        if len(steps) == 3:
            together(generation.close)
        return run(*args)

    monkeypatch.setattr(alphabet.engine.load(), "run", closing)
    assert list(generation) == ["a", "b", "c"]
    assert generation.finish_reason == "interrupted"
    assert alphabet.generate("hi", **GREEDY).text == ALPHABET


def test_logits_take_pages_that_a_reply_holds_and_the_reply_goes_on(alphabet_path: str) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=64) as model:
        generation = model.generate("hi", **GREEDY)
        assert next(generation) == "a"
        assert model.logits(list(range(64))).shape[0] == 64
        assert generation.text == ALPHABET


@pytest.mark.parametrize("use", ["generate", "several", "logits", "embed"])
def test_what_a_step_calls_is_refused_the_model(alphabet_path: str, use: str) -> None:
    """As a sampler or a finalizer. It used to take the tokens of other replies, or what their logits lie in."""
    uses: dict[str, Callable[[], Any]] = {
        "generate": lambda: model.generate("hi", **GREEDY).text,
        "several": lambda: model.generate_many(["hi"], **GREEDY),
        "logits": lambda: model.logits([1, 2]),
        "embed": lambda: model.embed("hi", pooling="mean"),
    }
    refused = []

    def sampler(logits: Any, tokens: Any) -> int:
        with pytest.raises(UsageError, match="by a callback of its own step") as found:
            uses[use]()
        refused.append(found)
        return int(logits.argmax())

    with octavo.load(alphabet_path, device="reference", n_ctx=64, max_sequences=2) as model:
        requests = [Request([ord("w")], sampler), Request([ord("a")], sampler)]
        for request in requests:
            model.core.add(request)
        model.engine.thread.run(lambda: [*model.core.step(), *model.core.step()])
        assert [bytes(request.tokens) for request in requests] == [b"wxy", b"abc"]
        assert len(refused) == 4
        for request in requests:
            model.core.cancel(request)
        assert model.generate("hi", **GREEDY).text == ALPHABET
        assert (model.engine.pool.held, model.core.scheduler.idle) == (0, True)
