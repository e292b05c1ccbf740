"""Grids against the gguf package's, and planes that no format with a grid can hold."""

import dataclasses

import gguf.quants
import numpy as np
import pytest

from octavo.errors import QuantFormatError
from octavo.formats import by_name, grid, pack, quantize_reference, unpack

GRIDS = [grid.IQ1, grid.IQ2_XXS, grid.IQ2_XS, grid.IQ2_S, grid.IQ3_XXS, grid.IQ3_S]


@pytest.mark.parametrize("points", GRIDS, ids=lambda g: g.name)
def test_points_are_those_of_gguf(points):
    theirs = getattr(gguf.quants, "IQ1_S" if points.name == "IQ1" else points.name)
    theirs.init_grid()
    values = theirs.grid.reshape(theirs.grid_shape)
    assert np.array_equal(np.unique(values)[points.points], values)


def _planes(name):
    return unpack(quantize_reference(np.random.default_rng(0).normal(size=(2, 256)), by_name(name)))


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"])
def test_codes_that_are_not_in_the_codebook(name):
    planes = _planes(name)
    none = planes.q & 0xF0
    none[:, ::3] |= np.uint8((1 << by_name(name).grid.bits) - 1)
    with pytest.raises(QuantFormatError, match="not in the codebook"):
        pack(dataclasses.replace(planes, q=none), by_name(name))


@pytest.mark.parametrize(
    ("name", "allowed"), [("IQ2_XXS", False), ("IQ3_XXS", False), ("IQ2_S", True), ("IQ3_S", True)]
)
def test_an_odd_number_of_signs(name, allowed):
    fmt, planes = by_name(name), _planes(name)
    q = planes.q.copy()
    q[0, 9] ^= 1 << fmt.grid.bits
    changed = dataclasses.replace(planes, q=q)
    if allowed:
        assert len(pack(changed, fmt)) == 2
    else:
        with pytest.raises(QuantFormatError, match="odd number of negative"):
            pack(changed, fmt)


def test_a_mark_that_is_not_shared():
    planes = _planes("IQ1_M")
    q = planes.q.copy()
    q[0, 9] ^= 4
    with pytest.raises(QuantFormatError, match="marks that differ"):
        pack(dataclasses.replace(planes, q=q), by_name("IQ1_M"))
