"""How the demo model's questions and answers write numbers."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from random import Random

Number = int | Decimal

ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()


def spell(n: int) -> str:
    """0 <= n <= 100 in words: 42 is "forty-two"."""
    if n < 20:
        return ONES[n]
    if n == 100:
        return "one hundred"
    tens, ones = divmod(n, 10)
    return TENS[tens - 2] + (f"-{ONES[ones]}" if ones else "")


def show(x: Number) -> str:
    """Digits without exponent, trailing zeros or thousands separators: Decimal("2.50") is "2.5"."""
    text = f"{x:f}" if isinstance(x, Decimal) else str(x)
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def write(rng: Random, values: Sequence[Number]) -> list[str]:
    """The numbers of one question, now and then as words ("five"), with separators ("12,500") or zeros ("2.50")."""
    style = rng.random()
    if style < 0.13 and all(isinstance(x, int) and 0 <= x <= 100 for x in values):
        plain = rng.randrange(len(values)) if style < 0.02 else None  # "five times 7"
        space = " " if rng.random() < 0.2 else "-"
        return [show(x) if i == plain else spell(int(x)).replace("-", space) for i, x in enumerate(values)]
    if style > 0.95:
        return [f"{x:,}" if isinstance(x, int) else show(x) for x in values]
    if style > 0.92:
        return [show(x) + ("0" if isinstance(x, Decimal) and x != int(x) else ".0") for x in values]
    return [show(x) for x in values]


def digits(rng: Random, longest: int, shortest: int = 1) -> int:
    """A number whose count of digits is drawn first, so that short numbers are as common as long ones."""
    n = rng.randint(shortest, longest)
    return rng.randrange(10 ** (n - 1) if n > 1 else 0, 10**n)


def decimal(rng: Random, whole: int, places: int) -> Decimal:
    """`whole` with up to `places` decimals, the last of them not 0."""
    places = rng.randint(1, places)
    fraction = rng.randrange(10 ** (places - 1)) * 10 + rng.randint(1, 9)
    return Decimal(whole * 10**places + fraction).scaleb(-places)
