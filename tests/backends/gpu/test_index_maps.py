"""Threads of a compiled kernel's values, as tools/maps reads them from Triton's GPU dialect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

TEXT = """\
#mma = #ttg.nvidia_mma<{versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 1], instrShape = [16, 8]}>
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [2, 1], order = [1, 0]}>
#loc1 = loc("/a/kernels/loads.py":15:4)
#loc2 = loc("/a/kernels/matvec.py":30:8)
#loc3 = loc("low"(#loc2))
#loc4 = loc(callsite(#loc1 at #loc3))
    %a = tt.load %p, %m, %o : tensor<8x32x!tt.ptr<i32>, #blocked> loc(#loc4)
    tt.store %q, %b : tensor<8x!tt.ptr<f32>, #ttg.slice<{dim = 1, parent = #blocked}>> loc(#loc2)
    %f = tt.dot %g, %h, %i : tensor<32x32xi8, #ttg.dot_op<{opIdx = 0, parent = #mma, kWidth = 4}>> * \
!ttg.memdesc<32x8xi8, #shared, #smem> -> tensor<32x8xi32, #mma> loc(#loc2)
    %c = arith.addi %d, %e : tensor<8x64xi32, #blocked> loc(#loc2)
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[3] / "tools")
    from maps.layouts import Program

    yield Program(TEXT)
    for name in [name for name in sys.modules if name.split(".")[0] == "maps"]:
        del sys.modules[name]


def test_a_load_within_a_function(program):
    found = program.holders(("loads.py:15", "matvec.py:30"), (8, 32))
    row, column = np.indices((8, 32))
    np.testing.assert_array_equal(found, row % 4 * 8 + column // 4 + row // 4 * 32)


def test_a_slice_has_the_first_of_the_threads_that_share_it(program):
    np.testing.assert_array_equal(program.holders(("matvec.py:30",), (8,)), [0, 8, 16, 24, 32, 40, 48, 56])


def test_an_access_that_is_assembly_lies_as_its_shape_does(program):
    found = program.holders(("loads.py:40",), (8, 64))
    np.testing.assert_array_equal(found[:, :32], found[:, 32:])  # threads come again
    with pytest.raises(KeyError):
        program.holders(("loads.py:40",), (3,))


def test_the_factors_and_the_sums_of_a_product(program):
    """As PTX defines fragments of mma.sync.m16n8k32: lane 4 g + t has rows g and g + 8, bytes from 4 t and 4 t + 16."""
    codes, tokens, sums = program.product()
    row, k = np.indices((32, 32))
    np.testing.assert_array_equal(codes, row % 8 * 4 + k % 16 // 4 + row // 16 * 32)
    assert tokens is None
    row, column = np.indices((32, 8))
    np.testing.assert_array_equal(sums, row % 8 * 4 + column // 2 + row // 16 * 32)


CODE = """
import json, re, triton
from tests.backends.gpu.compile.ahead_of_time import TARGETS, case_of
def text(layout, even):
    case = case_of("mmq", "", "sm_90")
    case = case._replace(even=even, fixed=case.fixed | {"LAYOUT": layout})
    return triton.compile(case.source(), target=TARGETS["sm_90"][0], options=case.options).asm["ptx"]
even = ("row", "channel", "sample", "k")
print(json.dumps({"DS4": text("DS4", even), "D2S6": text("D2S6", even), "any": text("DS4", ())}))
"""


@pytest.mark.slow
def test_what_the_page_says_of_the_quantizer():
    """docs/index-maps.md: one load of 16 bytes a lane where strides are even, and shuffles for the largest value."""
    root = Path(__file__).parents[3]
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, env=env, stdout=subprocess.PIPE, check=True)
    texts = json.loads(done.stdout)
    loads = {name: re.findall(r"ld\.global([.\w]*)", text) for name, text in texts.items()}
    assert loads == {"DS4": [".b32", ".v4.b32"], "D2S6": [".b32", ".v4.b32"], "any": [".b32"] * 5}  # the first: ids
    shuffles = {name: re.findall(r"shfl\.sync\.bfly\.b32\s.*, (\d+), 31", text) for name, text in texts.items()}
    assert shuffles["DS4"][:4] == ["4", "2", "1"]
    assert shuffles["D2S6"][:4] == ["8", "4", "2", "1"]
