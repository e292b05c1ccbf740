from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from octavo.cli import main
from tests.runtime import tiny


@dataclass(frozen=True)
class Result:
    status: int
    out: str
    err: str

    def error(self) -> str:
        """The one line on stderr of a command that failed on its input."""
        assert self.status == 2
        (line,) = self.err.splitlines()
        assert line.startswith("octavo: error: ")
        return line


Run = Callable[..., Result]


@pytest.fixture
def octavo(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Runs the command in this process; `stdin` is what is piped into it."""
    logger = logging.getLogger("octavo")
    before = logger.handlers[:], logger.level

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["octavo", *arguments])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Result(status, *capsys.readouterr())

    yield run
    logger.handlers[:], logger.level = before


@pytest.fixture
def process() -> Run:
    """Runs the command as a process of its own."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> Result:
        done = subprocess.run(
            [sys.executable, "-m", "octavo", *arguments], input=stdin, capture_output=True, check=False, timeout=60,
            env={**os.environ, **environment},
        )  # fmt: skip
        return Result(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture(scope="session")
def alphabet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that answers with the alphabet."""
    return tiny.write(tmp_path_factory.mktemp("cli") / "alphabet.gguf", weights=tiny.alphabet())


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model that answers with the alphabet over and over."""
    path = tmp_path_factory.mktemp("cli") / "endless.gguf"
    return tiny.write(path, weights=tiny.alphabet(endless=True), keys={"qwen3.context_length": 1 << 15})
