"""Conversations go on after a server's end, whatever ended it: with the same text, and little is computed anew."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.server.engine.test_process import Command, engines
from tests.server.live_server import Server

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX")
Messages = list[dict[str, str]]


def opening(i: int) -> Messages:
    return [{"role": "user", "content": f"I have {i} apples. " + f"What is {i} times {i + 3}? " * (8 + i % 5)}]


def ask(server: Server, messages: Messages) -> tuple[str, int]:
    """The greedy reply, and how many tokens of the prompt were in the cache."""
    answer = server.post("/v1/chat/completions", messages=messages, temperature=0, max_tokens=24)
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def turn(server: Server, talks: list[Messages]) -> list[tuple[str, int]]:
    """The next reply of each conversation, which it is appended to."""
    with ThreadPoolExecutor(16) as pool:
        replies = list(pool.map(lambda talk: ask(server, talk), talks))
    for talk, (text, _) in zip(talks, replies, strict=True):
        talk += [{"role": "assistant", "content": text}, {"role": "user", "content": "And plus 1?"}]
    return replies


def terminate(command: Command) -> None:
    command.process.send_signal(signal.SIGTERM)
    assert command.end() == 0


def kill(command: Command) -> None:
    for child in engines(command.process.pid):
        os.kill(child, signal.SIGKILL)
    command.process.kill()
    command.end()


def start(folder: Path, *options: str) -> Command:
    return Command("--cache-disk", "500M", "--cache-dir", str(folder), *options)


@pytest.mark.slow
@pytest.mark.parametrize("end", [terminate, kill])
def test_a_hundred_conversations(server: Server, tmp_path: Path, end: Callable[[Command], None]) -> None:
    talks, expected = [[opening(i) for i in range(100)] for _ in range(2)]
    first = start(tmp_path / "kept")
    assert [text for text, _ in turn(first.server, talks)] == [text for text, _ in turn(server, expected)]
    end(first)
    assert "left out" not in first.said
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("*") if one.is_file()} == {0o600}
    assert {stat.S_IMODE(one.stat().st_mode) for one in tmp_path.rglob("*") if one.is_dir()} == {0o700}
    firsts = max((one.parent for one in tmp_path.rglob("*.page")), key=lambda folder: len(list(folder.iterdir())))
    pages = sorted(firsts.glob("64-*.page"))[:3]
    pages[0].write_bytes(pages[0].read_bytes()[:-1])
    flipped = bytearray(pages[1].read_bytes())
    flipped[-5] ^= 1
    pages[1].write_bytes(flipped)
    pages[2].write_bytes(b"")
    second = start(tmp_path / "kept")
    replies = turn(second.server, talks)
    assert [text for text, _ in replies] == [text for text, _ in turn(server, expected)]
    assert sum(cached >= 64 for _, cached in replies) >= (95 if end is terminate else 85)
    terminate(second)
    lines = sorted(line for line in second.said.splitlines() if "left out" in line)
    assert [str(path) in line for path, line in zip(pages, lines, strict=True)] == [True] * 3


def test_one_conversation(server: Server, tmp_path: Path) -> None:
    talks, expected = [opening(1)], [opening(1)]
    first = start(tmp_path / "kept")
    turn(first.server, talks)
    terminate(first)
    turn(server, expected)
    second = start(tmp_path / "kept")
    ((text, cached),) = turn(second.server, talks)
    terminate(second)
    assert text == turn(server, expected)[0][0]
    assert cached > 100
    assert "left out" not in first.said + second.said


@pytest.mark.slow
def test_options_that_do_not_fit(tmp_path: Path) -> None:
    import subprocess
    import sys

    def refused(*options: str) -> str:
        command = [sys.executable, "-m", "octavo", "serve", "demo", "--port", "0", "--device", "cpu", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        return done.stderr.splitlines()[-1]

    assert "--cache-dir needs --cache-disk" in refused("--cache-dir", str(tmp_path))
    assert "--cache-ram is for GPUs" in refused("--cache-ram", "1G")
    assert "--cache-disk is 1,000 bytes" in refused("--cache-disk", "1000", "--cache-dir", str(tmp_path))
