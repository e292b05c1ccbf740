"""Codebooks against the gguf package's, and planes that no format with a codebook can hold."""

import dataclasses

import gguf.quants
import numpy as np
import pytest

from octavo.errors import QuantFormatError
from octavo.formats import by_name, codebook, pack, quantize_reference, unpack

CODEBOOKS = [codebook.IQ1, codebook.IQ2_XXS, codebook.IQ2_XS, codebook.IQ2_S, codebook.IQ3_XXS, codebook.IQ3_S]


@pytest.mark.parametrize("book", CODEBOOKS, ids=lambda book: book.name)
def test_entries_are_those_of_gguf(book):
    theirs = getattr(gguf.quants, "IQ1_S" if book.name == "IQ1" else book.name)
    theirs.init_grid()
    values = theirs.grid.reshape(theirs.grid_shape)
    assert np.array_equal(np.unique(values)[book.entries], values)


def _planes(name):
    return unpack(quantize_reference(np.random.default_rng(0).normal(size=(2, 256)), by_name(name)))


@pytest.mark.parametrize("name", ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M"])
def test_codes_that_are_not_in_the_codebook(name):
    planes = _planes(name)
    none = planes.q & 0xF0
    none[:, ::3] |= np.uint8((1 << by_name(name).codebook.bits) - 1)
    with pytest.raises(QuantFormatError, match="not in the codebook"):
        pack(dataclasses.replace(planes, q=none), by_name(name))


@pytest.mark.parametrize(
    ("name", "allowed"), [("IQ2_XXS", False), ("IQ3_XXS", False), ("IQ2_S", True), ("IQ3_S", True)]
)
def test_an_odd_number_of_signs(name, allowed):
    fmt, planes = by_name(name), _planes(name)
    q = planes.q.copy()
    q[0, 9] ^= 1 << fmt.codebook.bits
    changed = dataclasses.replace(planes, q=q)
    if allowed:
        assert len(pack(changed, fmt)) == 2
    else:
        with pytest.raises(QuantFormatError, match="odd number of negative"):
            pack(changed, fmt)


def test_a_shift_that_is_not_shared():
    planes = _planes("IQ1_M")
    q = planes.q.copy()
    q[0, 9] ^= 4
    with pytest.raises(QuantFormatError, match="shifts that differ"):
        pack(dataclasses.replace(planes, q=q), by_name("IQ1_M"))
