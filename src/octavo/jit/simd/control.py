# mypy: allow-untyped-defs, allow-untyped-calls, no-check-untyped-defs
"""Calls through addresses, and what threads need to work in step."""

from __future__ import annotations

import sys

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo.jit import host_cpu
from octavo.jit.simd.emit import I32, I64, VOID, call_llvm, pointer_at


@intrinsic
def call(ty, function, args, task):
    """Call the kernel at an address: void(args, task)."""

    def gen(c, b, s, a):
        signature = ir.FunctionType(VOID, [I64, I64])
        b.call(b.inttoptr(a[0], signature.as_pointer()), [a[1], a[2]])
        return c.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), gen


@intrinsic
def atomic_add(ty, address, n):
    """The int64 at an address before n was added to it, in one step for all threads."""
    gen = lambda c, b, s, a: b.atomic_rmw("add", pointer_at(b, a[0], I64), a[1], "seq_cst")  # noqa: E731
    return types.intp(types.intp, types.intp), gen


@intrinsic
def atomic_load(ty, address):
    """The int64 at an address, as other threads left it."""
    return types.intp(types.intp), lambda c, b, s, a: b.load_atomic(pointer_at(b, a[0], I64), "seq_cst", 8)


@intrinsic
def atomic_swap(ty, address, old, new):
    """Store a new int64 at an address if the old one is there, in one step for all threads, and tell whether it was."""

    def gen(c, b, s, a):
        found = b.cmpxchg(pointer_at(b, a[0], I64), a[1], a[2], "seq_cst", "seq_cst")
        return b.extract_value(found, 1)

    return types.boolean(types.intp, types.intp, types.intp), gen


@intrinsic
def yield_thread(ty):
    """Let the system run another thread on this core."""

    def gen(c, b, s, a):
        if sys.platform != "win32":
            call_llvm(b, "sched_yield", I32)
        return c.get_dummy_value()

    return types.void(), gen


@intrinsic
def processor(ty):
    """The number of the logical processor that this thread runs on, where Linux tells; 0 elsewhere."""

    def gen(c, b, s, a):
        if sys.platform != "linux":
            return ir.Constant(I64, 0)
        return b.sext(call_llvm(b, "sched_getcpu", I32), I64)

    return types.intp(), gen


@intrinsic
def ticks(ty):
    """What the CPU's clock shows, in units of its own."""
    name = "llvm.readsteadycounter" if host_cpu.is_arm() else "llvm.readcyclecounter"  # Arm's cycles are the system's
    return types.intp(), lambda c, b, s, a: call_llvm(b, name, I64)


@intrinsic
def pause(ty):
    """Tell the CPU that this is a waiting loop."""

    def gen(c, b, s, a):
        if host_cpu.level() in ("avx512vnni", "avxvnni", "avx2", "x86-64"):
            call_llvm(b, "llvm.x86.sse2.pause", VOID)
        elif host_cpu.is_arm():  # Arm's `yield` does nothing on most cores
            call_llvm(b, "llvm.aarch64.isb", VOID, ir.Constant(I32, 15))
        return c.get_dummy_value()

    return types.void(), gen
