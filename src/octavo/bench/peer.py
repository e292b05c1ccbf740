"""Another program on the same file, as a Subject: a child process that answers commands over a pipe.

So memory and threads stay apart, and only one of the two computes at a time. What the child must answer is written in
`peer_worker`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from octavo.errors import BackendError, UsageError, end_of_process

PEERS = ("llama.cpp",)


def worker_command(peer: str, python: str | None, options: dict[str, Any]) -> list[str]:
    """The command that starts the worker of `peer` in the interpreter `python` (default: this one).

    `options` are the worker's: path, threads, n_ctx, n_vocab, gpu, kv. Raises UsageError for an unknown peer.
    """
    if peer not in PEERS:
        raise UsageError(f"unknown peer {peer!r} (allowed: {', '.join(PEERS)})")
    script = Path(__file__).with_name("peer_worker.py")
    return [python or sys.executable, str(script), json.dumps(options)]


class PeerSubject:
    """A peer's worker. Raises BackendError where it can't be started, or ends before its time."""

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name, self._command = name, list(command)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process)
        try:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
            )
        except OSError as error:
            self._errors.close()
            raise BackendError(f"peer {name}: {command[0]} can't be run: {error.strerror or error}") from None
        self.pid = self._process.pid
        try:
            hello = self._answer()
            if "missing" in hello:
                install = (
                    f"; `{command[0]} -m pip install llama-cpp-python`, or name the interpreter that has it with "
                    "--peer-python"
                )
                raise BackendError(f"peer {name}: {hello['error']}{install if hello['missing'] else ''}")
            self.version = str(hello.pop("version"))
            self.settings = hello
            """How it was set up, for results to tell."""
        except BaseException:
            self.close()
            raise

    def prepare(self, depth: int, batch: int) -> None:
        assert batch == 1, "a peer is timed with one sequence"
        self._ask(do="prepare", depth=depth)

    def prefill(self, n: int) -> float:
        return float(self._ask(do="prefill", tokens=n)["seconds"])

    def decode(self, n: int) -> float:
        return float(self._ask(do="decode", tokens=n)["seconds"])

    def close(self) -> None:
        """End the worker."""
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        try:
            answer: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            raise BackendError(f"peer {self.name}: answered {line[:80]!r} (allowed: a line of JSON)") from None
        return answer

    def _ended(self) -> BackendError:
        """What is known about a worker that has ended: its status, and the last line that it wrote on stderr."""
        status = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")
        return BackendError(f"peer {self.name}: the process {end_of_process(status)}: {last}")
