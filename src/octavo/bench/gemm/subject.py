"""What `octavo bench gemm` checks and times: a product of quantized operands on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32

Calls = Sequence[Callable[[], object]]


@dataclass(frozen=True)
class GemmSubject:
    """A product of x [M, K] and w [N, K], quantized.

    bound         of the error against the product of the floats (rel_L2)
    run           the result, in the host's memory
    exact         of some rows: the product of the same quantized operands, without the kernel's own error
    calls         what is timed: given a number of copies of the weight, the product with each
    operands      its arguments on the device, activations and weight first; for the library's product
    weight_bytes  of the quantized weight
    bytes         of all that a product reads and writes
    """

    bound: float
    run: Callable[[], F32]
    exact: Callable[[npt.NDArray[np.intp]], F32]
    calls: Callable[[int], Calls]
    operands: tuple[Any, ...]
    weight_bytes: int
    bytes: int
