"""Requests at random to three models where memory holds two, while their processes are killed."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from octavo.data import resolve
from octavo.replicas import local
from octavo.replicas import pool as pool_module
from octavo.replicas.local import LocalProcess
from tests.router.live_models import children_of, engine_of, kill, pid_of, served, serving
from tests.server.live_server import Server, events
from tests.server.scripted_engine import until

NAMES = ("one", "two", "three")
PROMPTS = ("What is 12 times 7?", "What is 8 plus 9?", "Write a story.")
CODES = {"engine_ended", "replicas_ended", "queue_full"}


def text_of(server: Server, name: str, prompt: str, stream: bool) -> str:
    """The reply to a prompt, or the code of a typed error."""
    messages = [{"role": "user", "content": prompt}]
    body = {"model": name, "messages": messages, "temperature": 0, "max_tokens": 40, "stream": stream}
    status, _, answer = server.send("POST", "/v1/chat/completions", body)
    if status != 200:
        return str(json.loads(answer)["error"]["code"])
    if not stream:
        return str(json.loads(answer)["choices"][0]["message"]["content"])
    *pieces, last = events(answer)
    assert last == "[DONE]", pieces[-1]
    return "".join(one["choices"][0]["delta"].get("content") or "" for one in pieces if one["choices"])


@pytest.mark.slow
def test_every_request_is_answered_or_refused_within_memory(tmp_path: Path) -> None:
    for name in NAMES:
        shutil.copy(resolve("demo"), tmp_path / f"{name}.gguf")
    known = [served(name, str(tmp_path / f"{name}.gguf")) for name in NAMES]
    rng, lock, most = random.Random(1), Lock(), 0
    with serving(known, memory=1 << 30) as (server, front):
        texts = {prompt: text_of(server, "one", prompt, False) for prompt in PROMPTS}
        models = front.models
        need = models.models["one"].held
        assert 2 * need <= 1 << 30 < 3 * need, "two have room"

        def ask(number: int) -> str:
            nonlocal most
            with lock:
                name, prompt, stream = rng.choice(NAMES), rng.choice(PROMPTS), rng.random() < 0.7
                if number % 15 == 7:
                    kill_one()
            found = text_of(server, name, prompt, stream)
            with lock:
                most = max(most, sum(one.held for one in models.models.values()))
            return "same" if found == texts[prompt] else found

        def kill_one() -> None:
            pools: list[Any] = [one.pool for one in models.models.values() if one.pool is not None]
            running = [pool.replicas[0].running for pool in pools if pool.replicas[0].running is not None]
            if running:
                pid = rng.choice(running).process.pid
                with suppress(OSError, ValueError):
                    kill(engine_of(pid) if rng.random() < 0.5 else pid)

        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(ask, range(150)))
        assert set(found) <= {"same", *CODES}, set(found)
        assert found.count("same") >= 140
        assert most <= 1 << 30
        pids = [one for model in models.models.values() if model.pool is not None
                for one in children_of(model.pool.replicas[0].running.process.pid)]  # type: ignore[union-attr]
        assert pids
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def stopped(server: Server, front: Any, name: str) -> list[int]:
    """The processes of a model that is loaded, which are stopped now."""
    server.post("/models/load", model=name)
    until(lambda: front.models.models[name].state == "loaded")
    pid = pid_of(front, name)
    pids = [pid, engine_of(pid)]
    for one in pids:
        os.kill(one, signal.SIGSTOP)
    return pids


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{one}").exists() for one in pids)


@pytest.mark.slow
def test_what_is_stopped_ends_in_order_with_its_model() -> None:
    with serving([served("one")]) as (server, front):
        pids = stopped(server, front, "one")
        server.post("/models/unload", model="one")
        until(lambda: gone(pids))
        until(lambda: front.models.models["one"].state == "unloaded")


@pytest.mark.slow
def test_a_process_that_is_stopped_before_it_loads_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "ANSWER_S", 1.0)
    with serving([served("one")]) as (server, front):
        until(lambda: front.models._spare is not None)
        spare = front.models._spare
        assert spare is not None
        os.kill(spare.process.pid, signal.SIGSTOP)
        assert text_of(server, "one", PROMPTS[0], False) == "12 times 7 is 84."
        assert pid_of(front, "one") != spare.process.pid
        assert gone([spare.process.pid])


def test_what_does_not_end_is_killed_with_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "OUT_S", -4.5)  # 0.5 s with the time for draining
    monkeypatch.setattr(LocalProcess, "stop", lambda self: None)
    with serving([served("one")]) as (server, front):
        pids = stopped(server, front, "one")
        server.post("/models/unload", model="one")
        until(lambda: gone(pids))
