"""The thread of an engine: calls in the order in which they came, what they raise, and when the thread ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import traceback
import weakref

import pytest

import octavo
from octavo.errors import UsageError
from octavo.runtime.engine.thread import NAME, EngineThread, Pieces
from tests.limits import HANG_S


def in_pieces(said: list[str], name: str, n: int) -> Pieces[int]:
    try:
        for _ in range(n):
            said.append(name)
            yield
        return n
    finally:
        said.append(f"{name} ends")


def test_calls_come_in_turn_and_pieces_between_them() -> None:
    thread, said = EngineThread(), list[str]()
    results = dict[str, int]()

    def asks(name: str, n: int, *, alone: bool) -> threading.Thread:
        queued = thread._calls.qsize()
        asker = threading.Thread(
            target=lambda: results.update({name: thread.finish(in_pieces(said, name, n), alone=alone)})
        )
        asker.start()
        while thread._calls.qsize() == queued:
            pass
        return asker

    thread.run(lambda: None)  # the thread begins
    with thread.lock:  # it waits with the first call
        first = threading.Thread(target=lambda: thread.run(lambda: said.append("first")))
        first.start()
        while thread._calls.qsize():
            pass
        askers = [asks("a", 2, alone=False), asks("b", 2, alone=True), asks("c", 1, alone=False)]
        thread.run(lambda: said.append("here"))
    for asker in (first, *askers):
        asker.join(HANG_S)
    assert said == ["here", "first", "a", "b", "b", "b ends", "c", "a", "c ends", "a ends"]
    assert results == {"a": 2, "b": 2, "c": 1}
    thread.end()


def test_an_error_comes_as_it_was_raised() -> None:
    thread = EngineThread()

    def fails() -> None:
        raise UsageError("no")

    with pytest.raises(UsageError, match="no") as raised:
        thread.run(fails)
    names = [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert names == ["test_an_error_comes_as_it_was_raised", "run", "finish", "_whole", "fails"]
    kept = weakref.ref(raised.value)
    del raised
    assert kept() is None, "something else than this test refers to it"
    assert thread.run(lambda: 3) == 3
    thread.end()


def threads() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


@pytest.mark.slow
def test_a_model_that_is_dropped_ends_its_thread(alphabet_path: str) -> None:
    gc.collect()
    before = threads()
    for _ in range(3):
        model = octavo.load(alphabet_path, device="reference", n_ctx=64)
        thread = model.engine.thread
        assert not thread._serving.locked(), "it begins when it is wanted"
        assert model.generate([ord("w")], temperature=0.0).text == "xyz"
        assert thread._serving.locked()
        engine = weakref.ref(model.engine)
        model.close()
        del model
        gc.collect()
        assert engine() is None
        assert thread._serving.acquire(timeout=HANG_S)
    while threads() > before:  # what is left of it is threading's own
        pass


def printed(script: str) -> tuple[int, list[str], list[str]]:
    """The status of a process of its own, and what it prints, but for the word on kernels."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script],
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    told = [line for line in done.stderr.splitlines() if "compiling kernels" not in line]
    return done.returncode, done.stdout.splitlines(), told


ENDS = """
import atexit, threading, time
import octavo

atexit.register(lambda: print(model.generate("12*7", temperature=0.0, max_tokens=4).text == text))  # is called last
model = octavo.load("demo", device="cpu", threads=2, n_ctx=512)
text = model.generate("12*7", temperature=0.0, max_tokens=4).text
inside, step = threading.Event(), model.core.step

def slow():
    inside.set()
    time.sleep(0.2)
    print(len(step()))
    return []

model.core.step = slow
threading.Thread(target=lambda: model.generate("47*38", max_tokens=400).text, daemon=True).start()
inside.wait()
atexit.register(lambda: setattr(model.core, "step", step))
"""


def test_an_interpreter_that_ends_waits_for_the_step() -> None:
    assert printed(ENDS) == (0, ["1", "True"], [])


FORKS = """
import os, sys
import octavo

def said():
    return model.generate("12*7", temperature=0.0, max_tokens=4).text

model = octavo.load("demo", device="cpu", threads=2, n_ctx=64)
text = said()
child = os.fork()
if not child:
    sys.exit(said() != text or model.generate_many(["12*7"], temperature=0.0, max_tokens=4)[0].text != text)
print(os.waitpid(child, 0)[1], said() == text)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    assert printed(FORKS) == (0, ["0 True"], [])


def test_a_forked_process_is_not_in_the_step_of_another_thread() -> None:
    thread = EngineThread()

    def steps() -> None:
        with thread.lock:
            thread.in_step = True
            thread.forked()

    steps()
    assert thread.in_step, "the thread that forked is in it"
    thread.in_step = True
    thread.forked()
    assert thread.run(lambda: 7) == 7
    thread.end()
