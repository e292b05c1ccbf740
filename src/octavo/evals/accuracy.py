"""The demo model's accuracy: exact answers, counted by kind, with the uncertainty of a sample."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from octavo.data.questions import Question, kinds, questions

Z95 = 1.959964  # standard deviations within which 95% of a normal distribution lies


@dataclass(frozen=True, slots=True)
class Tally:
    """How many of `n` answers were right."""

    right: int
    n: int

    @property
    def accuracy(self) -> float:
        """The share of right answers; NaN of none."""
        return self.right / self.n if self.n else float("nan")

    def interval(self) -> tuple[float, float]:
        """95% interval of the accuracy (Wilson 1927), which stays inside 0..1 also where all answers are right."""
        if not self.n:
            return 0.0, 1.0
        p, z2 = self.accuracy, Z95 * Z95 / self.n
        middle, half = p + z2 / 2, Z95 * sqrt((p * (1 - p) + z2 / 4) / self.n)
        return max(0.0, (middle - half) / (1 + z2)), min(1.0, (middle + half) / (1 + z2))


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of an evaluation: the whole, each kind that occurred, and what was answered wrongly."""

    total: Tally
    by_kind: dict[str, Tally]
    misses: tuple[tuple[Question, str], ...]

    def to_dict(self) -> dict[str, object]:
        """Plain data for a JSON file; intervals are the 95% ones."""

        def row(tally: Tally) -> dict[str, object]:
            low, high = tally.interval()
            return {"right": tally.right, "n": tally.n, "accuracy": tally.accuracy, "interval": [low, high]}

        return {"total": row(self.total), "by_kind": {kind: row(tally) for kind, tally in self.by_kind.items()}}

    def rows(self) -> list[tuple[str, ...]]:
        """Cells of a table, a row for each kind and one for all: right, of, accuracy, interval."""
        found = list[tuple[str, ...]]()
        for kind, tally in (*self.by_kind.items(), ("all", self.total)):
            low, high = tally.interval()
            found.append((kind, str(tally.right), str(tally.n), f"{tally.accuracy:.1%}", f"{low:.1%} to {high:.1%}"))
        return found

    def __str__(self) -> str:
        """A Markdown table, a row for each kind."""
        head = ("kind", "right", "of", "accuracy", "95% interval"), ("---", "---:", "---:", "---:", "---")
        return "\n".join(f"| {' | '.join(row)} |" for row in (*head, *self.rows()))


def score(answer: str, question: Question) -> bool:
    """Whether `answer` is the expected sentence; white space around it does not count."""
    return answer.strip() == question.answer


def tally(replies: Sequence[tuple[Question, str]]) -> DemoResult:
    """What replies to questions come to."""
    misses = tuple((question, reply) for question, reply in replies if not score(reply, question))
    wrong, asked = (Counter(question.kind for question, _ in pairs) for pairs in (misses, replies))
    by_kind = {kind: Tally(asked[kind] - wrong[kind], asked[kind]) for kind in kinds() if asked[kind]}
    return DemoResult(Tally(len(replies) - len(misses), len(replies)), by_kind, misses)


def evaluate(ask: Callable[[str], str], n: int = 1000, seed: int = 0) -> DemoResult:
    """Asks `n` held-out questions, each in a chat of its own, and counts the exact answers.

    `ask` takes the user's text and gives the model's reply, decoded greedily.
    """
    return tally([(question, ask(question.prompt)) for question in questions(seed, n)])
