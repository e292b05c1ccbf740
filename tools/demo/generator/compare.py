"""Comparisons of whole and decimal numbers."""

from __future__ import annotations

from random import Random
from typing import cast

from generator.number_words import Number, decimal, digits, show, write
from generator.question import Operands
from generator.wording import dress

LARGER = ("larger", "bigger", "greater", "higher", "more")
SMALLER = ("smaller", "less", "lower")
WHICH = (
    "Which is {w}, {a} or {b}?",
    "Which is {w}: {a} or {b}?",
    "What is {w}, {a} or {b}?",
    "Which number is {w}, {a} or {b}?",
    "Which one is {w}: {a} or {b}?",
    "Which of {a} and {b} is {w}?",
    "{a} or {b}, which is {w}?",
    "Is {a} or {b} {w}?",
    "Tell me which is {w}: {a} or {b}.",
)
WHETHER = (
    "Is {a} {w} than {b}?",
    "Is {a} really {w} than {b}?",
    "Is the number {a} {w} than {b}?",
    "Is it true that {a} is {w} than {b}?",
    "Would you say {a} is {w} than {b}?",
    "{a} is {w} than {b}, right?",
    "Tell me if {a} is {w} than {b}.",
)
EQUAL = (
    "Is {a} equal to {b}?",
    "Are {a} and {b} equal?",
    "Are {a} and {b} the same?",
    "Is {a} the same as {b}?",
    "Does {a} equal {b}?",
    "{a} = {b}, true or false?",
    "{a} == {b}?",
)
COMPARE = (
    "Compare {a} and {b}.",
    "Compare {a} with {b}.",
    "Compare {a} to {b}.",
    "{a} vs {b}",
    "{a} versus {b}",
    "How does {a} compare to {b}?",
)


def draw_comparison(rng: Random) -> Operands:
    """Two numbers: of like length, near one another, equal, or decimals of unlike length (3.9 and 3.11)."""
    style = rng.random()
    if style < 0.45:
        a, b = digits(rng, 7), digits(rng, 7)
    elif style < 0.60:
        a = digits(rng, 7)
        b = max(0, a + rng.randint(-20, 20))
    elif style < 0.66:
        a = b = digits(rng, 7)
    elif style < 0.72:
        a, b = rng.randint(-99, 99), rng.randint(-99, 99)
    else:
        return "compare", *_decimals(rng)
    return "compare", a, b


def _decimals(rng: Random) -> tuple[Number, Number]:
    whole = digits(rng, 3)
    other = whole if rng.random() < 0.7 else digits(rng, 3)
    return decimal(rng, whole, 3), (other if rng.random() < 0.1 else decimal(rng, other, 3))


def word_comparison(rng: Random, operands: Operands) -> tuple[str, str]:
    """Prompt and answer of ("compare", a, b)."""
    a, b = cast(tuple[Number, Number], operands[1:])
    style = rng.random()
    shown = {"a": show(a), "b": show(b)}
    asked = dict(zip("ab", write(rng, (a, b)), strict=True))
    if style < 0.40:
        text, answer = _which(rng, a, b)
    elif style < 0.75:
        text, answer = _whether(rng, a, b)
    elif style < 0.87:
        text = rng.choice(EQUAL)
        answer = "Yes, {a} is equal to {b}." if a == b else "No, {a} is not equal to {b}."
    else:
        text = rng.choice(COMPARE)
        relation = "equal to" if a == b else "greater than" if a > b else "less than"
        answer = f"{{a}} is {relation} {{b}}."
    text = text.format(**asked)
    return dress(rng, text[0].upper() + text[1:]), answer.format(**shown)


def _which(rng: Random, a: Number, b: Number) -> tuple[str, str]:
    larger = rng.random() < 0.6
    text = rng.choice(WHICH).replace("{w}", rng.choice(LARGER if larger else SMALLER))
    if a == b:
        return text, "Neither: {a} is equal to {b}."
    first = (a > b) == larger
    return text, ("{a} is {w} than {b}." if first else "{b} is {w} than {a}.").replace(
        "{w}", "greater" if larger else "less"
    )


def _whether(rng: Random, a: Number, b: Number) -> tuple[str, str]:
    larger = rng.random() < 0.5
    word = "greater" if larger else "less"
    text = rng.choice(WHETHER).replace("{w}", rng.choice(LARGER if larger else SMALLER))
    if rng.random() < 0.15:
        text = rng.choice(("{a} > {b}?", "Is {a} > {b}?") if larger else ("{a} < {b}?", "Is {a} < {b}?"))
    if a > b if larger else a < b:
        return text, f"Yes, {{a}} is {word} than {{b}}."
    return text, f"No, {{a}} is not {word} than {{b}}."


def is_obvious(operands: Operands) -> bool:
    """Two whole numbers of at most ten: learned by heart."""
    return all(isinstance(x, int) and abs(x) <= 10 for x in operands[1:])
