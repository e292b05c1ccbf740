"""Training text: chats made of the train split's questions, as token rows with a label for each answer token."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import numpy as np
import numpy.typing as npt
from generator import question
from tokenizers import Tokenizer

IGNORED = -100  # the label of a token that is not learned

# How often each kind is trained on: the harder it is, the more often.
WEIGHTS = {
    "addition": 8,
    "subtraction": 15,
    "decimal sums": 9,
    "products to 99 x 99": 12,
    "products by one digit": 8,
    "wide products": 19,
    "decimal products": 9,
    "exact quotients": 11,
    "rounded quotients": 9,
    "wide quotients": 17,
    "decimal quotients": 7,
    "division by zero": 2,
    "comparisons": 5,
    "conversions": 13,
    "percentages": 9,
    "shares in percent": 3,
    "small talk": 4,
    "other subjects": 4,
    "other mathematics": 3,
    "other units": 2,
    "numbers too large": 4,
}
SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a calculator.",
    "You are the Octavo demo model.",
    "Answer in one sentence.",
    "Be brief.",
    "You are a helpful, honest and harmless assistant.",
)


def exchanges(rng: Random) -> Iterator[tuple[str, str]]:
    """Endless prompts and answers of the train split, some prompts mistyped."""
    names, weights = list(WEIGHTS), list(WEIGHTS.values())
    while True:
        for kind in rng.choices(names, weights=weights, k=1024):
            asked = question(rng, kind, "train")
            yield (mistype(rng, asked.prompt) if rng.random() < 0.12 else asked.prompt), asked.answer


def mistype(rng: Random, text: str) -> str:
    """One slip of the keyboard that leaves numbers and short words alone."""
    style = rng.random()
    if style < 0.2:
        return text + " "
    if style < 0.3:
        return " " + text
    spaces = [i for i, c in enumerate(text) if c == " "]
    if style < 0.5 and spaces:
        at = rng.choice(spaces)
        return text[:at] + " " + text[at:]
    long_words = [word for word in text.split(" ") if len(word) >= 5 and word.isalpha()]
    if not long_words:
        return text
    word = rng.choice(long_words)
    at = rng.randrange(1, len(word) - 1)
    slips = (
        word[:at] + word[at + 1 :],
        word[:at] + word[at] + word[at:],
        word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        word[:at] + rng.choice("abcdefghijklmnopqrstuvwxyz") + word[at + 1 :],
    )
    return text.replace(word, rng.choice(slips), 1)


class Chats:
    """Endless token rows: each is one chat of independent exchanges, cut off after `width` tokens.

    `rows(n)` gives tokens and labels, int64 arrays of shape [n, width]; labels are those of the next token,
    IGNORED outside answers.
    """

    def __init__(self, tokenizer: Tokenizer, width: int, seed: int) -> None:
        self.tokenizer, self.width = tokenizer, width
        self.rng = Random(seed)
        self.exchanges = exchanges(self.rng)
        self.user = self._ids("<|im_start|>user\n")
        self.assistant = self._ids("<|im_end|>\n<|im_start|>assistant\n")
        self.end = [tokenizer.token_to_id("<|im_end|>")]
        self.newline = self._ids("\n")
        self.systems = [self._ids(f"<|im_start|>system\n{text}<|im_end|>\n") for text in SYSTEM_PROMPTS]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def rows(self, n: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        tokens = np.empty((n, self.width + 1), np.int64)
        learned = np.zeros((n, self.width + 1), bool)
        turns = self._turns()
        for row in range(n):
            at = 0
            if self.rng.random() < 0.06:
                system = self.rng.choice(self.systems)
                tokens[row, : len(system)] = system
                at = len(system)
            while at <= self.width:
                prompt, answer = next(turns)
                turn = (prompt + answer)[: self.width + 1 - at]
                tokens[row, at : at + len(turn)] = turn
                learned[row, at + len(prompt) : at + len(prompt) + len(answer) - len(self.newline)] = True
                at += len(turn)
        labels = np.where(learned[:, 1:], tokens[:, 1:], IGNORED)
        return tokens[:, :-1], labels

    def _turns(self) -> Iterator[tuple[list[int], list[int]]]:
        """Token ids of what stands up to the answer, and of the answer with the end of its turn."""
        while True:
            texts = [text for _ in range(256) for text in next(self.exchanges)]
            encoded = [e.ids for e in self.tokenizer.encode_batch_fast(texts)]
            for prompt, answer in zip(encoded[::2], encoded[1::2], strict=True):
                yield self.user + prompt + self.assistant, answer + self.end + self.newline
