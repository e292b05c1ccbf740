# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""What products that sum in matrix tiles (AMX) have in common: tiles of tokens times panels of weights, over a slice.

    panel    16 rows x a slice of K: in the L2, each read for two tiles of tokens at once
    x        two tiles of 16 tokens, a slice of each: in the L1 for all panels
    sums     2 x 2 tiles; in memory [panel, tile] from slice to slice

Two tiles of each factor are loaded for four products, which take twice as long as that from the L1. The next two tiles
of tokens are fetched to the L2 meanwhile: from farther off they come too slowly.
"""

from __future__ import annotations

from typing import Any

from octavo.jit.compile import inner
from octavo.jit.simd import amx, prefetch_to_l2

N = 16
"""Tokens of a tile, and rows of a panel."""

TILE_BYTES = 1024

STEPS = 16
"""Tiles of K of a slice: of two tiles of tokens, or of two panels, the L1 holds them."""

PANELS = 8
"""Panels that a task makes at most, so that activations come from far caches an eighth as often."""

TILES = 32
"""Tiles of tokens whose sums are kept at a time."""

PANEL_SUMS = (TILES + 1) * TILE_BYTES
"""Bytes from one panel's sums to the next one's: room for a tile's worth of tokens that are summed otherwise."""


def panels_of_task(rows: int, threads: int) -> int:
    """Panels that a task makes of a weight with that many rows: as many as give all threads as much to do."""
    panels = -(-rows // N)
    return -(-panels // (threads * -(-panels // (threads * PANELS))))


IN_PANELS = TILE_BYTES, PANEL_SUMS, 64
"""Where sums lie in a product: bytes from tile to tile of tokens, from panel to panel, and of a row."""


def sweep(add: Any, parts: int = 1, places: tuple[int, int, int] = IN_PANELS) -> Any:
    """A function (sums, x, x_stride, tiles, w, w_stride, panels, steps, afresh) that adds products to sums.

    x         tiles of tokens, `x_stride` bytes apart, each `steps` times `parts` tiles of K; w the same of panels
    afresh    whether sums begin at 0, and not with what lies there

    `add` is one of `amx.add_products`. Of two parts, the upper and the lower halves of numbers, three products of four
    are added. Tiles are of the function that calls this, which it is part of.
    """
    squares = [_square(add, tiles, panels, parts, places) for tiles, panels in ((2, 2), (1, 2), (2, 1), (1, 1))]
    (four, two_panels, two_tiles, one), (of_tile, of_panel, _) = squares, places
    both_tiles, both_panels, step_bytes = 2 * of_tile, 2 * of_panel, parts * TILE_BYTES

    def sweep(sums, x, x_stride, tiles, w, w_stride, panels, steps, afresh):
        next_slice, pairs = x + steps * step_bytes, (panels + 1) // 2
        fetched = 2 * step_bytes // pairs  # of the next two tiles, in a step of each pair of panels
        for tile in range(0, tiles, 2):
            place, weights, after = sums, w, x + 2 * x_stride if tile + 2 < tiles else next_slice
            for panel in range(0, panels, 2):
                at = after + panel // pairs * x_stride + panel % pairs * (steps * step_bytes // pairs)
                if tile + 1 < tiles and panel + 1 < panels:
                    four(place, x, x_stride, weights, w_stride, steps, afresh, at, fetched)
                elif tile + 1 < tiles:
                    two_tiles(place, x, x_stride, weights, w_stride, steps, afresh, at, fetched)
                elif panel + 1 < panels:
                    two_panels(place, x, x_stride, weights, w_stride, steps, afresh, at, fetched)
                else:
                    one(place, x, x_stride, weights, w_stride, steps, afresh, at, fetched)
                place += both_panels
                weights += 2 * w_stride
            x += 2 * x_stride
            sums += both_tiles

    return inner(sweep, parts, places, inline="always")


def _square(add: Any, tiles: int, panels: int, parts: int, places: tuple[int, int, int]) -> Any:
    """`sweep` for one or two tiles of tokens, and one or two panels."""
    step_bytes, rest, split, (of_tile, of_panel, row_bytes) = parts * TILE_BYTES, TILE_BYTES, parts == 2, places

    def square(sums, x, x_stride, w, w_stride, steps, afresh, ahead, fetched):
        amx.begin_sums(sums, of_tile, of_panel, row_bytes, afresh, tiles, panels)
        for step in range(steps):
            at, weights = x + step * step_bytes, w + step * step_bytes
            for line in range(0, fetched, 64):
                prefetch_to_l2(ahead + step * fetched + line)
            add(at, x_stride, weights, w_stride, tiles, panels)
            if split:
                amx.add_bf16_again(at + rest, x_stride, weights, w_stride, tiles, panels)
                add(at, x_stride, weights + rest, w_stride, tiles, panels)
        amx.end_sums(sums, of_tile, of_panel, row_bytes, tiles, panels)

    return inner(square, tiles, panels, parts, places, inline="always")
