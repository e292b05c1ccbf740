"""Work beside replies: vectors of texts and likelihoods, in pieces between the steps of replies."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.backends.cpu import CpuBackend
from octavo.formats import QTensor
from octavo.runtime import Model
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.sampling.sampler import SamplingParams, make_sampler
from octavo.runtime.scheduler.prefill_budget import MIN_CHUNK
from octavo.runtime.scheduler.request import Request
from octavo.runtime.token_vectors import VectorSteps
from octavo.server.engine.client import EngineFailedError
from octavo.server.engine.engine_protocol import Cancel, Embed, Failed, Quit, Score, Scored, ToEngine, ToFront, Vectors
from octavo.server.engine.fake import FakeClient
from octavo.server.engine.side_tasks import Message, SideWork
from octavo.server.http.api_errors import api_error
from octavo.server.serve_options import Limits
from octavo.server.worker import EngineLoop
from tests.server.live_server import running, running_model
from tests.server.scripted_engine import request, until

TEXT = list(range(300, 350))
LONG = TEXT * 5


class Silent(FakeClient):
    """Answers nothing."""

    def _send(self, message: ToEngine) -> None:
        self.sent.append(message)


class Beside:
    """Replies of a model, and work beside them, as the engine's loop computes them."""

    def __init__(self, model: Model, *, target: float = 1e-9, embeddings: bool = True) -> None:
        self.sent: list[ToFront] = []
        self.core = EngineCore(model.engine, n_known=model.tokenizer.n_vocab, itl_target=target)
        self.side = SideWork(model, self.core, self.sent.append, embeddings=embeddings)
        self.chunks: list[tuple[int, bool]] = []

    def reply(self, prompt: list[int], most: int = 24) -> Request:
        one = Request(prompt, make_sampler(SamplingParams(temperature=0.0)), most)
        self.core.add(one)
        return one

    def step(self) -> None:
        piece = self.side.takes_turn()
        before = sum(len(r.sequence) for r in self.core.scheduler.running)
        self.side.make_way()
        replies = len(self.core.step(prompts=not piece))
        after = sum(len(r.sequence) for r in self.core.scheduler.running)
        self.chunks.append((after - before - replies, piece))
        if piece:
            self.side.piece()

    def finish(self) -> None:
        while self.side or not self.core.scheduler.idle:
            self.step()


def embed(*texts: list[int], id: int = 1) -> Embed:
    return Embed(id, list(texts), "mean", True)


def test_vectors_take_no_weights_of_their_own(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    load: Callable[[CpuBackend, QTensor], Any] = CpuBackend.load

    def counted(backend: CpuBackend, tensor: QTensor) -> Any:
        loaded.append(tensor.name)
        return load(backend, tensor)

    monkeypatch.setattr(CpuBackend, "load", counted)
    monkeypatch.setattr(CpuBackend, "cache", None)
    VectorSteps(model.engine)
    assert set(loaded) & set(model.file.tensors) == set()


def test_pieces_between_steps(model: Model) -> None:
    """A reply goes on with each step, a prompt with each other one, and all come out as they do alone."""
    held = model.engine.pool.held
    alone = Beside(model)
    wanted = [alone.reply(TEXT[:5]), alone.reply(TEXT[10:44], 4)]
    alone.finish()
    model.engine.prefixes.clear()

    both = Beside(model)
    found = [both.reply(TEXT[:5])]
    for _ in range(3):
        both.step()
    found.append(both.reply(TEXT[10:44], 4))
    both.side.add(embed(TEXT, [7, 8, 9]))
    both.side.add(Score(2, TEXT, 1))
    before = len(found[0].tokens)
    for _ in range(6):
        both.step()
    assert len(found[0].tokens) == before + 6, "no step is without the reply"
    assert not both.sent, "a piece is small"
    both.finish()
    assert [r.tokens for r in found] == [r.tokens for r in wanted]
    vectors, scored = both.sent
    assert isinstance(vectors, Vectors)
    rows = np.frombuffer(vectors.data, "<f4").reshape(2, vectors.width)
    np.testing.assert_allclose(rows, model.embedder.embed_tokens([TEXT, [7, 8, 9]], "mean", normalize=True), atol=1e-5)
    assert isinstance(scored, Scored)
    logits = model.logits(TEXT).astype(np.float64)
    sums = np.log(np.exp(logits).sum(axis=1))
    wanted_scores = [logits[i, t] - sums[i] for i, t in enumerate(TEXT[1:])]
    np.testing.assert_allclose([row.token for row in scored.logprobs], wanted_scores, atol=1e-3)
    pieces = sum(piece for _, piece in both.chunks)
    assert pieces > len(TEXT) // (4 * MIN_CHUNK)
    assert model.engine.pool.held <= held


@pytest.mark.parametrize("message", [embed(LONG), Score(1, LONG, 0)], ids=["embed", "score"])
def test_what_is_cancelled_is_not_computed(model: Model, message: Message) -> None:
    beside, held = Beside(model), model.engine.pool.held
    beside.reply(TEXT[:5])
    beside.side.add(message)
    beside.side.add(embed([5], id=9))
    for _ in range(2):
        beside.step()
    assert model.engine.pool.held > held + 1
    beside.side.cancel([1])
    beside.finish()
    assert [answer.id for answer in beside.sent if isinstance(answer, Vectors | Scored | Failed)] == [9]
    assert model.engine.pool.held <= held


@pytest.mark.slow
def test_replies_that_need_pages_have_them() -> None:
    with octavo.load("demo", device="cpu", max_sequences=2, n_ctx=256, kv_memory=6 * 64 * 20 * 1024) as small:
        pool = small.engine.pool
        beside = Beside(small)
        one = beside.reply(TEXT[:5], 200)
        beside.side.add(embed([300 + i % 50 for i in range(pool.n_pages * 64 - 100)][: small.engine.n_ctx]))
        beside.finish()
        assert len(one.output_tokens) == 200
        assert isinstance(beside.sent[0], Vectors)
        assert pool.held == 0


def test_the_loop_takes_turns(model: Model) -> None:
    """Messages of the front to the loop: an answer for each but for what is cancelled, and errors as they are."""
    sent: list[ToFront] = []
    loop = EngineLoop(model, sent.append, itl_target=0.0, embeddings=False)
    loop.side.add(embed(TEXT))
    loop.side.piece()
    while loop.side:
        loop.side.piece()
    (found,) = sent
    assert isinstance(found, Vectors)
    assert np.linalg.norm(np.frombuffer(found.data, "<f4")) == pytest.approx(1, abs=1e-5)


def test_the_warm_up_counts_as_no_prompt(model: Model) -> None:
    loop = EngineLoop(model, lambda message: None, itl_target=0.0, embeddings=False)
    loop.warm_up()
    assert loop.core is not None
    assert (loop.core.stats().prompt_tokens, loop.core.stats().cached_tokens) == (0, 0)


def test_sizes_that_are_made_ready_are_left_out_of_searches_for_garbage(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 such a search took 71 ms while the sizes of an 8B were made, and all replies would have waited."""
    loop, said = EngineLoop(model, list[ToFront]().append, itl_target=0.0, embeddings=False), list[str]()

    def make() -> float:
        said.append("made")
        loop.inbox.put(Quit())
        return 0.0

    assert loop.core is not None
    monkeypatch.setattr(loop.core, "warming", object())
    monkeypatch.setattr(loop.core, "go_on_warming", make)
    monkeypatch.setattr(gc, "freeze", lambda: said.append("left out"))
    loop.run()
    assert said == ["made", "left out"]


@pytest.mark.parametrize(("path", "body", "name"), [
    ("/v1/embeddings", {"input": "a cat"}, "_embedded"),
    ("/v1/completions", {"prompt": "a cat", "echo": True, "logprobs": 1, "max_tokens": 0}, "_scored"),
])
def test_a_fault_of_work_beside_replies_ends_it_alone(
    model: Model, path: str, body: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(side: SideWork, message: Message) -> Iterator[None]:
        yield
        raise ZeroDivisionError("the words of a program")

    with running_model(model, embeddings=True) as server:
        wanted = server.post(path, **body)
        with monkeypatch.context() as patch:
            patch.setattr(SideWork, name, fails)
            status, headers, data = server.send("POST", path, body)
        error = json.loads(data)["error"]
        assert (status, error["message"]) == (500, "internal error: ZeroDivisionError")
        assert headers["x-should-retry"] == "false"
        again = server.post(path, **body)
        assert server.service.client.restarts == 0
    for found in (wanted, again):
        for part in ("id", "created", "timings", "usage"):
            found.pop(part, None)
    assert again == wanted
    (record,) = caplog.records
    assert record.exc_info


@pytest.mark.parametrize(("kind", "status", "message"), [
    ("UsageError", 400, "words"), ("GrammarError", 400, "words"), ("ContextFullError", 400, "words"),
    ("NonFiniteError", 500, "words"), ("DeviceMemoryError", 500, "words"), ("QuarantineError", 500, "words"),
    ("CacheFullError", 503, "the KV cache is full: words"), ("KeyError", 500, "internal error: KeyError"),
])
def test_what_is_told_of_faults_of_the_engine(kind: str, status: int, message: str) -> None:
    told = api_error(EngineFailedError(kind, "words"))
    assert (told.status, told.message) == (status, message)


def test_work_beside_replies_counts_in_the_queue_and_ends_with_its_client(model: Model) -> None:
    fake = Silent()
    with running(fake, model, limits=Limits(drain_time=0, queue=0)) as server:
        room = fake.loaded.max_sequences
        service = server.service
        with closing(server.connect()) as sock:
            sock.sendall(request({"input": "a cat"}, "/v1/embeddings"))
            until(lambda: any(isinstance(message, Embed) for message in fake.sent))
            assert service.metrics.replies == 1
            service.metrics.replies += room - 1
            status, headers, body = server.send("POST", "/v1/embeddings", {"input": "a dog"})
            assert (status, json.loads(body)["error"]["code"]) == (429, "queue_full")
            assert int(headers["retry-after"]) > 0
            service.metrics.replies -= room - 1
        until(lambda: any(isinstance(message, Cancel) for message in fake.sent))
        until(lambda: service.metrics.replies == 0)
