"""Samples: token lists that a model is run over, each a sequence of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np

from octavo.errors import UsageError
from octavo.formats.spec import AnyArray
from octavo.graph.node import PAGE_SIZE, Sizes
from octavo.runtime.cache.page_pool import Sequence as CachedSequence
from octavo.runtime.cache.window_pool import pages_for
from octavo.runtime.engine.batch import Feed, make_batch


@dataclass(frozen=True, eq=False)
class Sample:
    """A sequence as a step's inputs.

    part    of all samples' tokens, where its own are
    inputs  of the step, by name
    sizes   of the step
    """

    part: slice
    inputs: Mapping[str, AnyArray]
    sizes: Sizes


class Samples:
    """Token lists, in order. Raises UsageError where there are none, or an empty one."""

    def __init__(self, tokens: Sequence[Sequence[int]]) -> None:
        if not tokens or not all(len(t) for t in tokens):
            raise UsageError("no samples, or a sample without tokens (allowed: at least one token each)")
        self.tokens = tokens
        self._ends = np.cumsum([len(t) for t in tokens]).tolist()

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._steps)

    @cached_property
    def _steps(self) -> tuple[Sample, ...]:
        return tuple(self._make())

    def _make(self) -> Iterator[Sample]:
        for tokens, end in zip(self.tokens, self._ends, strict=True):
            pages = list(range(pages_for(len(tokens))))
            inputs, sizes = make_batch(
                [Feed(CachedSequence(pages, slot=0), tokens, len(tokens), second=0)], pages_for(self.longest)
            )
            yield Sample(slice(end - len(tokens), end), inputs, sizes)

    @property
    def longest(self) -> int:
        return max(map(len, self.tokens))

    @property
    def all(self) -> Sizes:
        """The sizes of a value that is kept of all samples."""
        return {"tokens": self._ends[-1], "outputs": self._ends[-1]}

    @property
    def limits(self) -> Sizes:
        """The largest sizes of a step."""
        pages = pages_for(self.longest)
        sizes = {"tokens": self.longest, "outputs": self.longest, "sequences": 1, "boundaries": 2}
        rows = {"pages": pages, "rows": pages * PAGE_SIZE, "window_rows": 0, "states": 1}
        return {**sizes, **rows, "adjusted": 1, "masked": 1}

    @cached_property
    def digest(self) -> str:
        """Names the samples: a hash of their tokens."""
        digest = blake2b(digest_size=16)
        for tokens in self.tokens:
            digest.update(np.asarray([len(tokens), *tokens], "<i4").tobytes())
        return digest.hexdigest()
