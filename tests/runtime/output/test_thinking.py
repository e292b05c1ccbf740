"""Constraints that wait for the end of thinking."""

from __future__ import annotations

import time
from random import Random

import pytest

from octavo.errors import GrammarError
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.output.thinking import MARKERS, Thinking, thinking_after
from octavo.runtime.scheduler.constraint import replay
from octavo.text import Tokenizer
from tests.runtime.grammar.grammar_walk import allowed_tokens, text_of, walk
from tests.text.vocabularies import CONTROL, USER_DEFINED, byte_level

MERGES = ["< t", "> {", "> Ċ"]  # "<t", ">{", ">\n": none of them keeps to the ends of markers
SPELLED = Grammars(Tokenizer.from_metadata(byte_level(MERGES, special={"<|im_end|>": CONTROL}, eos_token_id=259)))
TOKENS = Grammars(
    Tokenizer.from_metadata(
        byte_level(
            MERGES, special={"<|im_end|>": CONTROL, "<think>": USER_DEFINED, "</think>": USER_DEFINED}, eos_token_id=259
        )
    )
)
YES = Grammar.choice(["{yes}"])


@pytest.mark.parametrize("grammars", [SPELLED, TOKENS], ids=["spelled", "tokens"])
@pytest.mark.parametrize("begun", [False, True])
def test_the_answer_comes_after_thinking(grammars: Grammars, begun: bool) -> None:
    tokenizer = grammars.tokenizer
    constraint = grammars.constraint(YES, Thinking("<think>", "</think>", begun))
    text = ("" if begun else "<think>") + "Hm: {no} <thin </thi"
    for token in tokenizer.encode(text, parse_special=True):
        assert token in allowed_tokens(constraint, tokenizer)
        constraint.accept(token)
    assert not tokenizer.stop_ids & allowed_tokens(constraint, tokenizer)
    for token in tokenizer.encode("nk"):
        constraint.accept(token)
    assert tokenizer.encode(">{")[0] not in allowed_tokens(constraint, tokenizer)
    constraint.accept(tokenizer.encode(">")[0])
    answer = walk(constraint, tokenizer, Random(1))
    assert answer is not None
    assert text_of(tokenizer, answer).lstrip(" \n") == "{yes}"


def test_an_answer_without_thinking() -> None:
    for grammars in (SPELLED, TOKENS):
        constraint = grammars.constraint(YES, Thinking("<think>", "</think>"))
        tokens = grammars.tokenizer.encode("{yes}")
        for token in tokens:
            assert not constraint.stopped
            constraint.accept(token)
        assert constraint.stopped


def test_random_replies_think_and_answer() -> None:
    ended = 0
    for seed in range(12):
        constraint = TOKENS.constraint(YES, Thinking("<think>", "</think>"))
        tokens = walk(constraint, TOKENS.tokenizer, Random(seed), 1000)
        if tokens is not None:
            ended += 1
            assert text_of(TOKENS.tokenizer, tokens).rpartition("</think>")[2].lstrip(" \n") == "{yes}"
    assert ended > 1


def test_the_end_of_a_reply_is_no_part_of_thinking() -> None:
    constraint = TOKENS.constraint(YES, Thinking("<think>", "</think>", begun=True))
    with pytest.raises(GrammarError, match="in the middle of thinking"):
        constraint.accept(TOKENS.tokenizer.eos_id or 0)
    constraint = SPELLED.constraint(YES, Thinking("<think>", "</think>"))
    constraint.accept(SPELLED.tokenizer.encode("<t")[0])
    with pytest.raises(GrammarError, match="begins thinking"):
        constraint.accept(SPELLED.tokenizer.encode("x")[0])


def test_markers_come_from_the_template() -> None:
    template = "{{ content.split('</think>')[-1] }}"
    assert thinking_after(template, "<|im_start|>assistant\n") == MARKERS[0]
    assert thinking_after(template, "<|Assistant|><think>\n") == Thinking("<think>", "</think>", begun=True)
    assert thinking_after(template, "<think>\n\n</think>\n\n") is None
    assert thinking_after(template, "<|Assistant|></think>") == Thinking("<think>", "</think>", ended=True)
    assert thinking_after("</seed:think>", "assistant\n<seed:think><seed:cot_budget_reflect>") == Thinking(
        "<seed:think>", "</seed:think>", begun=True
    )
    assert thinking_after(template, "what is <think><|im_end|>\n<|im_start|>assistant\n") == MARKERS[0]
    assert thinking_after("no marker", "<think>\n") is None
    assert thinking_after("<|channel|>", "<|start|>assistant") == MARKERS[-1]


CALL, THINK = Grammar.regex("<t(ool_)?call>x"), Thinking("<think>", "</think>")


@pytest.mark.parametrize(
    "text", ["<tool_call>x", "<think>Hm: <tool_call>.</think><tcall>x", "<think>\n</think> <tcall>x"]
)
@pytest.mark.parametrize("grammars", [SPELLED, TOKENS], ids=["spelled", "tokens"])
def test_an_answer_that_begins_as_thinking_does(grammars: Grammars, text: str) -> None:
    assert accepts(CALL, THINK, text, grammars)
    assert not accepts(CALL, THINK, text[:-1], grammars)
    assert accepts(Grammar("reply", "start: /(?s:.*)/"), THINK, text, grammars)


def test_what_neither_thinking_nor_the_answer_goes_on_with() -> None:
    for text in ("<txt", "<tho", "<thcall>x", "<toolcall>x"):
        assert not accepts(CALL, THINK, text, SPELLED)
    constraint, tokenizer = SPELLED.constraint(CALL, THINK), SPELLED.tokenizer
    for token in tokenizer.encode("<t"):
        constraint.accept(token)
    assert {tokenizer.decode([token]) for token in allowed_tokens(constraint, tokenizer)} == {"h", "o", "c"}
    constraint.accept(tokenizer.encode("h")[0])
    assert {tokenizer.decode([token]) for token in allowed_tokens(constraint, tokenizer)} == {"i"}


def accepts(grammar: Grammar, thinking: Thinking, text: str, grammars: Grammars = TOKENS) -> bool:
    """Whether a reply may be a text."""
    constraint, tokenizer = grammars.constraint(grammar, thinking), grammars.tokenizer
    for token in tokenizer.encode(text, parse_special=True):
        if token not in allowed_tokens(constraint, tokenizer):
            return False
        constraint.accept(token)
    return bool(tokenizer.stop_ids & allowed_tokens(constraint, tokenizer))


@pytest.mark.parametrize("thinking", [Thinking("<think>", "</think>", True), Thinking("<think>", "</think>")])
def test_white_space_between_thinking_and_the_answer(thinking: Thinking) -> None:
    """As templates have it: line ends and blanks, some of them, in tokens of one or several."""
    begin = "" if thinking.begun else "<think>"
    for white in ("", "\n", "\n\n", " ", " \n", "\n\n\n\n"):
        assert accepts(YES, thinking, f"{begin}Hm.\n</think>{white}{{yes}}"), white
    assert not accepts(YES, thinking, f"{begin}Hm.</think>{' ' * 40}{{yes}}")
    assert not accepts(YES, thinking, f"{begin}Hm.</think>\n {{no}}")


def test_white_space_that_is_the_answers_own() -> None:
    thinking = Thinking("<think>", "</think>", begun=True)
    for text, may in (("\n x", True), ("\nx", False), ("\n\n x", False)):
        assert accepts(Grammar.regex(r"\n x"), thinking, f"Hm.</think>{text}") == may


def test_white_space_after_thinking_that_the_prompt_ends() -> None:
    """Some templates close it for a model that is not to think."""
    for white in ("", "\n", "\n\n"):
        assert accepts(YES, Thinking("<think>", "</think>", ended=True), f"{white}{{yes}}")
        assert accepts(YES, Thinking("<think>", "</think>"), "{yes}")
    assert not accepts(YES, Thinking("<think>", "</think>", ended=True), "<think>Hm.</think>{yes}")


@pytest.mark.parametrize("grammars", [SPELLED, TOKENS], ids=["spelled", "tokens"])
@pytest.mark.parametrize("thinking", [
    None, Thinking("<think>", "</think>"), Thinking("<think>", "</think>", begun=True),
    Thinking("<think>", "</think>", ended=True),
], ids=["none", "maybe", "begun", "ended"])
@pytest.mark.parametrize(
    "text", ["<think>a</think>\n\n{yes}", "<think>a</think>{yes}", "{yes}", "\n{yes}", "a</think>\n {yes}"]
)
def test_tokens_that_came_elsewhere_are_gone_through(grammars: Grammars, thinking: Thinking | None, text: str) -> None:
    tokenizer = grammars.tokenizer
    one = grammars.constraint(YES, thinking)
    tokens = tokenizer.encode(text, parse_special=True)
    for n, token in enumerate(tokens):
        if token not in allowed_tokens(one, tokenizer):
            return  # such a reply can't come
        other = grammars.begin(YES, thinking)
        replay(other, tokens[:n])
        while other.pending_mask is not None:
            time.sleep(0.001)
        assert allowed_tokens(other, tokenizer) == allowed_tokens(one, tokenizer), n
        one.accept(token)
        other.accept(token)
        assert other.stopped == one.stopped
