"""Many requests at once: each text is that of the request alone, whatever else runs."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import octavo
from octavo.io.model_path import resolve
from octavo.quantizers import quantize_file
from octavo.runtime import Model
from octavo.runtime.cache.page_pool import page_bytes
from tests.server.live_server import Server, running_model
from tests.server.routes.test_llama_server import metrics


def bodies(n: int, seed: int = 0) -> list[dict[str, Any]]:
    """Requests of mixed lengths, greedy and seeded, each with a number of its own."""
    rng = random.Random(seed)
    found = []
    for i in range(n):
        a, b = rng.randrange(1000), rng.randrange(1000)
        text = f"Canary {canary(i)}. " + f"What is {a} plus {b}?" * rng.choice((1, 1, 2, 12))
        sampling: dict[str, Any] = {"temperature": 0} if i % 2 else {"temperature": 1.5, "seed": i, "min_p": 0}
        found.append(
            {"messages": [{"role": "user", "content": text}], "max_tokens": rng.choice((4, 16, 40)), **sampling}
        )
    return found


def canary(i: int) -> str:
    """A word that only request i has."""
    return "".join(random.Random(f"canary {i}").choices("bcdfghjklmnpqrstvwxz", k=12))


def text(server: Server, body: dict[str, Any]) -> str:
    content: str = server.post("/v1/chat/completions", **body)["choices"][0]["message"]["content"]
    return content


def together(server: Server, asked: list[dict[str, Any]]) -> list[str]:
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda body: text(server, body), asked))


def test_texts_together_are_those_alone(server: Server) -> None:
    asked = bodies(8)
    assert together(server, asked) == [text(server, body) for body in asked]


def test_no_request_sees_anothers_words(server: Server) -> None:
    """Each prompt has a word of its own, which comes back to it with `echo`, and to nobody else."""
    words = [f"zq{i}v" for i in range(24)]

    def said(word: str) -> str:
        body = {"prompt": [f"{word} and {word}", f"once more {word}"], "n": 2, "echo": True, "max_tokens": 5}
        return " ".join(choice["text"] for choice in server.post("/v1/completions", **body)["choices"])

    with ThreadPoolExecutor(12) as pool:
        texts = list(pool.map(said, words))
    for word, found in zip(words, texts, strict=True):
        assert found.count(word) >= 6
        assert not [other for other in words if other != word and other in found]


@pytest.mark.slow
@pytest.mark.parametrize("preset", ["F16", "Q4_K_M"])
def test_200_texts_together_are_those_alone(server: Server, preset: str, tmp_path: Path) -> None:
    """And no text has a word, or six letters in a row of one, that only another request has."""
    asked = bodies(200, seed=1)
    with ExitStack() as stack:
        if preset != "F16":
            quantize_file(resolve("demo"), path := tmp_path / "model.gguf", preset)
            model = stack.enter_context(octavo.load(path, device="cpu", max_sequences=8))
            server = stack.enter_context(running_model(model))
        found = together(server, asked)
        assert found == [text(server, body) for body in asked]
    for i, reply in enumerate(found):
        words = [canary(j) for j in range(200) if j != i]
        assert not any(word[at : at + 6] in reply for word in words for at in range(7))


@pytest.mark.slow
def test_too_few_pages_for_all(server: Server, model: Model) -> None:
    kv_memory = 8 * page_bytes(model.engine.graph)
    with octavo.load("demo", device="cpu", max_sequences=6, kv_memory=kv_memory) as small:
        assert small.engine.pool.n_pages == 8
        asked = [
            {"messages": [{"role": "user", "content": f"What is {i} plus {i}?"}], "max_tokens": 170, "ignore_eos": True,
             "temperature": 0} for i in range(6)
        ]
        with running_model(small) as few:
            found = together(few, asked)
            assert metrics(few)["octavo:num_preemptions_total"] > 0
            assert metrics(few)["octavo:kv_pages_held"] == 0
        assert found == [text(server, body) for body in asked]
