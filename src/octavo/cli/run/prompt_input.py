"""The prompt of `octavo run`: an argument, a file, standard input, or what they come to together."""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
from typing import Any

from octavo.errors import UsageError
from octavo.io.regular_file import read_bytes

log = logging.getLogger("octavo")

MOST_BYTES = 1 << 24
"""The longest text that is read as a prompt; contexts of a million tokens hold less."""

PATIENCE_S = 1.0
"""Seconds that standard input may stay silent before it is said that it is waited for."""


def whole_prompt(argument: str | None, file: str | None) -> str | None:
    """The prompt, a blank line between its parts: the argument, the file, what is piped in. None for a conversation.

    `-` as the argument stands for standard input alone. Raises UsageError where there is nothing or too much, FileError
    for a file that can't be read.
    """
    parts = [] if argument in (None, "-") else [argument or ""]
    if file is not None:
        parts.append(_from_file(file))
    wanted = argument == "-" or not parts
    if wanted and argument is None and sys.stdin is not None and sys.stdin.isatty():
        return None
    piped = _from_stdin() if wanted or _is_piped() else ""
    if not piped and not parts:
        raise UsageError("no prompt given, and standard input is empty")
    return "\n\n".join([*parts, *([piped] if piped else [])])


def piped_lines() -> list[str]:
    """The lines of standard input that are not empty. Raises UsageError where there are none.

    A line ends with a newline alone: texts may have what Unicode calls ends of lines, too. A warning tells of empty
    lines before the last one, as then a text's number is no longer its line's.
    """
    lines = [] if sys.stdin is None or sys.stdin.isatty() else _from_stdin().rstrip().split("\n")
    texts = [line.removesuffix("\r") for line in lines if line.strip()]
    if not texts:
        raise UsageError("no texts given, and standard input is empty")
    if empty := len(lines) - len(texts):
        log.warning("%d of %d lines are empty and left out", empty, len(lines))
    return texts


def _is_piped() -> bool:
    """Whether standard input is a file or a pipe, which were given on purpose, and no terminal or /dev/null."""
    if sys.stdin is None or sys.stdin.closed:
        return False
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except OSError:  # no descriptor: something in memory stands for it
        return True
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _from_stdin() -> str:
    if sys.stdin is None:
        return ""
    _say_if_waiting(sys.stdin.buffer)
    return _text(sys.stdin.buffer.read(MOST_BYTES + 1), "standard input")


def _say_if_waiting(stream: Any) -> None:
    """Who started this without knowing that it reads standard input should not wonder why nothing happens."""
    if os.name != "posix":
        return
    try:
        ready, _, _ = select.select([stream], [], [], PATIENCE_S)
    except (OSError, ValueError):
        return
    if not ready:
        print("octavo: waiting for the end of standard input; `< /dev/null` skips it", file=sys.stderr)


def _from_file(path: str) -> str:
    return _text(read_bytes(path, MOST_BYTES), path)


def _text(data: bytes, name: str) -> str:
    if len(data) > MOST_BYTES:
        raise UsageError(f"{name} is longer than a prompt may be: {MOST_BYTES >> 20} MiB")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 at byte {error.start}") from None
