"""Whole steps with a tuned table and without: what `octavo bench tune` keeps.

A matrix that is timed alone comes from memory after nothing; in a step its loads begin during the kernel before it. So
what is fastest alone may make a step slower. For each number of tokens the choices of all matrices stay only if a step
of that many is faster with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from octavo.backends.gpu import GpuBackend
from octavo.backends.gpu.matmul.product import Product
from octavo.backends.gpu.matmul.tuned import tuned_table as tuned
from octavo.backends.gpu.weights.layout import padded
from octavo.bench.empty_steps import prompt_seconds, reply_seconds
from octavo.bench.tune import KNOWN, TOKENS, Matrix, about
from octavo.io.gguf import GGUFFile
from octavo.models import read_model
from octavo.runtime.engine.engine import Engine
from octavo.runtime.engine.engine_config import EngineConfig
from octavo.runtime.engine.placement import backends_for
from octavo.runtime.text_embedding import embedding_engine, is_embedding_model

MOST_REPLIES = 128
"""Steps of more tokens are prompts."""
StepTimer = Callable[[int], float]
"""Seconds of a step of some tokens, whose kernels are looked up anew."""


class TimedStep(NamedTuple):
    """Seconds of a step of some tokens with the choices before, and with those of the user's table."""

    tokens: int
    before: float
    after: float

    @property
    def kept(self) -> bool:
        """Whether the choices of the user's table stay."""
        return self.after < self.before


def timer_for(file: GGUFFile) -> StepTimer:
    """Of steps of a model, which is loaded for it; prompts alone for one that makes no replies."""
    model, most = read_model(file), TOKENS[-1]
    backends, _ = backends_for("gpu")
    replies = not is_embedding_model(model)
    if replies:
        config = EngineConfig(n_ctx=most, n_batch=most, max_sequences=MOST_REPLIES, speculate="off")
        engine = Engine(model, backends, config)
    else:
        engine = embedding_engine(model, backends)

    def seconds(tokens: int) -> float:
        engine.load().rebind()
        if replies and tokens <= MOST_REPLIES:
            return reply_seconds(engine, tokens)
        return prompt_seconds(engine, min(tokens, engine.config.n_batch))

    return seconds


def keep_what_steps_gain(wanted: Sequence[Matrix], backend: GpuBackend, seconds: StepTimer) -> Iterator[TimedStep]:
    """Time steps of TOKENS, yield each, and write the user's table with what they gain."""
    arch = backend.target.arch
    after = tuned.users_table(arch)
    before = _without(after, wanted)
    steps = list[TimedStep]()
    for tokens in TOKENS:
        times = list[float]()
        for users in (before, after):
            with tuned.trial(arch, users):
                times.append(seconds(tokens))
        steps.append(TimedStep(tokens, *times))
        yield steps[-1]
    with tuned.trial(arch, before):
        rows = {m: _row(m, arch, after, steps) for m in wanted}
    table = tuned.users_table(arch)  # as another process may have left it since
    for m, row in rows.items():
        table["products"][tuned.class_of(m.layout)][m.n, m.k] = row
    tuned.write(tuned.user_file(arch), table, about(backend))


def _without(table: tuned.Table, wanted: Sequence[Matrix]) -> tuned.Table:
    """A table without the rows of some matrices."""
    sizes = {(tuned.class_of(m.layout), m.n, m.k) for m in wanted}
    products = {
        kind: {size: row for size, row in rows.items() if (kind, *size) not in sizes}
        for kind, rows in table.get("products", {}).items()
    }
    return {**table, "products": products}


def _row(m: Matrix, arch: str, after: tuned.Table, steps: Sequence[TimedStep]) -> tuned.Row:
    """A matrix's choices by tokens: those of `after` where a step gained, else those that are looked up now, as for
    more tokens than were timed."""
    row = list[tuple[int, tuple[tuned.Choice, ...]]]()
    own = after["products"][tuned.class_of(m.layout)][m.n, m.k]
    kept = {step.tokens for step in steps if step.kept}
    for tokens in (*(step.tokens for step in steps), 2 * steps[-1].tokens):
        nearest = tuned.nearest("products", Product(m.layout, m.n, padded(m.k), tokens, arch))
        cell = tuned.cell_for(own, tokens) if tokens in kept else tuple(dict.fromkeys(islice(nearest, KNOWN)))
        row.append((tokens, cell))
    return tuned.merged(row)
