"""Records: what callers fill by name is what kernels read, and no name is left out or made up."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.jit.argument_record import record
from octavo.jit.compile import kernels
from octavo.jit.program import KernelCall
from octavo.jit.simd import f32_pointer, stack

SCALE = record("x y", "k factor:f4 first")


@kernels(SCALE)
def scale_kernel():
    """y[first + i] = x[i] * factor, k values."""

    def scale(a, task):
        for i in range(a.k):
            f32_pointer(a.y)[a.first + i] = f32_pointer(a.x)[i] * a.factor

    return scale


@kernels(SCALE)
def copied_kernel():
    """`scale_kernel` on the second and third value, through a copy of the record and a view of that."""
    copy, at, nbytes = SCALE.copy, SCALE.at, SCALE.nbytes

    def copied(a, task):
        memory = stack(nbytes)
        mine = copy(memory, a.x)
        mine.x += 4
        mine.factor *= 2
        seen = at(memory)
        for i in range(seen.k):
            f32_pointer(seen.y)[seen.first + i] = f32_pointer(seen.x)[i] * seen.factor

    return copied


def test_fields_are_read_by_their_names() -> None:
    x, y = np.arange(3, dtype=np.float32), np.zeros(5, np.float32)
    call = KernelCall(scale_kernel(), 1, x=x, y=y, k=3, factor=0.5, first=2)
    call.run()
    np.testing.assert_array_equal(y, [0, 0, 0, 0.5, 1])
    call.fill({"first": 0, "factor": -2.0, "k": 2, "y": y.ctypes.data, "x": x.ctypes.data})
    call.run()
    np.testing.assert_array_equal(y, [0, -2, 0, 0.5, 1])


def test_a_copy_is_changed_alone() -> None:
    x, y = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    given = SCALE.new(x=x, y=y, k=2, factor=1.5, first=0)
    before = given.copy()
    KernelCall(copied_kernel(), 1, (x, y), x=given, y=0, k=0, factor=0.0, first=0).run()
    np.testing.assert_array_equal(y, [3, 6, 0])
    np.testing.assert_array_equal(given, before)


def test_an_array_lives_as_long_as_its_call() -> None:
    y = np.zeros(1, np.float32)
    call = KernelCall(scale_kernel(), 1, x=np.full(1, 7, np.float32), y=y, k=1, factor=1.0, first=0)
    trash = [np.zeros(1, np.float32) for _ in range(100)]
    call.run()
    assert y[0] == 7
    assert not np.any(trash)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": None}, "arguments without a value: k"),
        ({"stride": 4}, "no such arguments: stride"),
        ({"y": None, "z": 0}, "arguments without a value: y"),
    ],
)
def test_names_are_the_record_s(change: dict[str, int | None], message: str) -> None:
    given = {"x": 0, "y": 0, "k": 0, "factor": 0.0, "first": 0} | change
    with pytest.raises(TypeError, match=message):
        SCALE.new(**{name: value for name, value in given.items() if value is not None})


def test_fields_lie_as_in_c() -> None:
    assert SCALE.names == ("x", "y", "k", "factor", "first")
    assert [SCALE.dtype.fields[name][1] for name in SCALE.names] == [0, 8, 16, 24, 32]  # type: ignore[index]
    assert SCALE.nbytes == 40
