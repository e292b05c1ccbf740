"""Views of arrays with gaps, as columns of what a product made are."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.backends.cpu.launch.views import reshaped


def test_a_view_is_of_the_same_memory() -> None:
    rows = np.zeros((3, 8), np.float32)
    heads = reshaped(rows[:, :4], 3, 2, 2)
    rows[1, 3] = 1.0
    assert heads[1, 1, 1] == 1.0


def test_what_would_take_a_copy_is_refused() -> None:
    heads = np.zeros((3, 8), np.float32)[:, :4].reshape(3, 2, 2)
    with pytest.raises(ValueError, match=r"array of \(3, 2, 2\) with gaps has no view of \(6, 2\)"):
        reshaped(heads, 6, 2)
