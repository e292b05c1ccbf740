"""Threads of a compiled kernel's values, as tools/maps reads them from Triton's GPU dialect."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

TEXT = """\
#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [2, 1], order = [1, 0]}>
#loc1 = loc("/a/kernels/loads.py":15:4)
#loc2 = loc("/a/kernels/matvec.py":30:8)
#loc3 = loc("low"(#loc2))
#loc4 = loc(callsite(#loc1 at #loc3))
    %a = tt.load %p, %m, %o : tensor<8x32x!tt.ptr<i32>, #blocked> loc(#loc4)
    tt.store %q, %b : tensor<8x!tt.ptr<f32>, #ttg.slice<{dim = 1, parent = #blocked}>> loc(#loc2)
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
