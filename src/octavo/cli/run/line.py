"""Lines typed at a terminal: editing, a history that outlives the session, completion, pastes of several lines."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable, Iterator, Sequence

MOST_LINES = 1000
"""Lines of history that are kept."""


def history_file() -> str:
    """Where the history is kept: octavo/history in the user's state folder ($XDG_STATE_HOME, or ~/.local/state)."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "octavo", "history")


def read_line(prompt: str) -> str | None:
    """A line that the user types, or what was pasted at once; None at the end of input."""
    try:
        return input(prompt)
    except EOFError:
        return None


@contextlib.contextmanager
def typed_lines(complete: Callable[[str], Sequence[str]] | None = None) -> Iterator[None]:
    """Make `input` edit lines, with history and completion; a history that can't be kept is gone afterwards.

    `complete` gives what a line that was typed so far may become. Where Python has no readline nothing is changed.
    """
    try:
        import readline
    except ImportError:
        yield
        return
    if "libedit" in (readline.__doc__ or ""):
        readline.parse_and_bind("bind ^I rl_complete")
    else:
        readline.parse_and_bind("set enable-bracketed-paste on")  # CPython switches it off: a paste is one message
        readline.parse_and_bind("tab: complete")
    if complete is not None:
        readline.set_completer_delims("")
        readline.set_completer(_completer(complete))
    path = history_file()
    with contextlib.suppress(OSError, UnicodeError):
        readline.read_history_file(path)
    readline.set_history_length(MOST_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # what was asked is nobody else's business
            readline.write_history_file(path)


def _completer(complete: Callable[[str], Sequence[str]]) -> Callable[[str, int], str | None]:
    def nth(line: str, n: int) -> str | None:
        found = complete(line)
        return found[n] if n < len(found) else None

    return nth


def paths(start: str) -> list[str]:
    """Files and folders whose path begins with `start`."""
    found = sorted(glob.glob(glob.escape(os.path.expanduser(start)) + "*"))
    return [path + "/" if os.path.isdir(path) else path for path in found]
