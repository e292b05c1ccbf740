"""Thinking that comes in pieces is cut as the whole is, and no piece of a reply is read again for those after it."""

from __future__ import annotations

import random

import pytest

from octavo.runtime.output.thinking import Thinking
from octavo.server.generation.reasoning import Reasoning

START, END = "<think>", "</think>"


def thinking(**state: bool) -> Thinking:
    return Thinking(START, END, **state)


def pieces(reasoning: Reasoning, text: list[str]) -> tuple[str, str]:
    found = [*map(reasoning.push, text), reasoning.finish()]
    return "".join(t for t, _ in found), "".join(a for _, a in found)


def expected(text: str, *, begun: bool) -> tuple[str, str]:
    if not begun:
        if not text.lstrip().startswith(START):
            return "", text
        text = text.lstrip()[len(START) :]
    thought, _, answer = text.partition(END)
    return thought.strip(), answer.lstrip()


@pytest.mark.parametrize("begun", [False, True])
def test_pieces_are_cut_as_the_whole_is(begun: bool) -> None:
    rng = random.Random(1)
    parts = [START, END, "<", "</", "think>", " ", "\n", "  \n", "a", "b c "]
    for _ in range(3000):
        text = "".join(rng.choices(parts, k=rng.randrange(8)))
        text = rng.choice(["", " ", START, "\n" + START]) + text
        cuts = sorted(rng.choices(range(len(text) + 1), k=rng.randrange(6)))
        cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert pieces(Reasoning(thinking(begun=begun)), cut) == expected(text, begun=begun), cut


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("n", [100, 1600])
def test_white_space_is_looked_at_once(begun: bool, n: int) -> None:
    reasoning, looked_at = Reasoning(thinking(begun=begun)), 0
    for piece in ["a"] * begun + ["\n"] * n:
        looked_at += len(reasoning._held) + len(piece)
        reasoning.push(piece)
    assert looked_at <= 1.5 * n
    thought, answer = reasoning.push("b")
    assert (thought or answer) == "\n" * n + "b"
