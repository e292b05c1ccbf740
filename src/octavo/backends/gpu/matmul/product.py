"""A product of quantized weights, as the choice of its kernel sees it, and what shapes of programs have in common."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import ClassVar, NamedTuple, Self

from octavo.backends.gpu.launch.arguments import Constant
from octavo.backends.gpu.weights.layout import PlaneLayout


class Product(NamedTuple):
    """y [tokens, n] = x [tokens, kp] @ w.T.

    layout  of the weights
    n       rows of the weights; of an expert
    kp      values of a row, padded
    tokens  of experts: pairs of a token and an expert that an expert has on average
    arch    of the device, such as sm_90, gfx942, interpreter
    """

    layout: PlaneLayout
    n: int
    kp: int
    tokens: int
    arch: str

    @property
    def chunks(self) -> int:
        """Chunks of 32 codes in a row."""
        return self.kp // 32


POWERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Shape(Constant):
    """How a kernel divides a product into programs: made of the numbers that a tuned table has of it."""

    name: ClassVar[str]
    """Of the kernel, in tuned tables."""
    allowed: ClassVar[tuple[Container[int], ...]]
    """What each of the numbers there may be."""
    of_codes: ClassVar[bool] = False
    """Whether the kernel multiplies integers, and so no weights that are e4m3 numbers."""
    kinds: ClassVar[dict[str, type[Shape]]] = {}
    """All of them by name."""

    def __init_subclass__(cls) -> None:
        cls.kinds[cls.name] = cls

    @classmethod
    def of(cls, p: Product, *numbers: int) -> Self | None:
        """The shape that `numbers` say, as far as a product of this size has use for it; None if the kernel does not
        compute that product."""
        raise NotImplementedError

    @classmethod
    def space(cls, p: Product) -> Iterator[tuple[int, ...]]:
        """Numbers that are worth timing."""
        raise NotImplementedError
