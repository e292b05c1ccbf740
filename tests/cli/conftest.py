from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer import main as typer_main

from octavo.cli import main
from tests.limits import HANG_S
from tests.runtime import tiny

typer_main.get_command = cache(typer_main.get_command)  # all commands and their options take longer than to run one


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
    """Runs the command in this process, on the reference backend; `stdin` is what is piped into it."""
    monkeypatch.setattr("octavo.jit.clock.NOTICE_S", float("inf"))  # a cold cache changes no output
    monkeypatch.setattr("octavo.cli.progress_bar.LINE_S", float("inf"))  # nor does a slow machine
    logger = logging.getLogger("octavo")
    before = logger.handlers[:], logger.level

    def run(*arguments: str, stdin: bytes = b"") -> Result:
        monkeypatch.setattr(sys, "argv", ["octavo", *on_reference(arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        try:
            main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
        return Result(status, *capsys.readouterr())

    yield run
    logger.handlers[:], logger.level = before


def on_reference(arguments: Sequence[str]) -> list[str]:
    """Arguments that run on the reference backend, if they name no other device."""
    runs = arguments and arguments[0] in ("run", "inspect") and "--device" not in arguments
    return [*arguments, "--device", "reference"] if runs else list(arguments)


def users_environment() -> dict[str, str]:
    """This process's environment, but output is buffered as usual."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@pytest.fixture
def process() -> Run:
    """Runs the command as a process of its own, on the reference backend."""

    def run(*arguments: str, stdin: bytes = b"", **environment: str) -> Result:
        command = [sys.executable, "-m", "octavo", *on_reference(arguments)]
        env = {**users_environment(), **environment}
        done = subprocess.run(command, input=stdin, capture_output=True, check=False, timeout=HANG_S, env=env)
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


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A model and another near it."""
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    near = {n: v + 0.02 * v.std() * rng.standard_normal(v.shape).astype(np.float32) for n, v in tiny.tensors().items()}
    return tiny.write(folder / "base.gguf"), tiny.write(folder / "near.gguf", weights=near)


@pytest.fixture
def text(tmp_path: Path) -> str:
    (tmp_path / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 20)
    return str(tmp_path / "text.txt")
