"""The four operations, division by zero among them: which numbers, which words, which answer."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from random import Random
from typing import NamedTuple, cast

from generator.number_words import Number, show, write
from generator.question import Operands
from generator.wording import BARE, COMMAND_FRAMES, FRAMES, dress


class Operation(NamedTuple):
    """How one operation is written. Of `nouns` and `commands`, each is a wording and the answer it gets."""

    symbols: tuple[str, ...]
    nouns: tuple[tuple[str, str], ...]
    commands: tuple[tuple[str, str], ...]


OPERATIONS = {
    "+": Operation(
        symbols=("+",),
        nouns=(
            ("{a} plus {b}", "{a} plus {b} is {c}."),
            ("{a} and {b} together", "{a} plus {b} is {c}."),
            ("the sum of {a} and {b}", "The sum of {a} and {b} is {c}."),
            ("the total of {a} and {b}", "The sum of {a} and {b} is {c}."),
            ("{b} more than {a}", "{a} plus {b} is {c}."),
        ),
        commands=(
            ("add {a} and {b}", "{a} plus {b} is {c}."),
            ("add {b} to {a}", "{a} plus {b} is {c}."),
            ("sum {a} and {b}", "The sum of {a} and {b} is {c}."),
        ),
    ),
    "-": Operation(
        symbols=("-", "-", "-", "−"),
        nouns=(
            ("{a} minus {b}", "{a} minus {b} is {c}."),
            ("{a} less {b}", "{a} minus {b} is {c}."),
            ("{b} less than {a}", "{a} minus {b} is {c}."),
            ("{a} take away {b}", "{a} minus {b} is {c}."),
        ),
        commands=(
            ("subtract {b} from {a}", "{a} minus {b} is {c}."),
            ("take {b} away from {a}", "{a} minus {b} is {c}."),
            ("take {b} from {a}", "{a} minus {b} is {c}."),
        ),
    ),
    "*": Operation(
        symbols=("*", "*", "x", "×", "·"),
        nouns=(
            ("{a} times {b}", "{a} times {b} is {c}."),
            ("{a} multiplied by {b}", "{a} times {b} is {c}."),
            ("the product of {a} and {b}", "The product of {a} and {b} is {c}."),
        ),
        commands=(
            ("multiply {a} by {b}", "{a} times {b} is {c}."),
            ("multiply {a} and {b}", "{a} times {b} is {c}."),
            ("multiply {a} with {b}", "{a} times {b} is {c}."),
        ),
    ),
    "/": Operation(
        symbols=("/", "/", "/", "÷"),
        nouns=(
            ("{a} divided by {b}", "{a} divided by {b} is {c}."),
            ("{a} over {b}", "{a} divided by {b} is {c}."),
            ("the quotient of {a} and {b}", "The quotient of {a} and {b} is {c}."),
        ),
        commands=(
            ("divide {a} by {b}", "{a} divided by {b} is {c}."),
            ("split {a} by {b}", "{a} divided by {b} is {c}."),
        ),
    ),
}

WRITTEN = {"+": "+", "-": "-", "*": "×", "/": "/"}
UNDEFINED = "Division by zero is undefined: {a} / 0 has no result."


def result(operation: str, a: Number, b: Number) -> tuple[Number, bool]:
    """The value of `a operation b`, b not 0 where it divides, and whether it was rounded to two decimals."""
    if operation == "+":
        return a + b, False
    if operation == "-":
        return a - b, False
    if operation == "*":
        return a * b, False
    exact = Decimal(a) / Decimal(b)
    rounded = exact.quantize(Decimal("0.01"), ROUND_HALF_UP)
    return rounded, rounded * b != a


def word_operation(rng: Random, operands: Operands) -> tuple[str, str]:
    """Prompt and answer of (operation, a, b)."""
    symbol, a, b = cast(tuple[str, Number, Number], operands)
    question, answer = _asked(rng, symbol, a, b)
    if symbol == "/" and b == 0:
        return question, UNDEFINED.format(a=show(a))
    c, rounded = result(symbol, a, b)
    shown = show(c) + (", rounded to two decimals" if rounded else "")
    return question, answer.format(a=show(a), b=show(b), c=shown)


def _asked(rng: Random, symbol: str, a: Number, b: Number) -> tuple[str, str]:
    """A question about `a symbol b` and the form of its answer."""
    operation = OPERATIONS[symbol]
    special = SPECIAL.get((symbol, b), ()) if rng.random() < 0.15 else ()
    if symbol == "*" and a == b and rng.random() < 0.15:
        special = SQUARE
    if symbol == "-" and a >= b and rng.random() < 0.1:
        special = DIFFERENCE
    style = rng.random()
    if style < 0.55 and not special:
        frame = rng.choice(BARE if rng.random() < 0.5 else FRAMES)
        text = frame.format(e=_in_symbols(rng, operation, a, b))
        return (text if frame in BARE else dress(rng, text)), f"{{a}} {WRITTEN[symbol]} {{b}} = {{c}}."
    one, other = write(rng, (a, b))
    if style < 0.85 or special:
        form, answer = rng.choice(special or operation.nouns)
        text = rng.choice(FRAMES).format(e=form.format(a=one, b=other))
    else:
        form, answer = rng.choice(operation.commands)
        text = rng.choice(COMMAND_FRAMES).format(i=form.format(a=one, b=other))
    return dress(rng, text[0].upper() + text[1:]), answer


def _in_symbols(rng: Random, operation: Operation, a: Number, b: Number) -> str:
    one, other = write(rng, (a, b))
    if b < 0 and rng.random() < 0.5:
        other = f"({other})"
    space = " " if rng.random() < 0.65 else ""
    symbol = rng.choice(operation.symbols)
    if one[-1].isalpha() or (space == "" and other[0] == "-"):
        space = " "
    return f"{one}{space}{symbol}{space}{other}"


# Wordings that only some operands have.
SPECIAL: dict[tuple[str, Number], tuple[tuple[str, str], ...]] = {
    ("*", 2): (("double {a}", "{a} times 2 is {c}."), ("twice {a}", "{a} times 2 is {c}.")),
    ("/", 2): (("half of {a}", "{a} divided by 2 is {c}."), ("one half of {a}", "{a} divided by 2 is {c}.")),
    ("/", 3): (("a third of {a}", "{a} divided by 3 is {c}."),),
    ("/", 4): (("a quarter of {a}", "{a} divided by 4 is {c}."),),
}
DIFFERENCE = tuple(
    (f"the difference {words}", "{a} minus {b} is {c}.") for words in ("between {a} and {b}", "of {a} and {b}")
)
SQUARE = (("{a} squared", "{a} times {a} is {c}."), ("the square of {a}", "{a} times {a} is {c}."))
