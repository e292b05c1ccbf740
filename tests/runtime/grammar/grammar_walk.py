"""Random walks through what a constraint allows: replies of a model that knows nothing, with a taste for endings."""

from __future__ import annotations

from functools import cache
from random import Random

import numpy as np

from octavo.runtime.grammar.grammar import Grammars
from octavo.runtime.scheduler.constraint import Constraint
from octavo.text import Tokenizer

CLOSING = b'"}]'


@cache
def grammars_of(tokenizer: Tokenizer) -> Grammars:
    """The grammars of a tokenizer, whose process is started once."""
    return Grammars(tokenizer)


def walk(constraint: Constraint, tokenizer: Tokenizer, rng: Random, most: int = 600) -> list[int] | None:
    """The tokens of a reply, None where it does not end. An end token is the last one, if there is one."""
    out: list[int] = []
    closing = [i for i in range(tokenizer.n_vocab) if tokenizer.token_bytes(i)[:1] in map(bytes, zip(CLOSING))]
    for _ in range(most):
        allowed = allowed_tokens(constraint, tokenizer)
        ends = [i for i in allowed if i in tokenizer.stop_ids]
        soon = ends or [i for i in closing if i in allowed]
        token = rng.choice(soon if soon and rng.random() < 0.5 else sorted(allowed))
        constraint.accept(token)
        out.append(token)
        if token in tokenizer.stop_ids or constraint.stopped:
            return out
    return None


def allowed_tokens(constraint: Constraint, tokenizer: Tokenizer, extra: int = 0) -> set[int]:
    """Tokens that may come next; `extra` words of the mask belong to no token."""
    mask = np.full(-(-tokenizer.n_vocab // 32) + extra, -1, np.int32)
    constraint.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def text_of(tokenizer: Tokenizer, tokens: list[int]) -> str:
    """What is shown of a reply."""
    return tokenizer.decode([i for i in tokens if i not in tokenizer.stop_ids])
