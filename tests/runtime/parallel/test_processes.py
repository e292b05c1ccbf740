"""Ranks as processes: the same text as of one, and what happens where one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from threading import Event, Thread, Timer
from typing import Any

import numpy as np
import pytest

import octavo
from octavo.errors import BackendError, RankError, UsageError
from octavo.runtime import Model
from octavo.runtime.parallel import group as groups
from tests.limits import HANG_S
from tests.models.table import TOKENS, save_only
from tests.models.tiny_checkpoints import TABLE
from tests.runtime import tiny

QUESTIONS = ["What is 12 times 7?", "What is 90 minus 47?", "What is 144 divided by 12?"]
NOTICED_S = 5.0
"""Seconds in which every reply has its error after a rank has ended."""


def load(path: str = "demo", ranks: int = 2, **options: object) -> Model:
    given: dict[str, Any] = {"n_ctx": 512, **options}
    return octavo.load(path, device="cpu", threads=ranks, tensor_parallel=ranks, **given)


def pids(model: Model) -> list[int]:
    """The processes of the other ranks."""
    group = model.engine._group
    assert group is not None
    return [one.process.pid for one in group._shared.ranks]


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def gone(numbers: list[int], seconds: float = NOTICED_S) -> bool:
    until = time.monotonic() + seconds
    while any(map(is_there, numbers)) and time.monotonic() < until:
        time.sleep(0.02)
    return not any(map(is_there, numbers))


@pytest.fixture(scope="module")
def one() -> Iterator[Model]:
    with octavo.load("demo", device="cpu", threads=1, n_ctx=512) as model:
        yield model


@pytest.fixture(scope="module")
def two() -> Iterator[Model]:
    with load(max_sequences=3) as model:
        yield model


def test_replies_and_vectors_are_those_of_one_process(one: Model, two: Model) -> None:
    replies = two.generate_many(QUESTIONS, temperature=0.0)
    assert [r.text for r in replies] == [r.text for r in one.generate_many(QUESTIONS, temperature=0.0)]
    seeded = {"temperature": 1.0, "seed": 7, "max_tokens": 20}
    assert "".join(two.generate(QUESTIONS[0], **seeded)) == "".join(one.generate(QUESTIONS[0], **seeded))
    found, want = (m.embed(QUESTIONS, pooling="mean") for m in (two, one))
    np.testing.assert_allclose(found, want, atol=1e-3)


def test_processes_end_with_their_model() -> None:
    with load() as model:
        followers = pids(model)
        assert len(followers) == 1
        assert is_there(followers[0])
    assert gone(followers)


@pytest.mark.slow
def test_ranks_of_two_stages(one: Model) -> None:
    """The same text, and of prompts of several steps; killed, the error is as of ranks without stages."""
    with load(max_sequences=3, pipeline=2) as model:
        assert model.engine.stages == (5, 5)
        replies = model.generate_many(QUESTIONS, temperature=0.0)
        assert [r.text for r in replies] == [r.text for r in one.generate_many(QUESTIONS, temperature=0.0)]
        os.kill(pids(model)[0], signal.SIGKILL)
        with pytest.raises(RankError, match=r"rank 1 of 2 .* was killed by SIGKILL"):
            model.generate_many(QUESTIONS, temperature=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("cache_type", ["f32", "q8_0", "int8", "fp8", "int4"])
def test_caches(cache_type: Any) -> None:
    with octavo.load("demo", device="cpu", threads=1, n_ctx=512, cache_type=cache_type) as model:
        wanted = ["".join(model.generate(question, temperature=0.0)) for question in QUESTIONS]
    with load(cache_type=cache_type) as model:
        assert ["".join(model.generate(question, temperature=0.0)) for question in QUESTIONS] == wanted


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen35", "gemma2", "rwkv7", "qwen3moe"])
def test_states_windows_and_experts(name: str, tmp_path: Path) -> None:
    """Prompts that share pages and states, which are copied on all ranks."""
    save_only(tmp_path, TABLE[name])
    prompts = [TOKENS[:n] for n in (90, 70, 80, 90)]
    found = []
    for ranks in (1, 2):
        with load(str(tmp_path), ranks, max_sequences=2, cache_type="f32", n_ctx=256) as model:
            options = {"temperature": 0.0, "max_tokens": 24, "ignore_eos": True}
            replies = [*model.generate_many(prompts, **options), *model.generate_many(prompts[:2], **options)]
            found.append([reply.text for reply in replies])
    assert found[0] == found[1]


SETTINGS: list[dict[str, object]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.0, "seed": 3, "top_k": 5, "repeat_penalty": 1.3, "logit_bias": {5: 4.0, 300: -100.0}},
    {"temperature": 0.9, "seed": 4, "top_k": 0, "top_p": 1.0},  # all logits of a row
    {"temperature": 0.0, "logit_bias": {5: 3.0}, "logprobs": 2},  # likewise
    {"temperature": 0.0, "grammar": octavo.Grammar.json_schema({"type": "integer"})},
]


@pytest.mark.few(2)
@pytest.mark.parametrize("settings", SETTINGS, ids=",".join)
def test_settings(settings: dict[str, Any], one: Model, two: Model) -> None:
    """Candidates are merged of what ranks find in their parts of the vocabulary."""
    wanted, found = (m.generate(QUESTIONS[1], max_tokens=12, **settings) for m in (one, two))
    assert "".join(found) == "".join(wanted)
    for got, want in zip(found.logprobs or (), wanted.logprobs or (), strict=True):
        assert got.token == pytest.approx(want.token, abs=1e-3)
        assert [token for token, _ in got.likely] == [token for token, _ in want.likely]
    ops = [n.op for n in two.engine.graph.nodes]
    assert ops.count("merge_candidates") == 3


def asking(model: Any, begun: Event, errors: list[Exception]) -> Thread:
    """A thread that makes a reply; `begun` is set at its first piece."""

    def ask() -> None:
        try:
            for _ in model.generate("Count.", raw=True, ignore_eos=True, max_tokens=400, temperature=0.0):
                begun.set()
        except Exception as error:
            errors.append(error)

    thread = Thread(target=ask)
    thread.start()
    return thread


def test_a_rank_that_is_killed_ends_all_replies() -> None:
    with load(max_sequences=4) as model:
        (follower,) = pids(model)
        begun, errors = Event(), list[Exception]()

        threads = [asking(model, begun, errors) for _ in range(4)]
        assert begun.wait(HANG_S)
        os.kill(follower, signal.SIGKILL)
        start = time.monotonic()
        for thread in threads:
            thread.join(HANG_S)
        assert time.monotonic() - start < NOTICED_S
        assert {type(error) for error in errors} == {RankError}
        assert len(errors) == 4
        assert str(errors[0]) == f"rank 1 of 2 (process {follower}) was killed by SIGKILL"
        with pytest.raises(RankError, match="was killed by SIGKILL"):
            model.logits([1, 2, 3])
    assert gone([follower])


@pytest.mark.slow
def test_a_model_that_another_thread_closes() -> None:
    """A reply ends with an error of Octavo's, whatever the step was at."""
    begun, errors = Event(), list[Exception]()
    model = load()

    thread = asking(model, begun, errors)
    assert begun.wait(HANG_S)
    model.close()
    thread.join(HANG_S)
    assert [(type(error), str(error)) for error in errors] == [(RankError, "the model was closed by another thread")]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody tells that a process is stopped")
def test_a_rank_that_is_stopped_ends_all_replies_after_a_while() -> None:
    with load(max_sequences=2) as model:
        (follower,) = pids(model)
        model.generate_many(QUESTIONS[:2], max_tokens=4)
        group = model.engine._group
        assert group is not None
        assert group._shared.limit.seconds == 600.0
        group._shared.limit.seconds = 1.5
        os.kill(follower, signal.SIGSTOP)
        start = time.monotonic()
        words = rf"^rank 1 of 2 \(process {follower}\) is stopped: no step has ended for 1.5 s$"
        with pytest.raises(RankError, match=words):
            model.generate_many(QUESTIONS[:2], max_tokens=4)
        assert 1.5 < time.monotonic() - start < HANG_S
        with pytest.raises(RankError, match="is stopped"):
            model.logits([1, 2, 3])
    assert gone([follower])


@pytest.mark.slow
def test_a_rank_that_is_stopped_while_it_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    start, followers = groups._start, list[int]()

    def start_and_stop(rank: int, environment: Mapping[str, str]) -> groups._Rank:
        started = start(rank, environment)
        followers.append(started.process.pid)
        started.process.send_signal(signal.SIGSTOP)
        return started

    monkeypatch.setattr(groups, "_start", start_and_stop)
    with pytest.raises(RankError, match=r"rank 1 of 2 .* is stopped: no step has ended for 1 s"):
        load(step_timeout=1)
    assert gone(followers)


def test_a_rank_that_can_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen
    monkeypatch.setattr(groups.subprocess, "Popen", lambda command, **options: popen(
        [sys.executable, "-c", "raise SystemExit(3)"], **options))
    with pytest.raises(RankError, match=r"rank 1 of 2 \(process \d+\) ended with status 3"):
        load()


def test_a_rank_says_why_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file is gone when it opens it."""
    path = Path(tiny.write(tmp_path / "m.gguf"))
    start = groups._start

    def start_without_file(rank: int, environment: Mapping[str, str]) -> groups._Rank:
        path.unlink()
        return start(rank, environment)

    monkeypatch.setattr(groups, "_start", start_without_file)
    with pytest.raises(RankError, match=r"rank 1 of 2 \(process \d+\) failed: .*m.gguf"):
        load(str(path))


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.05, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0])
def test_a_rank_that_is_killed_at_any_moment(seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it starts, looks for the others, loads, or computes."""
    start, killed = groups._start, list[float]()

    def start_for_a_while(rank: int, environment: dict[str, str]) -> groups._Rank:
        started = start(rank, environment)

        def kill() -> None:
            killed.append(time.monotonic())
            started.process.kill()

        Timer(seconds, kill).start()
        return started

    def use() -> None:
        with load() as model:
            while True:
                model.generate_many(QUESTIONS, raw=True, ignore_eos=True, max_tokens=20)

    monkeypatch.setattr(groups, "_start", start_for_a_while)
    with pytest.raises(RankError, match="was killed by SIGKILL"):
        use()
    assert time.monotonic() - killed[0] < NOTICED_S


PARENT = """
import time, octavo
model = octavo.load("demo", device="cpu", threads=2, n_ctx=512, tensor_parallel=2)
print(model.engine._group._shared.ranks[0].process.pid, flush=True)
time.sleep(600)
"""


def follower_of_killed(program: str) -> int:
    """The follower of a rank 0 that has been killed: its program prints the process when it is there."""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent:
        follower = int(parent.stdout.readline())
        assert is_there(follower)
        parent.kill()
    return follower


@pytest.mark.slow
def test_ranks_end_with_rank_0() -> None:
    assert gone([follower_of_killed(PARENT)])


STOPPED = """
import os, signal, threading, time, octavo
models = []
def load():
    models.append(octavo.load("demo", device="cpu", threads=2, n_ctx=512, tensor_parallel=2))
loading = threading.Thread(target=load)
loading.start()
loading.join()
"".join(models[0].generate("Hello", max_tokens=1))
follower = models[0].engine._group._shared.ranks[0].process.pid
os.kill(follower, signal.SIGSTOP)
print(follower, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a stopped process outlives its parent")
def test_a_stopped_rank_ends_with_rank_0() -> None:
    """Whose thread that loaded the model has ended before, and did not end the rank."""
    follower = follower_of_killed(STOPPED)
    ended = gone([follower])
    if not ended:
        os.kill(follower, signal.SIGKILL)
    assert ended


FORKED = """
import gc, os, signal, octavo
def load():
    return octavo.load("demo", device="cpu", threads=2, n_ctx=512, tensor_parallel=2)
def ask():
    return "".join(model.generate("Hello", max_tokens=4, temperature=0.0))
def forked(act):
    child = os.fork()
    if not child:
        signal.alarm(20)
        act()
        os._exit(0)
    return os.waitpid(child, 0)[1]
def use():
    try:
        ask()
    except octavo.errors.RankError as error:
        print(error, flush=True)
def drop():
    global model
    del model
    gc.collect()
with load() as model:
    ask()
model = load()
first = ask()
print(os.getpid(), forked(use), forked(drop), flush=True)
print(ask() == first != "")
model.close()
"""


@pytest.mark.slow
def test_a_forked_process_leaves_the_ranks_alone() -> None:
    """An error where it uses the model; none, nor a crash, where it lets go of it; and the owner's goes on."""
    done = subprocess.run([sys.executable, "-c", FORKED], check=False, capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    error, statuses, same = done.stdout.splitlines()
    owner, *found = statuses.split()
    assert found == ["0", "0"]
    assert error == f"the other ranks follow process {owner}, from which this one was forked: load the model here"
    assert same == "True"


def test_more_ranks_than_a_machine_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused before one is started; a few ranks may share fewer cores."""
    monkeypatch.setattr(groups, "cores", lambda: 2)
    monkeypatch.setattr(groups, "_start", lambda *_: pytest.fail("a rank was started"))
    with pytest.raises(UsageError) as caught:
        load(ranks=9)
    assert str(caught.value) == "tensor_parallel is 9, but this machine has 2 cores (allowed: 1 to 8)"


@pytest.mark.parametrize(("options", "problem"), [
    ({"tensor_parallel": 0}, "tensor_parallel is 0 (allowed: 1 to 64)"),
    ({"tensor_parallel": "2"}, "tensor_parallel is '2' (allowed: an integer, 1 to 64)"),
    ({"tensor_parallel": 2, "gpu_layers": 3}, "tensor_parallel is 2, beside gpu_layers 3 (allowed: one of them)"),
    ({"step_timeout": -1}, "step_timeout is -1 (allowed: 0 to "),
    ({"tensor_parallel_size": 2}, "tensor_parallel_size is not an argument of load: did you mean tensor_parallel?"),
])
def test_arguments_that_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        octavo.load("demo", **{"device": "cpu"} | options)  # type: ignore[arg-type]
    assert str(caught.value).startswith(problem)


def test_without_torch_an_error_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.distributed", None)
    with pytest.raises(BackendError, match=r"tensor parallelism needs torch: .*CPU-only torch is enough: pip install"):
        load()
