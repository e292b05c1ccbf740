# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Kernels of `cpu_tiles.py`: what tiles reach, and a product by tiles of which all but one part is left out."""

from __future__ import annotations

from typing import Any

from octavo.backends.cpu.matmul import amx_kernel
from octavo.backends.cpu.matmul.amx_kernel import PRODUCT
from octavo.backends.cpu.matmul.float_kernel import Kind
from octavo.backends.cpu.matmul.tasks import finish
from octavo.backends.cpu.matmul.tile_sweep import PANEL_SUMS, PANELS, STEPS, TILE_BYTES, TILES, N, sweep
from octavo.backends.cpu.weights.layout import ROWS, TiledLayout
from octavo.jit.argument_record import record
from octavo.jit.compile import inner, kernels
from octavo.jit.simd import amx, load_block, splat, stack, store_f32x16

PARTS = "unpack", "sweep", "store", "store panels"
"""The last stores sums panel by panel, all tokens of each, the one before it token by token."""
REACH = record("panels steps repeat", "done")
ADD = {"bf16": amx.add_bf16, "int8": amx.add_unsigned}


@kernels(REACH, long=True)
def reach_kernel(kind: str) -> Any:
    """Each task: `repeat` times 32 tokens by `panels` panels over `steps` tiles of K, all of them zeros."""
    add, room, both = sweep(ADD[kind]), PANELS * STEPS * TILE_BYTES, 2 * STEPS * TILE_BYTES
    sums_bytes, tile_bytes, fill = PANELS * PANEL_SUMS, TILE_BYTES, inner(_zeros)

    def reach(a, task):
        amx.configure(64)
        x, w, sums = stack(both), stack(room), stack(sums_bytes)
        fill(x, both)
        fill(w, room)
        for _ in range(a.repeat):
            add(sums, x, a.steps * tile_bytes, 2, w, a.steps * tile_bytes, a.panels, a.steps, True)
        amx.release()

    return reach


@kernels(PRODUCT, long=True)
def part_kernel(part: str, weight: TiledLayout | Kind) -> Any:
    """A part of `amx_kernel`'s product of a layout or a kind of floats: panels that are unpacked, their products with
    all tokens, or sums that are stored."""
    if isinstance(weight, TiledLayout):
        parts, unpack = 1, amx_kernel._unpack_blocks(weight)
    else:
        parts, unpack = amx_kernel.parts_of(weight), amx_kernel._unpack_floats(weight, 0)
    unpacks, sweeps, stores, by_panel = (part == name for name in PARTS)
    step_bytes, n, tile_bytes, most_steps, row_bytes = parts * TILE_BYTES, N, TILE_BYTES, STEPS, 4 * ROWS
    panel_bytes, most = STEPS * parts * TILE_BYTES, TILES
    room, panel_sums, sums_bytes = PANELS * STEPS * parts * TILE_BYTES, PANEL_SUMS, PANELS * PANEL_SUMS
    add_slice, end, fill = sweep(amx.add_bf16, parts), inner(finish(N), N), inner(_zeros)

    def product(a, task):
        amx.configure(64)
        task *= a.panels
        panels, steps = min(a.panels, (a.rows + 15) // 16 - task), (a.k + 31) // 32
        packed, sums, x_stride, all_tiles = stack(room), stack(sums_bytes), steps * step_bytes, a.tokens // n
        fill(packed, room)
        for first in range(0, all_tiles, most):
            tiles, x = min(all_tiles - first, most), a.x + first * x_stride
            for start in range(0, steps, most_steps):
                here = min(steps - start, most_steps)
                if unpacks:
                    for panel in range(panels):
                        unpack(a, task + panel, start, here, packed + panel * panel_bytes)
                if sweeps:
                    add_slice(
                        sums, x + start * step_bytes, x_stride, tiles, packed, panel_bytes, panels, here, start == 0
                    )
            if stores:
                for tile in range(tiles):
                    for panel in range(panels):
                        at = sums + panel * panel_sums + tile * tile_bytes
                        end(a, task + panel, (first + tile) * n, load_block(at, row_bytes, n))
            if by_panel:
                for panel in range(panels):
                    for tile in range(tiles):
                        at = sums + panel * panel_sums + tile * tile_bytes
                        end(a, task + panel, (first + tile) * n, load_block(at, row_bytes, n))
        amx.release()

    return product


def _zeros(memory, nbytes):
    for at in range(0, nbytes, 64):
        store_f32x16(memory + at, splat(0.0))
