"""Codes of a row on their way to a block of 16 rows: what `load_codes` reads back, whichever way they are gathered."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu.weights.probe import PIECE
from octavo.jit.simd.code_rows import move_code_row
from tests.jit.kernel_functions import compiled, pack_codes


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("runs", [True, False])
def test_a_row_is_that_of_its_block(bits: int, runs: bool) -> None:
    """Two pieces a word: the low three bits of its codes as they lie, the rest shifted from the next 32 bytes."""
    rng = np.random.default_rng(bits)
    codes = rng.integers(0, 1 << bits, (16, 32), dtype=np.uint8)
    pieces, order = np.zeros((8, 2), PIECE), np.arange(8) if runs else rng.permutation(8)
    for word in range(8):
        pieces[word, 0] = 4 * order[word], 0, 0x07070707, 0
        pieces[word, 1] = 32 + 4 * order[word], 1, 0x1F1F1F1F, 3
    in_runs, width = int(runs), bits

    @compiled
    def move(to, source, places):
        move_code_row(to, source, places, 0x01010101, width, 2, in_runs)

    out = np.zeros((bits, 16, 4), np.uint8)
    for row, wanted in enumerate(codes ^ 1):
        words = np.zeros((8, 4), np.uint8)
        words[order] = wanted.reshape(8, 4)
        source = np.concatenate([words.reshape(-1) & 7, words.reshape(-1) >> 3 << 1])
        move(out[:, row:], source, pieces)
    lanes = codes.reshape(16, 8, 4).transpose(1, 0, 2).reshape(8, 64)
    np.testing.assert_array_equal(out.reshape(-1), pack_codes(lanes, bits))
