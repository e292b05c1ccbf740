"""A constraint that begins where a model has ended its thinking."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np

from octavo.errors import GrammarError
from octavo.runtime.scheduler.constraint import Constraint, Foreseeing, PendingMask, foresees, replay
from octavo.text import Tokenizer

Mask = np.ndarray[tuple[int], np.dtype[np.int32]]


@dataclass(frozen=True, slots=True)
class Thinking:
    """What a model writes around its thinking. Where it is neither `begun` nor `ended`, a reply may begin with `start`.

    begun  the prompt ends in it
    ended  the prompt ends with `end`, and white space may come before the answer
    """

    start: str
    end: str
    begun: bool = False
    ended: bool = False


MARKERS = (
    Thinking("<think>", "</think>"),  # Qwen3, DeepSeek R1, and most others
    Thinking("<thinking>", "</thinking>"),
    Thinking("<thought>", "</thought>"),  # EXAONE Deep
    Thinking("<reasoning>", "</reasoning>"),
    Thinking("<seed:think>", "</seed:think>"),  # Seed-OSS
    Thinking("[THINK]", "[/THINK]"),  # Magistral
    Thinking("<|START_THINKING|>", "<|END_THINKING|>"),  # Command A
    Thinking("◁think▷", "◁/think▷"),  # Kimi
    Thinking("<|channel>thought\n", "<channel|>"),  # Gemma 4
    Thinking("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),  # gpt-oss
)
"""What models write around their thinking. A template knows it, at least to leave it out of earlier turns."""

PROMPT_END = 32
"""Tokens at the end of a prompt that tell whether it ends in thinking."""
MOST_WHITE = 4
"""Tokens of white space between thinking and an answer that is held to a grammar."""
_WHITE = tuple("".join(one) for n in range(1, 5) for one in product(" \n", repeat=n))
"""Texts that such tokens may have."""


def thinking_after(template: str, prompt: str) -> Thinking | None:
    """What a model writes around its thinking, by its template and the end of its prompt; None if it won't think."""
    markers = next((m for m in MARKERS if m.end in template), None)
    if markers is None and "<|channel|>" in template:
        markers = MARKERS[-1]
    if markers is None:
        return None
    told = prompt.rstrip()
    if told.endswith(markers.end):
        return replace(markers, ended=True) if told == prompt and markers is not MARKERS[-1] else None
    # Seed-OSS begins thinking that is to be short with a tag of its own
    return replace(markers, begun=re.search(rf"{re.escape(markers.start.rstrip())}(<[^<>\s]+>)*$", told) is not None)


class AfterThinking:
    """A Constraint: anything up to the end of thinking, then a few tokens of white space, then the answer's own.

    Where the text that begins thinking has several tokens, an answer may begin as it does: "<tool_call>" as "<think>".
    So tokens of it are held back from the answer until another one comes.
    """

    def __init__(self, answer: Constraint, thinking: Thinking, tokenizer: Tokenizer) -> None:
        self._answer, self._tokenizer, self._end = answer, tokenizer, thinking.end.encode()
        self._tail, self._thinks = b"", thinking.begun
        self._gap = MOST_WHITE if thinking.ended and not tokenizer.add_space_prefix else 0
        self._start = [] if thinking.begun or thinking.ended else _ids(tokenizer, thinking.start)
        self._held: list[int] = []
        self._may_answer = True
        self._free: Mask | None = None
        self._crossing: dict[bytes, Mask] = {}
        self._replayed = deque[int]()

    @property
    def pending_mask(self) -> PendingMask | None:
        if self._replayed and (late := self._go_on()) is not None:
            return late
        if self._thinks:
            return None
        late = self._answer.pending_mask
        if late is None and self._held and self._may_answer and foresees(self._answer):
            return self._answer.pending_mask_after(self._held)
        return late

    def fill(self, mask: Mask) -> None:
        if self._thinks:
            mask[:] = 0
            mask[: len(self._all())] = self._all() & ~self._crosses()
            return
        if self._held:
            mask[:] = 0
            if self._may_answer:
                self._fill_held(mask)
            _set(mask, self._start[:1])
            return
        self._answer.fill(mask)
        if self._gap and self._begins_unspaced(mask):
            _set(mask, self._white)
        elif self._start:
            _set(mask, self._start[:1])

    def fill_after(self, tokens: Sequence[int], mask: Mask) -> None:
        if not self._thinks:
            self._foreseeing().fill_after(tokens, mask)
            return
        later = copy(self)
        for token in tokens:
            if not later._thinks:
                raise GrammarError("what comes after the end of thinking is not foreseen")
            later._think(token)
        later.fill(mask)

    def foresee(self, tokens: Sequence[int]) -> None:
        if not self._thinks:
            self._foreseeing().foresee(tokens)

    def pending_mask_after(self, tokens: Sequence[int]) -> PendingMask | None:
        return None if self._thinks else self._foreseeing().pending_mask_after(tokens)

    def forced(self) -> list[int]:
        return [] if self._thinks or self._gap or self._start else self._foreseeing().forced()

    def _foreseeing(self) -> Foreseeing:
        if self._gap or self._start or not foresees(self._answer):
            raise GrammarError("what comes around thinking is not foreseen")
        return self._answer

    def accept(self, token: int) -> None:
        if self._thinks:
            self._think(token)
        elif self._begins_thinking(token):
            self._hold(token)
        elif self._held:
            if not self._may_answer:
                raise GrammarError(f"token {token} does not go on with the text that begins thinking")
            held, self._held, self._start, self._gap = self._held, [], [], 0
            for one in (*held, token):
                self._answer.accept(one)
        elif self._gap and token in self._white and self._begins_unspaced():
            self._gap -= 1
        else:
            self._gap = 0
            self._start = []
            self._answer.accept(token)

    def replay(self, tokens: Sequence[int]) -> None:
        self._replayed += tokens
        self._go_on()

    def _go_on(self) -> PendingMask | None:
        """Go on by replayed tokens, but for white space of which the answer has to say first whose it is."""
        while self._replayed:
            token = self._replayed[0]
            if not self._thinks and not self._begins_thinking(token):
                white = self._gap and not self._held and token in self._white
                if white and (late := self._answer.pending_mask) is not None:
                    return late
                if not (white and self._begins_unspaced()):
                    replay(self._answer, [*self._held, *self._replayed])
                    self._held, self._start, self._gap = [], [], 0
                    self._replayed.clear()
                    break
            self.accept(self._replayed.popleft())
        return None

    @property
    def stopped(self) -> bool:
        return not self._thinks and not self._held and self._answer.stopped

    def _begins_thinking(self, token: int) -> bool:
        """Whether a token goes on with the text that begins thinking; white space may follow that in its last one."""
        if not self._start:
            return False
        wanted, text = (self._tokenizer.token_bytes(one) for one in (self._start[0], token))
        return token == self._start[0] or (
            len(self._start) == 1 and bool(wanted) and text.startswith(wanted) and not text[len(wanted) :].strip()
        )

    def _hold(self, token: int) -> None:
        """Go on with the text that begins thinking, and keep in mind whether the answer may begin so."""
        del self._start[0]
        self._thinks = not self._start
        if self._thinks:
            self._held = []
            return
        mask = np.empty_like(self._all())
        self._may_answer = self._may_answer and foresees(self._answer)
        if self._may_answer:
            self._fill_held(mask)
            self._may_answer = _has(mask, token)
        self._held.append(token)
        if self._may_answer:
            assert foresees(self._answer)
            self._answer.foresee(self._held)

    def _fill_held(self, mask: Mask) -> None:
        """What the answer may go on with after the tokens that are held back."""
        if self._held:
            assert foresees(self._answer)
            self._answer.fill_after(self._held, mask)
        else:
            self._answer.fill(mask)

    def _think(self, token: int) -> None:
        if token in self._tokenizer.stop_ids:
            raise GrammarError("the reply ended in the middle of thinking")
        text = self._tail + self._tokenizer.token_bytes(token)
        _, found, rest = text.partition(self._end)
        if found and rest.strip():
            raise GrammarError(f"{rest[:40]!r} follows the end of thinking in one token")
        self._thinks, self._gap = not found, MOST_WHITE if found else 0
        self._tail = text[-(len(self._end) - 1) :] if len(self._end) > 1 else b""

    def _all(self) -> Mask:
        """Tokens of text, and those that end thinking."""
        if self._free is None:
            n = self._tokenizer.n_vocab
            self._free = np.zeros(-(-n // 32), np.int32)
            ends = self._tokenizer.stop_ids
            _set(self._free, [i for i in range(n) if i not in ends and not self._tokenizer.is_special(i)])
            _set(self._free, _ids(self._tokenizer, self._end.decode()))
        return self._free

    def _crosses(self) -> Mask:
        """Tokens that would end thinking, and begin the answer as well."""
        sizes = range(1, len(self._end))
        missing = next((self._end[k:] for k in reversed(sizes) if self._tail.endswith(self._end[:k])), self._end)
        if missing not in self._crossing:
            found = np.zeros_like(self._all())
            texts = ((i, self._tokenizer.token_bytes(i)) for i in range(self._tokenizer.n_vocab))
            _set(found, [i for i, text in texts if missing in text and text.partition(missing)[2].strip()])
            self._crossing[missing] = found
        return self._crossing[missing]

    @cached_property
    def _white(self) -> list[int]:
        """Tokens of white space."""
        ids = (_ids(self._tokenizer, text) for text in _WHITE)
        return [one[0] for one in ids if len(one) == 1]

    def _begins_unspaced(self, mask: Mask | None = None) -> bool:
        """Whether the answer may begin without white space; with it alone, that is the answer's own."""
        if mask is None:
            mask = np.empty_like(self._all())
            self._answer.fill(mask)
        white = np.zeros_like(mask)
        _set(white, self._white)
        return bool((mask & ~white).any())


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special=False, continued=True)


def _set(mask: Mask, tokens: Sequence[int]) -> None:
    """Set the bits of some tokens."""
    ids: Any = np.asarray(tokens, np.int64)
    np.bitwise_or.at(mask.view(np.uint32), ids >> 5, (np.uint32(1) << (ids & 31).astype(np.uint32)))


def _has(mask: Mask, token: int) -> bool:
    return bool(int(mask[token >> 5]) >> (token & 31) & 1)
