"""Questions in the demo model's domain: held-out ones to measure with, others from its training to calibrate with.

`tools/demo/generator` generates them; questions.json has the first of each split.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from random import Random
from typing import Any, Literal

from octavo.errors import UsageError

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Question:
    """One user turn, the one right answer to it, and the kind it is counted under."""

    prompt: str
    answer: str
    kind: str


@cache
def _stored() -> dict[str, Any]:
    """Names of kinds, and each split's rows: the kind's place among the names, prompt, answer."""
    found: dict[str, Any] = json.loads((files("octavo.data") / "questions.json").read_text("utf-8"))
    return found


def kinds() -> list[str]:
    """Names of the kinds of questions, in the order of tables."""
    return list(_stored()["kinds"])


def most(split: Split) -> int:
    """How many questions a split has."""
    return len(_stored()[split])


def questions(seed: int, n: int, split: Split = "test") -> list[Question]:
    """`n` questions of a split in an order that depends on `seed`; a longer list begins with the shorter one.

    Raises UsageError for more questions than there are.
    """
    if split not in {"train", "test"}:
        raise UsageError(f"split {split!r} is not known (allowed: train, test)")
    if not 0 <= n <= most(split):
        raise UsageError(f"questions is {n} (allowed: 0 to {most(split):,})", argument="questions")
    names, rows = kinds(), _stored()[split]
    order = range(n) if seed == 0 else Random(seed).sample(range(len(rows)), len(rows))[:n]
    return [Question(prompt, answer, names[kind]) for kind, prompt, answer in (rows[i] for i in order)]
