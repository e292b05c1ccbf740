"""The assembly that makes float16 of codes, run by an interpreter of its few instructions, against plain arithmetic."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from octavo.backends.gpu.matmul.w4a16.hopper_kernel import e2m1_ptx, unpack_ptx
from octavo.backends.gpu.weights import decode_half
from octavo.formats.scalars import e4m3_to_f32

Words = dict[str, int]


def floats(word: int) -> np.ndarray:
    return np.array([word & 0xFFFF, word >> 16], np.uint16).view(np.float16).astype(np.float64)


def word_of(values: np.ndarray) -> int:
    low, high = values.astype(np.float16).view(np.uint16).tolist()
    return int(low | high << 16)


def permuted(a: int, b: int, which: int) -> int:
    data = (a | b << 32).to_bytes(8, "little")
    return sum(data[which >> 4 * i & 7] << 8 * i for i in range(4))


OPS: dict[str, Callable[..., int]] = {
    "mov.b32": lambda a: a,
    "xor.b32": lambda a, b: a ^ b,
    "and.b32": lambda a, b: a & b,
    "shr.u32": lambda a, b: a >> b,
    "shl.b32": lambda a, b: a << b & 0xFFFFFFFF,
    "prmt.b32": permuted,
    "sub.f16x2": lambda a, b: word_of(floats(a) - floats(b)),
    "sub.rn.f16x2": lambda a, b: word_of(floats(a) - floats(b)),
    "mul.f16x2": lambda a, b: word_of(floats(a) * floats(b)),
    "fma.rn.f16x2": lambda a, b, c: word_of(floats(a) * floats(b) + floats(c)),
}

LOP3: dict[int, Callable[[int, int, int], int]] = {0x6A: lambda a, b, c: a & b ^ c, 0xEA: lambda a, b, c: a & b | c}
"""By the table of what comes out."""


def run(ptx: str, words: Words) -> Words:
    """The registers after assembly has run; `words` are those it is given, by name."""
    for line in ptx.strip("{} ").split(";"):
        if not line.strip() or ".reg" in line:
            continue
        op, rest = line.split(None, 1)
        out, *inputs = re.findall(r"\{[^}]*\}|[^,\s]+", rest)
        values = [_value(text, words) for text in inputs]
        if op == "lop3.b32":
            found = LOP3[values.pop()](*values)
        else:
            found = OPS[op](*values)
        if out.startswith("{"):
            low, high = (name.strip() for name in out[1:-1].split(","))
            words |= {low: found & 0xFFFF, high: found >> 16}
        else:
            words[out] = found
    return words


def _value(text: str, words: Words) -> int:
    if text.startswith("{"):
        low, high = (words[name.strip()] for name in text[1:-1].split(","))
        return low | high << 16
    return words[text] if text in words else int(text, 0)


CASES = [(bits, signed, *kind, part) for bits in (4, 5, 6, 8) for signed in (False, True)
         for kind in ((False, False), (True, False), (True, True)) for part in (0, 1)]


@pytest.mark.parametrize(("bits", "signed", "has_min", "has_zero", "part"), CASES)
def test_codes_become_floats(bits: int, signed: bool, has_min: bool, has_zero: bool, part: int) -> None:
    """code * scale + minimum, rounded once; or (code - zero point) * scale."""
    ptx, constraints = _plain(unpack_ptx)(bits, signed, has_min, has_zero, part)
    rng, values = np.random.default_rng(bits), 1 if bits == 8 else 2
    first, words = 2 * values, 2 if bits in (5, 6) else 1
    assert constraints == ",".join(["=r"] * first + ["r"] * (words + 4 + 4 * has_min))
    for _ in range(12):
        codes, upper = (int(x) for x in rng.integers(0, 1 << 32, 2))
        scales, minima = rng.uniform(-0.1, 0.1, (2, 2)).astype(np.float16)
        zeros = rng.integers(0, 1 << bits, 2)
        given = [codes, upper][:words] + [word_of(scales)] * 4
        given += [word_of(1024.0 + zeros if has_zero else minima)] * (4 * has_min)
        found = run(ptx, {f"${first + i}": word for i, word in enumerate(given)})
        for at, (which, stored) in _codes(codes, upper, bits, part):
            code = stored ^ (1 << (bits - 1)) * signed
            zero = int(zeros[which]) if has_zero else (1 << (bits - 1)) * signed
            expected = float(scales[which]) * (code - zero) + float(minima[which]) * (has_min and not has_zero)
            assert floats(found[f"${at // 2}"])[at % 2] == np.float16(expected)


def test_floats_of_four_bits_become_floats_of_sixteen() -> None:
    """All pairs of a low and a high code, at each byte of a word, times scales of which float16 holds 2^14 times."""
    ptx, constraints = _plain(e2m1_ptx)()
    assert constraints == ",".join(["=r"] * 4 + ["r"] * 5)
    values = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
    rng = np.random.default_rng(0)
    for byte in range(256):
        codes, scales = np.array([byte, *rng.integers(0, 256, 3)], np.uint8), 2.0 ** rng.integers(-9, 2, 2)
        given = [int(codes.view("<u4")[0])] + [word_of(scales * 2.0**14)] * 4
        found = run(ptx, {f"${4 + i}": word for i, word in enumerate(given)})
        for i, nibbles in enumerate((codes & 15, codes >> 4)):
            for odd in range(2):
                np.testing.assert_array_equal(
                    floats(found[f"${2 * i + odd}"]), values[nibbles[odd::2]] * scales[i]
                )


@pytest.mark.parametrize("name", ["INT8", "FP8", "INT4"])
def test_codes_become_integers(name: str) -> None:
    """Four bytes, in the order of their values; e4m3 over 256, and of int4 the low bits before the high ones."""
    ptx, registers = getattr(decode_half, f"HALVES_OF_{name}").value, 4 if name == "INT4" else 2
    for first in range(0, 256, 4):
        codes = np.arange(first, first + 4, dtype=np.uint8)
        word = int(codes.view("<u4")[0])
        found = run(ptx, {f"${registers}": word})
        got = np.concatenate([floats(found[f"${i}"]) for i in range(registers)])
        nibbles = (np.concatenate([codes & 15, codes >> 4]).astype(np.int8) ^ 8) - 8
        wanted = {"INT8": codes.view(np.int8), "FP8": e4m3_to_f32(codes) / 256, "INT4": nibbles}[name]
        is_number = ~np.isnan(np.asarray(wanted, np.float32))
        np.testing.assert_array_equal(got[is_number], wanted[is_number])


def _codes(codes: int, upper: int, bits: int, part: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Places of float16 in the registers that come out, with low (0) or high (1) and the stored code of each."""
    for i in range(1 if bits == 8 else 2):
        for odd in range(2):
            for lane in range(2):
                shift = 8 * (odd + 2 * lane)
                code = codes >> shift & 0xFF if bits == 8 else codes >> (shift + 4 * i) & 15
                if bits in (5, 6):
                    code |= (upper >> (shift + (bits - 4) * i + 4 * part) & ((1 << bits) - 1) >> 4) << 4
                yield 4 * i + 2 * odd + lane, (part if bits == 8 else i, code)


def _plain(function: Any) -> Any:
    """What a function of the compiler's is written as."""
    return getattr(function, "fn", function)
