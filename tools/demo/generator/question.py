"""What a question of the demo model is, and which questions are held out of its training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random

from octavo.data.questions import Question, Split

# A problem without its wording: the operation, then its operands. ("+", 12, 30) or ("convert", "km", "m", Decimal(5)).
Operands = tuple[object, ...]

TEST_SHARE = 20  # one problem in 20 is held out


@dataclass(frozen=True, slots=True)
class QuestionKind:
    """A row of the table of kinds: how a problem is drawn and how it is put into words.

    `weight` is the kind's share of an evaluation. `draw` gives a problem, `word` its prompt and answer.
    `by_heart` marks problems that are always trained on and never counted: small tables and facts.
    """

    name: str
    weight: int
    draw: Callable[[Random], Operands]
    word: Callable[[Random, Operands], tuple[str, str]]
    by_heart: Callable[[Operands], bool] = lambda operands: False

    def question(self, rng: Random, split: Split) -> Question:
        """A question of this kind whose problem lies in `split`."""
        while True:
            operands = self.draw(rng)
            held_out = is_held_out(operands) and not self.by_heart(operands)
            if held_out == (split == "test"):
                prompt, answer = self.word(rng, operands)
                return Question(prompt, answer, self.name)


def is_held_out(operands: Operands) -> bool:
    """Whether a problem belongs to the test split: decided by a hash of the operation and its operands.

    a + b and b + a are one problem, and so are a * b and b * a.
    """
    operation, *values = operands
    if operation in {"+", "*"}:
        values.sort(key=str)
    key = ":".join(str(value) for value in (operation, *values))
    return int.from_bytes(blake2b(key.encode(), digest_size=4).digest(), "little") % TEST_SHARE == 0
