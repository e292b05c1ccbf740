"""Which numbers the four operations are asked about: the range that the demo model promises."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import cast

from generator.number_words import Number, decimal, digits
from generator.question import Operands


def draw_sum(rng: Random) -> Operands:
    """a + b of up to six digits, a few of them negative."""
    return "+", *_pair(rng)


def draw_difference(rng: Random) -> Operands:
    """a - b of up to six digits, three in ten alike in their first digits; results may be negative."""
    if rng.random() < 0.3:
        a = digits(rng, 6, 2)
        return "-", a, _near(rng, a)
    a, b = _pair(rng)
    if rng.random() < 0.5 and a < b:
        a, b = b, a
    return "-", a, b


def _near(rng: Random, a: int) -> int:
    """A number that shares some, or all, of the first digits of `a` or is a few less or more."""
    unit: int = 10 ** rng.randint(0, len(str(a)) - 1)
    if rng.random() < 0.5:
        return a // unit * unit + rng.randrange(unit)
    return min(max(0, a + rng.randint(-unit, unit)), 999_999)


def _pair(rng: Random) -> tuple[int, int]:
    if rng.random() < 0.06:
        return rng.randint(-99, 99), rng.randint(-99, 99)
    return digits(rng, 6), digits(rng, 6)


def draw_decimals(rng: Random) -> Operands:
    """a + b or a - b below 1,000 with up to two decimals."""
    a: Number = decimal(rng, digits(rng, 3), 2)
    b: Number = decimal(rng, digits(rng, 3), 2)
    if rng.random() < 0.3:
        a, b = _swapped(rng, a, digits(rng, 3))
    if rng.random() < 0.5:
        return "+", a, b
    if rng.random() < 0.25:
        b = decimal(rng, _near(rng, int(a)), 2)
    return ("-", a, b) if rng.random() < 0.2 else ("-", max(a, b), min(a, b))


def draw_product(rng: Random) -> Operands:
    """a * b: one or two digits by one or two."""
    a, b = (rng.randint(0 if rng.random() < 0.1 else 2, 99) for _ in range(2))
    return "*", *_signed(rng, a, b)


def draw_long_product(rng: Random) -> Operands:
    """a * b: one digit by up to four, a power of ten by up to four, or both with zeros at the end."""
    if rng.random() < 0.06:
        long, short = rng.randint(1, 99) * 10 ** rng.randint(0, 2), rng.randint(1, 9) * 10 ** rng.randint(1, 3)
        return "*", *_swapped(rng, long, short)
    long = digits(rng, 4) if rng.random() < 0.2 else digits(rng, 4, 3)
    short = rng.choice((10, 100, 1000)) if rng.random() < 0.2 else rng.randint(0, 9)
    return "*", *_swapped(rng, long, short)


def draw_wide_product(rng: Random) -> Operands:
    """a * b: two digits by three."""
    return "*", *_swapped(rng, rng.randint(10, 99), rng.randint(100, 999))


def draw_decimal_product(rng: Random) -> Operands:
    """a * b with decimals: of two digits each, or of three digits by one."""
    if rng.random() < 0.5:
        a, b = Decimal(rng.randint(1, 99)).scaleb(-1), Decimal(rng.randint(2, 99)).scaleb(-rng.randint(0, 1))
    else:
        a, b = Decimal(rng.randint(11, 999)).scaleb(-rng.randint(1, 2)), Decimal(rng.randint(2, 9))
    return "*", *_swapped(rng, _plain(a), _plain(b))


def draw_exact_quotient(rng: Random) -> Operands:
    """a / b without a remainder: the divisor and the quotient below 100, a / a, or the divisor 10 or 100."""
    if rng.random() < 0.15:
        return "/", digits(rng, 5, 2), rng.choice((10, 100))
    if rng.random() < 0.03:
        same = digits(rng, 4, 2)
        return "/", same, same
    quotient, divisor = rng.randint(1, 99), rng.randint(1, 99)
    return "/", *_signed(rng, quotient * divisor, divisor)


def draw_rounded_quotient(rng: Random) -> Operands:
    """a / b to two decimals: a below 10,000, b at most 12, or a below 100,000 and b 1,000."""
    if rng.random() < 0.06:
        return "/", digits(rng, 5, 2), 1000
    return "/", digits(rng, 4), rng.randint(2, 12)


def draw_wide_quotient(rng: Random) -> Operands:
    """a / b to two decimals: a below 1,000 and, less often, below 10,000; b of two digits."""
    return "/", digits(rng, 3 if rng.random() < 0.75 else 4), rng.randint(13, 99)


def draw_decimal_quotient(rng: Random) -> Operands:
    """a / b to two decimals, a or b with one decimal: whole quotients below 100, or a below 100 by at most 12."""
    if rng.random() < 0.5:
        b = Decimal(rng.randint(1, 99)).scaleb(-1)
        return "/", _plain(b * rng.randint(1, 99)), _plain(b)
    return "/", _plain(Decimal(rng.randint(1, 999)).scaleb(-1)), rng.randint(2, 12)


def draw_division_by_zero(rng: Random) -> Operands:
    """a / 0."""
    style = rng.random()
    if style < 0.1:
        return "/", decimal(rng, digits(rng, 3), 2), 0
    return "/", -digits(rng, 3) if style < 0.2 else digits(rng, 6), 0


def is_small(operands: Operands) -> bool:
    """The addition table to 10 and what undoes it, the multiplication table to 12 likewise: learned by heart."""
    symbol, a, b = cast(tuple[str, Number, Number], operands)
    if isinstance(a, Decimal) or isinstance(b, Decimal):
        return False
    if symbol == "*":
        return abs(a) <= 12 and abs(b) <= 12
    if symbol == "/":
        return abs(a) <= 12 or (abs(b) <= 12 and abs(a) <= 12 * abs(b))
    return abs(a) <= 10 and abs(b) <= 10


def _signed(rng: Random, a: int, b: int) -> tuple[int, int]:
    """Now and then a minus before one number or both."""
    if rng.random() < 0.92:
        return a, b
    return rng.choice(((-a, b), (a, -b), (-a, -b)))


def _swapped(rng: Random, a: Number, b: Number) -> tuple[Number, Number]:
    return (a, b) if rng.random() < 0.5 else (b, a)


def _plain(x: Decimal) -> Number:
    """Without zeros at the end: an int where there are no decimals left."""
    return int(x) if x == int(x) else x.normalize()
