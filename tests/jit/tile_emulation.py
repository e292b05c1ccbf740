"""A plugin of pytest for a process that has Intel's matrix tiles (AMX) in memory: each instruction by its definition.

Kernels name tiles between `configure` and `release` in one function, so that function's stack holds them.
"""

from __future__ import annotations

from typing import Any

import pytest
from llvmlite import ir
from numba.core import cgutils

from octavo.jit import host_cpu
from octavo.jit.simd import amx
from octavo.jit.simd.emit import AS_WRITTEN, I8, I16, I32, I64, V_F32, V_I32, call_llvm, load_at, repeat, store_at

TILE_BYTES, ROW_BYTES = 1024, 64
ROW_SIZES, ROWS = 16, 48
"""Where bytes of rows, int16, and numbers of rows are in what `ldtilecfg` reads."""

_memory: dict[Any, tuple[Any, Any]] = {}


def instruction(b: Any, name: str, tiles: tuple[int, ...], *values: Any) -> None:
    """In the place of `amx.instruction`."""
    memory, config = _memory_of(b)
    if name == "ldtilecfg":
        b.store(b.ptrtoint(values[0], I64), config)
    elif name == "tilerelease":
        b.store(ir.Constant(I64, 0), config)  # what uses a tile now faults
    elif name == "tilezero":
        _each(b, b.load(config), memory, tiles[0], lambda at, r, j: store_at(b, at, ir.Constant(I8, 0)))
    elif name in ("tileloadd64", "tilestored64"):
        address, stride = b.ptrtoint(values[0], I64), values[1]

        def move(at: Any, r: Any, j: Any) -> None:
            there = b.add(address, b.add(b.mul(r, stride), j))
            source, to = (there, at) if name == "tileloadd64" else (at, there)
            store_at(b, to, load_at(b, source, I8))

        _each(b, b.load(config), memory, tiles[0], move)
    elif name == "tdpbf16ps":
        _dot_bf16(b, b.load(config), memory, tiles)
    else:
        _dot(b, b.load(config), memory, tiles, {"tdpbssd": b.sext, "tdpbsud": b.zext}[name])


def _memory_of(b: Any) -> tuple[Any, Any]:
    """The address of the function's tiles, and where that of their shapes is kept."""
    if b.function not in _memory:
        with b.goto_entry_block():
            config = b.alloca(I64)
            _memory[b.function] = b.ptrtoint(b.alloca(I8, ir.Constant(I32, 8 * TILE_BYTES)), I64), config
    return _memory[b.function]


def _shape(b: Any, config: Any, tile: int) -> tuple[Any, Any]:
    return b.zext(load_at(b, config, I8, ROWS + tile), I64), b.zext(load_at(b, config, I16, ROW_SIZES + 2 * tile), I64)


def _each(b: Any, config: Any, memory: Any, tile: int, do: Any) -> None:
    """Do something at each byte: its address, row and place in the row."""
    rows, size = _shape(b, config, tile)
    with cgutils.for_range(b, rows) as row, cgutils.for_range(b, size) as byte:
        place = b.add(b.mul(row.index, ir.Constant(I64, ROW_BYTES)), byte.index)
        do(b.add(memory, b.add(place, ir.Constant(I64, tile * TILE_BYTES))), row.index, byte.index)


def _dot(b: Any, config: Any, memory: Any, tiles: tuple[int, ...], extend: Any) -> None:
    """sums [m, n] += tokens [m, 4 k + i] * weights [k, 4 n + i], bytes; `extend` is for those of weights."""
    four, line = ir.Constant(I64, 4), ir.Constant(I64, ROW_BYTES)
    sums, tokens, weights = (b.add(memory, ir.Constant(I64, tile * TILE_BYTES)) for tile in tiles)
    rows, row_bytes = _shape(b, config, tiles[0])
    depth = _shape(b, config, tiles[2])[0]
    columns = b.udiv(row_bytes, four)
    each = cgutils.for_range
    with each(b, rows) as m, each(b, columns) as n, each(b, depth) as k:
        at = b.add(sums, b.add(b.mul(m.index, line), b.mul(n.index, four)))
        x = b.add(tokens, b.add(b.mul(m.index, line), b.mul(k.index, four)))
        w = b.add(weights, b.add(b.mul(k.index, line), b.mul(n.index, four)))
        total = load_at(b, at, I32)
        for i in range(4):
            product = b.mul(b.sext(load_at(b, x, I8, i), I32), extend(load_at(b, w, I8, i), I32))
            total = b.add(total, product)
        store_at(b, at, total)


def _dot_bf16(b: Any, config: Any, memory: Any, tiles: tuple[int, ...]) -> None:
    """sums [m, n] += sum of tokens [m, 2 k] * weights [k, 2 n] + sum of their odd ones, each fused, in order; n are
    lanes, those past a row's end too."""
    line, four = ir.Constant(I64, ROW_BYTES), ir.Constant(I64, 4)
    sums, tokens, weights = (b.add(memory, ir.Constant(I64, tile * TILE_BYTES)) for tile in tiles)
    rows, depth = _shape(b, config, tiles[0])[0], _shape(b, config, tiles[2])[0]
    each = cgutils.for_range
    with b.goto_entry_block():
        parts = [b.alloca(V_F32) for _ in range(2)]
    with each(b, rows) as m:
        at = b.add(sums, b.mul(m.index, line))
        for part in parts:
            b.store(ir.Constant(V_F32, None), part)
        with each(b, depth) as k:
            x = load_at(b, b.add(tokens, b.add(b.mul(m.index, line), b.mul(k.index, four))), I32)
            pairs = repeat(b, x), load_at(b, b.add(weights, b.mul(k.index, line)), V_I32)
            for part, wide in zip(parts, (_even, _odd), strict=True):
                values = [b.bitcast(wide(b, y), V_F32) for y in pairs]
                b.store(call_llvm(b, "llvm.fma.v16f32", V_F32, *values, b.load(part)), part)
        total = b.fadd(*(b.load(part) for part in parts), flags=AS_WRITTEN)
        store_at(b, at, b.fadd(load_at(b, at, V_F32), total, flags=AS_WRITTEN))


def _even(b: Any, pairs: Any) -> Any:
    return b.shl(pairs, ir.Constant(V_I32, [16] * 16))


def _odd(b: Any, pairs: Any) -> Any:
    return b.and_(pairs, ir.Constant(V_I32, [-65536] * 16))


def pytest_configure() -> None:
    from octavo.backends.cpu import backend

    host_cpu.why_no_tiles = lambda: ""
    amx.instruction = instruction
    backend.compile_together = lambda kernels, threads: None  # other processes would make the instructions


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not _memory:
        session.exitstatus = 1
        print("no kernel had tiles")
