# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What products of a weight's rows with tiles of tokens have in common: task i makes 16 rows of y, from row 16 i on.

A call does some tiles of n tokens each. The tokens that fill no tile are the work of its tail, another call that runs
with the same task: so a task's rows of the weight are read by one thread.
"""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.weights.layout import ROWS
from octavo.jit.argument_record import record
from octavo.jit.compile import inner
from octavo.jit.simd import add_blocks, call, load_block_masked, store_block_masked

PRODUCT = record(
    "weights rows k",
    "x x_stride y y_stride tiles",
    "terms term_count",
    "table scales",
    "tail tail_arguments",
)
"""weights            tiles of 16 rows of k values; there are `rows` rows
x, x_stride        a token's activations, and bytes from one token's to the next one's
y, y_stride        a token's float32 results, and bytes from one token's to the next one's
tiles              tiles of n tokens
terms, term_count  where the records `TERM` lie, and how many there are
table              the 16 bytes of a non-linear code, or 0
scales             float32 scales of rows, or 0
tail               the kernel for the rest of the tokens, or 0; `tail_arguments` is where its record lies
"""

TERM = record("values stride")
"""float32 values [T, rows] that are added to a product; `stride` is bytes from a token's to the next one's, or 0."""

FEW_TOKENS = 2
"""Up to this number of tokens a block takes less time than reading it from memory."""


AHEAD = 8704
"""How far ahead of the block in work weights are fetched, in bytes: the hardware's own fetching ends with a page."""


def product(n: int, sums: Any) -> Any:
    """The function of a kernel; `sums` is a function (a, task, x) -> n vectors of 16 sums, for the n tokens at x."""
    end = inner(finish(n), n, inline="always")

    def product(a, task):
        for tile in range(a.tiles):
            token = tile * n
            end(a, task, token, sums(a, task, a.x + token * a.x_stride))
        if a.tail != 0:
            call(a.tail, a.tail_arguments, task)

    return product


def finish(n: int) -> Any:
    """A function (a, task, token, sums) that stores sums of 16 rows and n tokens from this one on, with the terms."""
    tile_rows, row_bytes = ROWS, ROWS * 4
    term_at, term_bytes = TERM.at, TERM.nbytes

    def end(a, task, token, acc):
        rows = min(a.rows - task * tile_rows, tile_rows)
        for i in range(a.term_count):
            term = term_at(a.terms + i * term_bytes)
            at = term.values + token * term.stride + task * row_bytes
            acc = add_blocks(acc, load_block_masked(at, term.stride, rows, n))  # n x [rows]
        store_block_masked(a.y + token * a.y_stride + task * row_bytes, a.y_stride, rows, acc)

    return end
