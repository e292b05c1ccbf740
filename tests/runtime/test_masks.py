"""Masks of several constraints at once are those of each, and what can't be followed fails alone."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from octavo.errors import GrammarError
from octavo.runtime import Grammar
from octavo.runtime.grammar import COMPILED_KEPT, Grammars
from octavo.runtime.masks import FEWEST, Filler
from octavo.runtime.request import Constraint
from octavo.runtime.thinking import Thinking
from octavo.text import Tokenizer
from tests.runtime import tiny
from tests.runtime.grammar_walk import allowed_tokens

TOKENIZER = Tokenizer.from_metadata(tiny.TOKENIZER)
WORDS = -(-TOKENIZER.n_vocab // 32)
PATTERNS = ["a[bc]{3}d", "[0-9]{2,5}x", "(yes|no|never)!", "[a-z]{4}"]
THINKING = Thinking("<", ">", begun=True)


def constraints(grammars: Grammars, n: int) -> list[Constraint]:
    """Of several grammars, some after thinking, of which some are in the middle of that."""
    made = []
    for i in range(n):
        one = grammars.constraint(Grammar.regex(PATTERNS[i % 4]), THINKING if i % 3 == 0 else None)
        for text in "t>" if i % 3 == 0 and i % 2 else "t" if i % 3 == 0 else "":
            one.accept(ord(text))
        made.append(one)
    return made


def test_masks_together_are_those_alone() -> None:
    grammars, filler, draw = Grammars(TOKENIZER), Filler(WORDS), Random(5)
    for n in (1, FEWEST - 1, 12):
        together, alone = constraints(grammars, n), constraints(grammars, n)
        for _ in range(4):
            for one, other, mask in zip(together, alone, filler.fill(together), strict=True):
                want = np.empty(WORDS, np.int32)
                other.fill(want)
                assert not isinstance(mask, Exception)
                np.testing.assert_array_equal(mask, want)
                token = draw.choice(sorted(allowed_tokens(other, TOKENIZER)))
                one.accept(token)
                other.accept(token)


def test_what_can_not_be_followed_fails_alone() -> None:
    grammars = Grammars(TOKENIZER)
    given = [grammars.constraint(Grammar.regex("ab")) for _ in range(FEWEST + 1)]
    with pytest.raises(GrammarError):
        given[2].accept(ord("x"))
    found = Filler(WORDS).fill(given)
    assert [isinstance(mask, GrammarError) for mask in found] == [i == 2 for i in range(len(given))]


def test_a_grammar_is_compiled_once() -> None:
    grammars, compiled = Grammars(TOKENIZER), []
    compile_ = grammars._compile
    grammars._compile = lambda *given: (compiled.append(given[0].text), compile_(*given))[1]  # type: ignore[method-assign]
    first, second = (grammars.constraint(Grammar.regex("ab")) for _ in range(2))
    first.accept(ord("a"))
    assert allowed_tokens(second, TOKENIZER) == {ord("a")}
    assert allowed_tokens(first, TOKENIZER) == {ord("b")}
    for i in range(COMPILED_KEPT):
        grammars.constraint(Grammar.choice([f"{i}"]))
    grammars.constraint(Grammar.regex("ab"))
    assert compiled.count("ab") == 2, "only the last ones are kept"
