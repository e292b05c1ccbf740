"""The peer's process: the worker's protocol with a fake llama_cpp, and workers that fail."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from octavo.bench import peer_worker, subject
from octavo.bench.peer import PeerSubject, worker_command
from octavo.errors import BackendError, UsageError

OPTIONS = {"path": "m.gguf", "threads": 2, "n_ctx": 16, "n_vocab": 100, "gpu": False, "kv": "f16"}


def script(text: str) -> list[str]:
    return [sys.executable, "-c", text]


def test_the_worker_answers_with_times(fake_peer: None) -> None:
    with PeerSubject("llama.cpp", worker_command("llama.cpp", None, OPTIONS)) as peer:
        assert peer.version == "0.0.fake"
        peer.prepare(8, 1)
        assert all(0 < peer.decode(8) < 1 for _ in range(3)), "after a decode the context is as it was prepared"
        assert 0 < peer.prefill(16) < 1
        peer.prepare(0, 1)
        assert 0 < peer.decode(16) < 1


def test_a_worker_that_fails_says_why(fake_peer: None) -> None:
    with PeerSubject("llama.cpp", worker_command("llama.cpp", None, OPTIONS)) as peer:
        with pytest.raises(BackendError, match=r"status 1: ValueError: 17 tokens exceed the context window of 16"):
            peer.prefill(17)
        with pytest.raises(BackendError, match="ended with status 1"):
            peer.prefill(1)


def test_a_missing_package_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = tmp_path / "llama_cpp.py"
    module.write_text("raise ModuleNotFoundError('no module named llama_cpp')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(BackendError, match=r"-m pip install llama-cpp-python`.*--peer-python"):
        PeerSubject("llama.cpp", worker_command("llama.cpp", None, OPTIONS))
    module.write_text("raise ImportError('libllama.so: cannot allocate memory')")
    with pytest.raises(BackendError, match=r"libllama.so: cannot allocate memory$"):
        PeerSubject("llama.cpp", worker_command("llama.cpp", None, OPTIONS))


def test_an_interpreter_that_is_not_there(tmp_path: Path) -> None:
    missing = str(tmp_path / "python")
    with pytest.raises(BackendError, match=f"{missing} can't be run: No such file"):
        PeerSubject("llama.cpp", worker_command("llama.cpp", missing, OPTIONS))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print('hello')", r"answered 'hello\\n' \(allowed: a line of JSON\)"),
        ("import sys; sys.exit('out of\\nmemory')", "ended with status 1: memory"),
        ("pass", "ended with status 0: it said nothing"),
    ],
)
def test_a_worker_that_does_not_say_hello(text: str, message: str) -> None:
    with pytest.raises(BackendError, match=message):
        PeerSubject("other", script(text))


def test_unknown_peers_are_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown peer 'x' \(allowed: llama.cpp\)"):
        worker_command("x", None, OPTIONS)


def test_both_sides_draw_the_same_tokens() -> None:
    assert peer_worker.drawn(50, 1000, 3) == subject.tokens(50, 1000, 3)
    assert len(set(subject.tokens(50, 1000))) > 30
