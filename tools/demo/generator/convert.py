"""Conversions between units: which units, which amounts, which answers."""

from __future__ import annotations

from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from random import Random
from typing import NamedTuple, cast

from generator.number_words import digits, show, write
from generator.question import Operands
from generator.units import FORMS, NAMES, singular
from generator.wording import dress

Amounts = Callable[[Random], Decimal]


class Rule(NamedTuple):
    """One direction of a conversion: target = source * factor + offset, to `places` decimals.

    `amounts` draws the source amount. A rule that is `by_heart` has few amounts: all are trained on, none counted.
    """

    source: str
    target: str
    factor: Decimal
    amounts: Amounts
    by_heart: bool = False
    offset: Decimal = Decimal(0)
    places: int = 6


def _whole(highest: int) -> Amounts:
    def amounts(rng: Random) -> Decimal:
        while not 1 <= (amount := digits(rng, len(str(highest)))) <= highest:
            pass
        return Decimal(amount)

    return amounts


def _degrees(low: int, high: int) -> Amounts:
    return lambda rng: Decimal(rng.randint(low, high))


def _metric_amount(rng: Random) -> Decimal:
    value = Decimal(max(1, digits(rng, 4)))
    return Decimal(show(value.scaleb(-rng.choice((0, 0, 0, 1, 2)))))


def _metric(small: str, large: str, factor: int) -> tuple[Rule, Rule]:
    """Shifts of the decimal point, exact in both directions."""
    down = Rule(large, small, Decimal(factor), _metric_amount)
    return down, Rule(small, large, 1 / Decimal(factor), _metric_amount)


def _counted(small: str, large: str, factor: int, highest: int, step: int) -> tuple[Rule, Rule]:
    """Whole large units; small ones in multiples of `step`, where the result is simple, as often as in any number."""
    multiples, whole = _whole(highest * factor // step), _whole(999)

    def amounts(rng: Random) -> Decimal:
        return step * multiples(rng) if rng.random() < 0.6 else whole(rng)

    down = Rule(large, small, Decimal(factor), _whole(highest))
    return down, Rule(small, large, 1 / Decimal(factor), amounts, places=2)


def _table(source: str, target: str, factor: str, highest: int, places: int = 2) -> Rule:
    return Rule(source, target, Decimal(factor), _whole(highest), by_heart=True, places=places)


RULES = (
    *_metric("mm", "cm", 10),
    *_metric("cm", "m", 100),
    *_metric("mm", "m", 1000),
    *_metric("m", "km", 1000),
    *_metric("mg", "g", 1000),
    *_metric("g", "kg", 1000),
    *_metric("kg", "t", 1000),
    *_metric("mL", "L", 1000),
    *_metric("bytes", "kB", 1000),
    *_metric("kB", "MB", 1000),
    *_metric("MB", "GB", 1000),
    *_counted("s", "min", 60, 999, 30),
    *_counted("min", "h", 60, 999, 15),
    *_counted("h", "days", 24, 365, 6),
    *_counted("days", "weeks", 7, 200, 7),
    *_counted("months", "years", 12, 100, 6),
    *_counted("bits", "bytes", 8, 999, 8),
    *_counted("inches", "feet", 12, 200, 6),
    *_counted("feet", "yards", 3, 500, 3),
    _table("h", "s", "3600", 48),
    _table("days", "min", "1440", 14),
    _table("days", "s", "86400", 14),
    _table("weeks", "h", "168", 20),
    _table("years", "days", "365", 20),
    _table("years", "weeks", "52", 20),
    _table("KiB", "bytes", "1024", 64),
    _table("MiB", "KiB", "1024", 64),
    _table("GiB", "MiB", "1024", 64),
    _table("MiB", "bytes", "1048576", 8),
    _table("inches", "cm", "2.54", 100),
    _table("cm", "inches", "0.3937007874", 200),
    _table("feet", "cm", "30.48", 50),
    _table("feet", "m", "0.3048", 100),
    _table("m", "feet", "3.280839895", 100),
    _table("miles", "km", "1.609344", 100),
    _table("km", "miles", "0.6213711922", 100),
    _table("pounds", "kg", "0.45359237", 200),
    _table("kg", "pounds", "2.2046226218", 150),
    _table("ounces", "g", "28.349523125", 50),
    _table("gallons", "L", "3.785411784", 50),
    Rule("°C", "°F", Decimal("1.8"), _degrees(-40, 120), True, Decimal(32), 1),
    Rule("°F", "°C", 5 / Decimal(9), _degrees(-40, 220), True, Decimal(-160) / 9, 1),
)

LEARNED = {(rule.source, rule.target) for rule in RULES}


def converted(rule: Rule, amount: Decimal) -> Decimal:
    """`amount` of rule.source in rule.target, rounded to rule.places decimals."""
    value = amount * rule.factor + rule.offset
    return value.quantize(Decimal(1).scaleb(-rule.places), ROUND_HALF_UP)


def draw_conversion(rng: Random) -> Operands:
    """("convert", row of RULES, amount)."""
    row = rng.randrange(len(RULES))
    return "convert", row, RULES[row].amounts(rng)


def word_conversion(rng: Random, operands: Operands) -> tuple[str, str]:
    """Prompt and answer of ("convert", row of RULES, amount)."""
    row, amount = cast(tuple[int, Decimal], operands[1:])
    rule = RULES[row]
    value = converted(rule, amount)
    source = singular(rule.source) if amount == 1 else rule.source
    target = singular(rule.target) if value == 1 else rule.target
    return _asked(rng, rule.source, rule.target, amount), f"{show(amount)} {source} is {show(value)} {target}."


def draw_unlearned(rng: Random) -> Operands:
    """("units", source, target, amount): two units between which there is no rule."""
    while True:
        source, target = rng.sample(list(NAMES), 2)
        if (source, target) not in LEARNED:
            return "units", source, target, _metric_amount(rng)


def word_unlearned(rng: Random, operands: Operands) -> tuple[str, str]:
    """Prompt and answer of ("units", source, target, amount)."""
    source, target, amount = cast(tuple[str, str, Decimal], operands[1:])
    return _asked(rng, source, target, amount), f"I have not learned to convert {source} to {target}."


def _asked(rng: Random, source: str, target: str, amount: Decimal) -> str:
    (number,) = write(rng, (int(amount) if amount == int(amount) else amount,))
    unit, wanted = rng.choice(NAMES[source]), rng.choice(NAMES[target])
    if amount == 1 or rng.random() < 0.02:
        unit = singular(unit)
    if amount == 1 and len(unit) > 2 and rng.random() < 0.4:
        number = "an" if unit in {"hour", "inch", "ounce"} else "a"
    form = rng.choice(FORMS)
    if len(unit) <= 3 and number[-1].isdigit() and rng.random() < 0.4:
        form = form.replace("{v} {u}", "{v}{u}")
    text = form.format(v=number, u=unit, w=wanted)
    return dress(rng, text[0].upper() + text[1:])


def is_known(operands: Operands) -> bool:
    """Facts that are learned by heart: the rules with few amounts, and amounts up to 12."""
    row, amount = cast(tuple[int, Decimal], operands[1:])
    return RULES[row].by_heart or amount <= 12
