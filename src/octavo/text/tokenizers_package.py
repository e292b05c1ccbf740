"""The `tokenizers` package: every fault of it as a TokenizerError, at one place.

What it refuses it raises as Exception, having no narrower class. Where its Rust code gives up (a pattern of a file
that backtracks too far, fields that contradict each other) it panics: that prints a message, and raises an exception
which is not an Exception and which it does not export.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import RLock
from typing import Any

from octavo.errors import TokenizerError

_STDERR = 2
_PANIC = b"panicked at"
_redirected = RLock()
_LONG = 4096
"""Characters of a text that other threads are not to wait for."""
_PARALLEL, _OFF = "TOKENIZERS_PARALLELISM", ("0", "false", "f", "off", "no", "n")
"""The package's own setting, and what turns it off."""


@contextmanager
def engine_faults(error: Callable[[str], TokenizerError], *, quiet: bool = False) -> Iterator[None]:
    """Raise `error(reason)` for what the package raises inside the block; KeyboardInterrupt and the like go on.

    `quiet`: what a panic prints is not seen. Standard error is held back meanwhile, for all threads, so this is for
    what is done once and with a file that is not trusted.
    """
    with _held_stderr() if quiet else nullcontext():
        try:
            yield
        except Exception as fault:
            raise error(_brief(fault)) from None
        except BaseException as fault:
            if type(fault).__name__ != "PanicException":
                raise
            raise error(_brief(fault)) from None


def run_engine(engine: Any, text: str) -> list[int]:
    """The ids of `text` from a `tokenizers` engine. Raises TokenizerError where a pattern backtracks too far.

    Of all that the package has, only what encodes several texts lets other threads run meanwhile. Unless its
    parallelism is off, that has threads of its own, and each later fork prints a warning.
    """

    with engine_faults(partial(_too_long, text)):
        if len(text) > _LONG and os.environ.get(_PARALLEL, "").lower() in _OFF:
            (found,) = engine.encode_batch_fast([text], add_special_tokens=False)
        else:
            found = engine.encode(text, add_special_tokens=False)
        return list(found.ids)


def cut_words(splitter: Any, text: str) -> list[str]:
    """The words of `text` from a pre-tokenizer. Raises TokenizerError as `run_engine` does."""
    with engine_faults(partial(_too_long, text)):
        return [word for word, _ in splitter.pre_tokenize_str(text)]


def _too_long(text: str, reason: str) -> TokenizerError:
    problem = f"text of {len(text)} characters has a part too long to cut into words: {reason}"
    return TokenizerError(f"{problem}; pass a shorter text")


def be_sequential() -> None:
    """Turn the package's parallelism off in this process, so that other threads run while it encodes a long text."""
    os.environ[_PARALLEL] = "false"


def _brief(fault: BaseException) -> str:
    return " ".join(str(fault).split())[:200]


@contextmanager
def _held_stderr() -> Iterator[None]:
    """Keep what is written to standard error until the end, then pass it on, unless it is the message of a panic."""
    if sys.stderr is None or sys.stderr.closed:
        yield
        return
    with _redirected, tempfile.TemporaryFile() as held:
        sys.stderr.flush()
        kept = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            os.dup2(kept, _STDERR)
            os.close(kept)
            held.seek(0)
            written = held.read()
            if _PANIC not in written:
                os.write(_STDERR, written)
