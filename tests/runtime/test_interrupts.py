"""A model is usable after an interrupt at any moment: the same results come, no page is lost, and nobody hangs."""

from __future__ import annotations

import gc
import linecache
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import octavo
from octavo import runtime
from octavo.backends.reference import ReferenceBackend
from octavo.runtime import EngineConfig, Model
from octavo.runtime.cache.page_pool import Sequence
from octavo.runtime.loading import open_model
from tests.limits import HANG_S
from tests.runtime import tiny
from tests.runtime.stateful import write_with_tokenizer
from tests.runtime.tiny import ALPHABET
from tests.sampling import slow

GREEDY: Any = {"temperature": 0.0}
RUNTIME = str(Path(runtime.__file__).parent)
PROMPT, OTHER = list(b"An interrupt may come between any two lines. " * 3), list(b"w")
ANSWER: Any = {"max_tokens": 4, **GREEDY}


def read_in_a_loop(model: Model) -> str:
    text = ""
    for piece in model.generate(PROMPT, **ANSWER):
        text += piece
    return text


def read_side_by_side(model: Model) -> list[str]:
    first, second = model.generate(PROMPT, **ANSWER), model.generate(OTHER, **ANSWER)
    return [next(first) + next(second), first.text, second.text]


def streamed(model: Model) -> list[str]:
    texts = ["", "", ""]
    for i, piece in model.stream_many([PROMPT, OTHER, "hi"], **ANSWER):
        texts[i] += piece
    return texts


USES: dict[str, Callable[[Model], Any]] = {
    "generate": lambda m: m.generate(PROMPT, **ANSWER).text,
    "stream": read_in_a_loop,
    "side by side": read_side_by_side,
    "chat": lambda m: m.generate([{"role": "user", "content": "hi"}], **ANSWER).text,
    "grammar": lambda m: m.generate("hi", grammar=octavo.Grammar.regex("ab|cd"), **ANSWER).text,
    "several": lambda m: [reply.text for reply in m.generate_many([PROMPT, OTHER, "hi"], **ANSWER)],
    "several, as they come": streamed,
    "logits": lambda m: m.logits(PROMPT[:9]).tobytes(),
    "embed": lambda m: m.embed(["a text", "another"], pooling="mean").tobytes(),
    "tokens": lambda m: [rows.tobytes() for rows in m.embed_tokens(["a text", "another"])],
}


def counts(frame: FrameType, event: str) -> bool:
    """Whether there is a line to be interrupted at. That of `with` comes again before the block is left, where Python
    calls no handler."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno) if event == "line" else ""
    return bool(line) and not line.lstrip().startswith("with ")


def after_lines(n: int, work: Callable[[], Any]) -> bool:
    """Do work, which is interrupted when this thread comes to the n-th line of `octavo.runtime`; whether it does."""
    left = n

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.startswith(RUNTIME):
            return None
        if counts(frame, event):
            left -= 1
            if not left:
                raise KeyboardInterrupt
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left <= 0  # one in a finalizer is seen by nobody


def lines_of(work: Callable[[], Any]) -> int:
    """How many lines of `octavo.runtime` this thread comes to."""
    lines = 0

    def count(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if not frame.f_code.co_filename.startswith(RUNTIME):
            return None
        lines += counts(frame, event)
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work()
    finally:
        sys.settrace(before)
    return lines


def require_as_before(model: Model) -> None:
    """After another reply all pages are empty or cached, and nobody waits or is under way."""
    gc.collect()  # replies that were left unfinished
    model.generate(OTHER, **ANSWER).text  # noqa: B018
    pool, scheduler = model.engine.pool, model.core.scheduler
    assert (pool.held, scheduler.idle) == (scheduler.kept, True)
    assert pool.empty + pool.cached + scheduler.kept == pool.n_pages
    if pool.windows is not None:
        scheduler.forget()
        assert pool.windows.free == pool.windows.n_pages
    if pool.states is not None:
        model.engine.prefixes.clear()
        assert pool.states.free == pool.states.n_slots


def interrupts(n_lines: int, most: int, full: bool) -> Iterator[int]:
    """The lines to be interrupted at: all of them, or this many."""
    yield from range(1, n_lines + 1, 1 if full else max(1, n_lines // most))


@pytest.mark.few(1)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("use", [use if use in ("generate", "side by side") else slow(use) for use in USES])
def test_at_any_line(alphabet_path: str, use: str, full: bool) -> None:
    with octavo.load(alphabet_path, device="reference", n_ctx=192) as model:
        want, again = USES[use](model), lambda: USES[use](model)
        assert again() == want
        lines = lines_of(again)
        for n in interrupts(lines, 8, full):
            after_lines(n, again)
            assert again() == want, n
            require_as_before(model)
        assert not after_lines(10 * lines, again), "the last line was reached"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Models whose layers have states or a window, and one that looks its drafts up; how each is loaded."""
    folder = tmp_path_factory.mktemp("others")
    endless = tiny.write(folder / "endless.gguf", weights=tiny.alphabet(endless=True))
    return {
        "states": {"path": write_with_tokenizer("lfm2-1.2b", folder / "states.gguf")},
        "window": {"path": write_with_tokenizer("gemma3-4b", folder / "window.gguf"), "n_ctx": 8192},
        "drafts": {"path": endless, "speculate": "lookup"},
        "two": {"path": endless, "max_sequences": 2},
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["states", *map(slow, ("window", "drafts", "two"))])
def test_at_any_line_of_other_models(others: dict[str, Any], kind: str) -> None:
    with octavo.load(**{"device": "reference", "n_ctx": 256, **others[kind]}) as model:
        assert (model.engine.pool.windows is not None) == (kind == "window")

        def use() -> str:
            return model.generate(PROMPT, **{**ANSWER, "max_tokens": 40}).text

        want = use()
        for n in interrupts(lines_of(use), 5, full=False):
            after_lines(n, use)
            assert use() == want, n
            require_as_before(model)


class Interrupter:
    """Interrupts the main thread now and then, by a signal, while `armed`."""

    def __init__(self, most: float) -> None:
        self.armed, self.hits, self._most = False, 0, most
        self._draw, self._ends = random.Random(0), threading.Event()

    def __enter__(self) -> Interrupter:
        self._before = signal.signal(signal.SIGUSR1, self._hit)
        self._thread = threading.Thread(target=self._run, args=(threading.get_ident(),))
        self._thread.start()
        return self

    def _run(self, thread: int) -> None:
        while not self._ends.wait(self._draw.random() * self._most):
            if self.armed:
                signal.pthread_kill(thread, signal.SIGUSR1)

    def _hit(self, number: int, frame: object) -> None:
        if self.armed:
            self.armed, self.hits = False, self.hits + 1
            raise KeyboardInterrupt

    def __exit__(self, *exception: object) -> None:
        self.armed = False
        self._ends.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    def arm_after(self, event: threading.Event) -> None:
        self.armed = event.wait(HANG_S)

    def over(self, work: Callable[[], Any]) -> None:
        """Do work, which may be interrupted."""
        try:
            self.armed = True
            work()
        except KeyboardInterrupt:
            pass
        finally:
            self.armed = False


needs_signals = pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="there are no such signals")


@needs_signals
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("hits", [50, pytest.param(2000, marks=pytest.mark.slow)])
def test_by_signals_at_random_moments(alphabet_path: str, hits: int) -> None:
    """Everything that a model is asked for, in turn, while another thread reads its own reply."""
    with octavo.load(alphabet_path, device="reference", n_ctx=256, max_sequences=2) as model:
        want = {use: do(model) for use, do in USES.items()}
        stop, draw = threading.Event(), random.Random(1)

        def reads() -> set[str]:
            texts = {model.generate("hi", **GREEDY).text}
            while not stop.is_set():
                texts.add(model.generate("hi", **GREEDY).text)
            return texts

        with ThreadPoolExecutor(1) as threads, Interrupter(0.02) as interrupter:
            other, until = threads.submit(reads), time.monotonic() + HANG_S
            try:
                while interrupter.hits < hits and time.monotonic() < until:
                    use = draw.choice(list(USES))
                    interrupter.over(lambda use=use: USES[use](model))
                    use = draw.choice(list(USES))
                    assert USES[use](model) == want[use]
            finally:
                stop.set()
            assert other.result(timeout=HANG_S) == {ALPHABET}
        require_as_before(model)


@needs_signals
def test_one_who_waits_for_a_step_need_not_wait_for_its_end(alphabet: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the step end before it is done; then the model goes on."""
    inside, goes_on, run = threading.Event(), threading.Event(), alphabet.engine.load().run

    def slow(*args: Any) -> Any:
        inside.set()
        assert goes_on.wait(HANG_S)
        return run(*args)

    generation = alphabet.generate("hi", **GREEDY)
    next(generation)
    monkeypatch.setattr(alphabet.engine.load(), "run", slow)
    with Interrupter(0.001) as interrupter:
        threading.Thread(target=interrupter.arm_after, args=(inside,)).start()
        with pytest.raises(KeyboardInterrupt):
            next(generation)
    assert (inside.is_set(), goes_on.is_set()) == (True, False)
    assert (generation.finish_reason, list(generation), generation.text) == ("interrupted", [], "a")
    goes_on.set()
    assert alphabet.generate("hi", **GREEDY).text == ALPHABET
    assert (alphabet.engine.pool.held, alphabet.core.scheduler.idle) == (0, True)


@needs_signals
def test_steps_that_nobody_waits_for_are_not_computed(alphabet_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(alphabet_path, [ReferenceBackend()], EngineConfig(n_ctx=256, n_batch=8))
    run, steps = model.engine.load().run, list[int]()
    with model, Interrupter(0.001) as interrupter:

        def noted(*args: Any) -> Any:
            steps.append(1)
            interrupter.armed = len(steps) == 2
            while interrupter.armed:
                time.sleep(0.001)
            return run(*args)

        monkeypatch.setattr(model.engine.load(), "run", noted)
        for work in (lambda: model.generate_many(["hi", "hey"], **GREEDY), lambda: model.logits(range(200))):
            steps.clear()
            with pytest.raises(KeyboardInterrupt):
                work()
            model.engine.release(Sequence())  # which comes after what was asked for before
            assert len(steps) == 2
            assert np.isfinite(model.logits([1, 2])).all()
        require_as_before(model)
