"""What `octavo bench gemm` checks and times: a product of quantized operands on a device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from octavo.formats.spec import F32
from octavo.ops.definition import Activation, Fp8

Calls = Sequence[Callable[[], object]]


@dataclass(frozen=True)
class How:
    """What is asked of a product besides its scheme.

    scale_a           what has a scale: "token", "tensor", or a number of values of a token and of a row of weights
    kinds             of fp8: the types of activations and weights
    bias, residual    whether there are any, Gaussian
    activation        before the residual is added
    seed              of all that is drawn
    """

    scale_a: Literal["token", "tensor"] | int = "token"
    kinds: tuple[Fp8, Fp8] = ("e4m3", "e4m3")
    bias: bool = False
    activation: Activation | None = None
    residual: bool = False
    seed: int = 0


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
    after         what follows the sums, by name as `ops` takes it: bias, activation and residual
    """

    bound: float
    run: Callable[[], F32]
    exact: Callable[[npt.NDArray[np.intp]], F32]
    calls: Callable[[int], Calls]
    operands: tuple[Any, ...]
    weight_bytes: int
    bytes: int
    after: dict[str, Any] = field(default_factory=dict)
