"""What files are judged against: a base's logits, kept on the disk or made anew for each file, or llama.cpp's file.

The file of llama.cpp's `llama-perplexity --kl-divergence-base` is the bytes "_logits_", int32 tokens of a window, of
the vocabulary and how many windows, the tokens, and for each scored position a row of uint16: two float32 (step,
least), and codes; log p = step * code + least. What is more than 16 nats below the likeliest has code 0
(tools/perplexity of llama.cpp, 0.3.36 of llama-cpp-python).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from octavo.errors import FileError
from octavo.evals.stats import F64
from octavo.evals.windows import I64, TextWindow, logits
from octavo.formats.spec import F32
from octavo.io import regular_file
from octavo.runtime import Engine

MAGIC = b"_logits_"
LIMIT = 1 << 48
"""Most bytes that a header may speak of."""
RANGE = 16.0
"""Nats below the likeliest token that are kept; a step is RANGE / 65535 at most, and costs RANGE^2 / 65535^2 / 24."""
OFF = 0.25
"""That a row's probabilities may be off 1: what is cut counts as e^-RANGE of the likeliest: of 10^6 tokens 0.11."""
NOWHERE = -1e4
"""Log-probability of what has none."""

Pieces = Iterator[tuple[F32, I64]]
Pairs = Iterator[tuple[F32, npt.NDArray[Any], I64]]


class Reference(Protocol):
    """The base's predictions: logits, or anything that is off by a constant, of each scored position of each window."""

    def beside(self, index: int, pieces: Pieces, sizes: tuple[int, int]) -> Pairs:
        """A file's logits of window `index`, in steps of `sizes`, with the base's of the same positions."""


@dataclass
class Live:
    """A base that stays loaded and is run beside each file."""

    engine: Engine
    windows: Sequence[TextWindow]

    def beside(self, index: int, pieces: Pieces, sizes: tuple[int, int]) -> Pairs:
        mine = logits(self.engine, self.windows[index], *sizes)
        return ((rows, base, targets) for (rows, targets), (base, _) in zip(pieces, mine, strict=True))


@dataclass
class Kept:
    """A base's logits in a file without a name, float32, as they were computed. `close` gives its room back."""

    windows: Sequence[TextWindow]
    file: Any
    n_vocab: int
    starts: list[int] = field(default_factory=lambda: [0])

    @classmethod
    def there_is_room(cls, windows: Sequence[TextWindow], n_vocab: int) -> bool:
        """Whether the folder of temporary files has twice the room that the logits take."""
        return 2 * nbytes_of(windows, n_vocab) < shutil.disk_usage(tempfile.gettempdir()).free

    @classmethod
    def of(cls, engine: Engine, windows: Sequence[TextWindow], sizes: tuple[int, int], progress: Any) -> Kept:
        """Run the base over the windows."""
        file = tempfile.TemporaryFile(prefix="octavo-logits-")  # noqa: SIM115
        found = cls(windows, file, engine.model.hparams.n_vocab)
        for i, window in enumerate(windows):
            count = 0
            for rows, targets in logits(engine, window, *sizes):
                np.ascontiguousarray(rows, np.float32).tofile(file)
                count += len(targets)
            found.starts.append(found.starts[-1] + count)
            progress(i + 1, len(windows))
        file.flush()
        return found

    def beside(self, index: int, pieces: Pieces, sizes: tuple[int, int]) -> Pairs:
        at = self.starts[index]
        for rows, targets in pieces:
            base = np.memmap(self.file, np.float32, "r", 4 * at * self.n_vocab, (len(targets), self.n_vocab))
            yield rows, base, targets
            at += len(targets)

    def close(self) -> None:
        self.file.close()


def nbytes_of(windows: Sequence[TextWindow], n_vocab: int) -> int:
    """Bytes of the logits of all scored positions."""
    return 4 * n_vocab * sum(int(w.scored.sum()) for w in windows)


@dataclass
class LlamaCppFile:
    """A base that llama.cpp ran.

    path     of the file
    context  tokens of a window, of which the second half is scored
    n_vocab  of the model
    tokens   of the text [windows * context], as it was: BOS is not in it
    codes    uint16 [windows, positions, 4 + n_vocab, made even]
    """

    path: str
    context: int
    n_vocab: int
    tokens: npt.NDArray[np.int32]
    codes: npt.NDArray[np.uint16]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> LlamaCppFile:
        """Map a file. Raises FileError, naming what is wrong, for one that is not whole or not of this kind."""
        name = os.fspath(path)
        with regular_file.open_regular(name) as raw:
            head = raw.read(20)
            size = os.fstat(raw.fileno()).st_size
        if len(head) < 20 or not head.startswith(MAGIC):
            problem = "is not a file of llama.cpp's --kl-divergence-base"
            raise FileError(problem, file=name, allowed="begins with _logits_")
        context, n_vocab, windows = (int(x) for x in np.frombuffer(head[8:], "<i4"))
        if min(context, n_vocab, windows) < 1 or context < 4:
            raise FileError(f"speaks of {windows} windows of {context} tokens and {n_vocab} logits", file=name)
        per, width = context - 1 - context // 2, 2 * ((n_vocab + 1) // 2) + 4
        begins = 20 + 4 * windows * context
        wanted = begins + 2 * windows * per * width
        if wanted != size:
            problem = f"has {size:,} bytes, but its header speaks of {wanted:,}: {windows} windows of {context} tokens"
            raise FileError(problem, file=name, allowed="a file that llama-perplexity has finished")
        tokens = np.memmap(name, "<i4", "r", 20, (windows * context,))
        return cls(name, context, n_vocab, tokens, np.memmap(name, "<u2", "r", begins, (windows, per, width)))

    def beside(self, index: int, pieces: Pieces, sizes: tuple[int, int]) -> Pairs:
        at = 0
        for rows, targets in pieces:
            yield rows, self.log_probabilities(index, at, at + len(targets)), targets
            at += len(targets)

    def log_probabilities(self, window: int, start: int, stop: int) -> F64:
        """log p [stop - start, n_vocab] of positions of a window, in nats; they add up to 1 but for the rounding.

        Raises FileError where they don't.
        """
        coded = np.ascontiguousarray(self.codes[window, start:stop])
        step, least = coded[:, :4].view("<f4").astype(np.float64).T[:, :, None]
        with np.errstate(all="ignore"):
            found: F64 = step * coded[:, 4 : 4 + self.n_vocab] + least
            if not (abs(np.exp(found).sum(axis=1) - 1) < OFF).all():
                raise FileError(f"has probabilities in window {window} that don't add up to 1", file=self.path)
        return found

    @staticmethod
    def without_cut(log_p: F64) -> F64:
        """The same with no probability where the file only says that it is below the least, RANGE from the top."""
        least = log_p.min(axis=1, keepdims=True)
        cut = (log_p.max(axis=1, keepdims=True) - least > RANGE - 0.01) & (log_p <= least)
        return np.where(cut, NOWHERE, log_p)
