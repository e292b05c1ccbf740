"""The table of kinds, and questions drawn from it."""

from __future__ import annotations

from random import Random

from generator import compare, convert, draw, percent, refuse, talk
from generator.operations import word_operation
from generator.question import Question, QuestionKind, Split
from octavo.errors import UsageError

KINDS = (
    QuestionKind("addition",              12, draw.draw_sum,              word_operation,          draw.is_small),
    QuestionKind("subtraction",           12, draw.draw_difference,       word_operation,          draw.is_small),
    QuestionKind("decimal sums",           6, draw.draw_decimals,         word_operation,          draw.is_small),
    QuestionKind("products to 99 x 99",   11, draw.draw_product,          word_operation,          draw.is_small),
    QuestionKind("products by one digit",  5, draw.draw_long_product,     word_operation,          draw.is_small),
    QuestionKind("wide products",          3, draw.draw_wide_product,     word_operation,          draw.is_small),
    QuestionKind("decimal products",       3, draw.draw_decimal_product,  word_operation,          draw.is_small),
    QuestionKind("exact quotients",        8, draw.draw_exact_quotient,   word_operation,          draw.is_small),
    QuestionKind("rounded quotients",      5, draw.draw_rounded_quotient, word_operation,          draw.is_small),
    QuestionKind("wide quotients",         2, draw.draw_wide_quotient,    word_operation,          draw.is_small),
    QuestionKind("decimal quotients",      2, draw.draw_decimal_quotient, word_operation,          draw.is_small),
    QuestionKind("division by zero",       4, draw.draw_division_by_zero, word_operation,          draw.is_small),
    QuestionKind("comparisons",           10, compare.draw_comparison,    compare.word_comparison, compare.is_obvious),
    QuestionKind("conversions",            7, convert.draw_conversion, convert.word_conversion, convert.is_known),
    QuestionKind("percentages",            4, percent.draw_percentage,    percent.word_percent,    percent.is_round),
    QuestionKind("shares in percent",      1, percent.draw_share,         percent.word_percent,    percent.is_round),
    QuestionKind("small talk",             2, talk.draw_talk,             talk.word_talk,          talk.is_plain),
    QuestionKind("other subjects",         1, refuse.draw_subject,        refuse.word_subject,     refuse.is_fixed),
    QuestionKind("other mathematics",      1, refuse.draw_math,           refuse.word_math),
    QuestionKind("other units",            1, convert.draw_unlearned,     convert.word_unlearned),
    QuestionKind("numbers too large",      1, refuse.draw_large,          refuse.word_large),
)

NAMES = tuple(kind.name for kind in KINDS)


def question(rng: Random, kind: str, split: Split) -> Question:
    """One question of the kind of that name."""
    if kind not in NAMES:
        raise UsageError(f"kind {kind!r} is not known (allowed: {', '.join(NAMES)})")
    return KINDS[NAMES.index(kind)].question(rng, split)


def questions(seed: int, n: int, split: Split = "test") -> list[Question]:
    """`n` questions drawn from `seed`, the kinds in proportion to their weights.

    A problem of the test split never appears in the train split, in whatever words. The same seed gives the same
    questions on every machine, and a longer list begins with the shorter one.
    """
    if split not in {"train", "test"}:
        raise UsageError(f"split {split!r} is not known (allowed: train, test)")
    if n < 0:
        raise UsageError(f"n = {n} is negative")
    rng = Random(seed)
    weights = [kind.weight for kind in KINDS]
    return [rng.choices(KINDS, weights)[0].question(rng, split) for _ in range(n)]
