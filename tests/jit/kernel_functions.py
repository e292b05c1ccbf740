"""Small functions compiled as kernels are, memory where a byte too many is a fault, stand-ins for instructions."""

from __future__ import annotations

import ctypes
import ctypes.util
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils

from octavo.jit.compile import FAST
from octavo.jit.simd.emit import I8, I32


class Compiled:
    """`@compiled`: a function of integers, compiled with the options of kernels; arrays are passed as addresses."""

    def __call__(self, function: Callable[..., None]) -> Callable[..., None]:
        machine_code = self.inline(function)

        def call(*args: Any) -> None:
            machine_code(*[a.ctypes.data if isinstance(a, np.ndarray) else a for a in args])

        return call

    def inline(self, function: Callable[..., Any]) -> Any:
        """The compiled function itself, for others to call."""
        return njit(error_model="numpy", fastmath=FAST, nogil=True)(function)


compiled = Compiled()

_FENCES: list[mmap.mmap] = []


def fenced(nbytes: int) -> np.ndarray:
    """uint8 [nbytes], zeros, that end where a page begins that may be neither read nor written."""
    page = mmap.PAGESIZE
    size = -(-nbytes // page) * page
    memory = mmap.mmap(-1, size + page)
    _FENCES.append(memory)
    whole = np.frombuffer(memory, np.uint8)
    libc = ctypes.CDLL(ctypes.util.find_library("c"), use_errno=True)
    if libc.mprotect(ctypes.c_void_p(whole.ctypes.data + size), page, 0):
        raise OSError(ctypes.get_errno(), "mprotect")
    return whole[size - nbytes : size]


def pack_codes(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes [8, 64] below 2^bits to bytes, as the words of `simd.load_codes` have it: bit by bit."""
    codes = codes.reshape(8, 64).astype(np.int64)
    if bits == 8:
        return codes.astype(np.uint8).reshape(-1)
    if bits == 6:
        words = [half[i] << 2 | (half[3] >> (4 - 2 * i)) & 3 for half in (codes[:4], codes[4:]) for i in range(3)]
        return np.concatenate(words).astype(np.uint8)
    out, at = np.zeros(64 * bits, np.uint8), 0
    parts = {2: [2], 3: [2, 1], 4: [4], 5: [4, 1]}[bits]
    taken = 0
    for width in parts:
        per_word = 8 // width
        for j, vector in enumerate(codes):
            word, place = j % (8 // per_word), j // (8 // per_word)
            part = (vector >> taken) & ((1 << width) - 1)
            out[at + 64 * word : at + 64 * word + 64] |= (part << (width * place)).astype(np.uint8)
        taken, at = taken + width, at + 64 * width
    return out


def emulated(b: Any, name: str, result: Any, *args: Any) -> Any:
    """Arm's byte instructions, by their definitions in plain IR: so that the code around them runs here."""
    if not name.startswith("llvm.aarch64.neon."):
        function = ir.FunctionType(result, [a.type for a in args])
        return b.call(cgutils.get_or_insert_function(b.module, function, name), args)
    if "tbl1" in name:
        return _table_look_up(b, *args)
    if "usmmla" in name:
        return _matrix_product(b, *args)
    acc, x, y = args
    wide, extend = ir.VectorType(I32, 16), b.zext if "usdot" in name else b.sext
    products = b.mul(extend(x, wide), b.sext(y, wide))
    for i in range(4):
        every_fourth = ir.Constant(ir.VectorType(I32, 4), list(range(i, 16, 4)))
        acc = b.add(acc, b.shuffle_vector(products, products, every_fourth))
    return acc


def _matrix_product(b: Any, acc: Any, x: Any, y: Any) -> Any:
    """acc[2 i + j] + the products of bytes 8 i to 8 i + 7 of x, unsigned, and 8 j to 8 j + 7 of y, signed."""
    wide = ir.VectorType(I32, 16)
    x, y = b.zext(x, wide), b.sext(y, wide)
    for place in range(4):
        total = b.extract_element(acc, ir.Constant(I32, place))
        for k in range(8):
            factors = [b.extract_element(v, ir.Constant(I32, 8 * i + k)) for v, i in ((x, place // 2), (y, place % 2))]
            total = b.add(total, b.mul(*factors))
        acc = b.insert_element(acc, total, ir.Constant(I32, place))
    return acc


def _table_look_up(b: Any, table: Any, codes: Any) -> Any:
    """The byte of a table of 16 at each code; 0 for codes from 16 on."""
    out = ir.Constant(codes.type, [0] * 16)
    for i in range(16):
        code = b.extract_element(codes, ir.Constant(I32, i))
        found = b.extract_element(table, b.zext(b.and_(code, ir.Constant(I8, 15)), I32))
        inside = b.icmp_unsigned("<", code, ir.Constant(I8, 16))
        out = b.insert_element(out, b.select(inside, found, ir.Constant(I8, 0)), ir.Constant(I32, i))
    return out
