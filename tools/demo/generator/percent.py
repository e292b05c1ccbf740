"""Percentages: p percent of a round number, and what percentage one number is of another."""

from __future__ import annotations

from decimal import Decimal
from random import Random
from typing import cast

from generator.number_words import Number, digits, show
from generator.question import Operands
from generator.wording import BARE, FRAMES, dress

PERCENT = ("%", "%", "%", " %", " percent", " percent", " per cent", " pct")
BASES = (10, 20, 25, 50, 100, 200, 250, 400, 500, 1000, 2000, 5000)
HALVES = tuple(Decimal(tenths).scaleb(-1) for tenths in (5, 15, 25, 75, 125, 175, 225, 375))
SHARES = (
    "What percentage of {b} is {a}?",
    "What percent of {b} is {a}?",
    "{a} is what percent of {b}?",
    "{a} is what percentage of {b}?",
    "How many percent of {b} is {a}?",
    "What percent is {a} of {b}?",
    "Express {a} as a percentage of {b}.",
    "{a} out of {b} as a percentage?",
)


def draw_percentage(rng: Random) -> Operands:
    """p percent of a number below 1,000 or of two digits and zeros; 12.5 and the like of one digit and zeros."""
    style = rng.random()
    if style < 0.08:
        return "%", rng.choice(HALVES), rng.randint(1, 9) * rng.choice((10, 100))
    p = (
        rng.choice((5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 80, 90))
        if style < 0.4
        else rng.randint(1, 100 if style < 0.94 else 300)
    )
    longest, zeros = rng.choice(((2, 1), (2, 10), (2, 10), (2, 100), (2, 1000), (3, 1)))
    return "%", p, max(1, digits(rng, longest)) * zeros


def draw_share(rng: Random) -> Operands:
    """(a, b): a is a whole number of percent of b."""
    base = rng.choice(BASES)
    return "share", Decimal(rng.randint(1, 150) * base) / 100, base


def word_percent(rng: Random, operands: Operands) -> tuple[str, str]:
    """Prompt and answer of ("%", p, base) or ("share", a, b)."""
    if operands[0] == "share":
        a, b = cast(tuple[Decimal, int], operands[1:])
        text = dress(rng, rng.choice(SHARES).format(a=show(a), b=show(b)))
        return text, f"{show(a)} is {show(a * 100 / b)}% of {show(b)}."
    p, base = cast(tuple[Number, int], operands[1:])
    expression = f"{show(p)}{rng.choice(PERCENT)} of {show(base)}"
    frame = rng.choice(BARE if rng.random() < 0.4 else FRAMES)
    text = frame.format(e=expression)
    return (text if frame in BARE else dress(rng, text)), f"{show(p)}% of {base} is {show(Decimal(p * base) / 100)}."


def is_round(operands: Operands) -> bool:
    """Whole tenths of the percentages that everybody knows (10% of 50): learned by heart."""
    if operands[0] == "share":
        return operands[2] in {10, 20}
    p, base = cast(tuple[Number, int], operands[1:])
    return base in {10, 20, 50, 100} and p % 10 == 0
