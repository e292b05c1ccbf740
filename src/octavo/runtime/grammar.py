"""Grammars: what a reply may be, and which tokens may come next, on the `llguidance` package.

It is given the bytes of every token. Control tokens, and those that end a reply, never count as text, so a reply ends
only where its grammar does.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any, Literal, Self

import numpy as np

from octavo.errors import INSTALL_SERVE, GrammarError, TokenizerError, UsageError, import_failure
from octavo.runtime.request import Constraint
from octavo.runtime.schema import read_schema
from octavo.runtime.thinking import AfterThinking, Thinking
from octavo.text import Tokenizer

Kind = Literal["json_schema", "regex", "lark", "gbnf", "choice", "reply"]
Mask = np.ndarray[tuple[int], np.dtype[np.int32]]

MOST_CHARACTERS = 200_000
MOST_CHOICES = 1000
LIMITS = {
    "initial_lexer_fuel": 300_000, "step_lexer_fuel": 50_000, "max_lexer_states": 40_000, "max_grammar_size": 200_000,
    "max_items_in_row": 6000, "verbose_errors": False,
}  # fmt: skip
"""Limits for llguidance: a third of a second to compile, 5 ms a token and 80 MB, at worst. An optional property of an
object is four items of a row, so that the 1,000 that a schema may have need twice its usual limit."""
COMPILED_KEPT = 16
"""Grammars that were used last: requests with the same tools come again and again."""
JSON = {"whitespace_pattern": r" |\n[ \t]{0,20}", "whitespace_flexible": True}
"""White space in JSON: a space, or a line with what it is indented by, so that a reply is not filled with it."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a reply may be. Made by `json_schema`, `json_object`, `regex`, `lark`, `gbnf` or `choice`.

    `text` is the schema and the choices as JSON, the others as they were given. Of a grammar, `start` (Lark) or `root`
    (GBNF) is the whole reply. Kind "reply" is Lark, of a reply with the space that some models begin one with. A
    grammar is compiled, and its faults are found, where a model first uses it.
    """

    kind: Kind
    text: str

    @classmethod
    def json_schema(cls, schema: str | Mapping[str, Any] | bool) -> Self:
        """A JSON value that is valid for a schema (JSON Schema 2020-12, but for what llguidance refuses by name)."""
        return cls("json_schema", json.dumps(read_schema(schema)))

    @classmethod
    def json_object(cls) -> Self:
        """Any JSON object."""
        return cls("json_schema", '{"type": "object"}')

    @classmethod
    def regex(cls, pattern: str) -> Self:
        """A text that a regular expression matches as a whole, in the syntax of Rust's regex."""
        return cls("regex", _text("regex", pattern))

    @classmethod
    def lark(cls, text: str) -> Self:
        """A text of a grammar in llguidance's variant of Lark."""
        return cls("lark", _text("lark", text))

    @classmethod
    def gbnf(cls, text: str) -> Self:
        """A text of a grammar as llama.cpp writes them."""
        return cls("gbnf", _text("gbnf", text))

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Self:
        """One of several texts."""
        if isinstance(texts, str) or not all(isinstance(t, str) for t in texts) or not 0 < len(texts) <= MOST_CHOICES:
            raise GrammarError(f"choice is {str(texts)[:40]!r} (allowed: a list of 1 to {MOST_CHOICES} texts)")
        return cls("choice", _text("choice", json.dumps(list(texts), ensure_ascii=False)))

    def source(self) -> dict[str, Any]:
        """The grammar as a part of one of llguidance's. Raises GrammarError."""
        if self.kind == "json_schema":
            read_schema(self.text)
            matcher = _llguidance().LLMatcher
            made = matcher.grammar_from_json_schema(self.text, defaults=JSON, overrides={"lenient": False})
            part: dict[str, Any] = json.loads(made)["grammars"][0]
            return part
        return {"lark_grammar": _LARK[self.kind](_text(self.kind, self.text))}


class Grammars:
    """Compiles grammars for a tokenizer, each once as long as it is among the last ones. Any thread may use it."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._lock = Lock()
        self._compiled: OrderedDict[tuple[Grammar, bool], Any] = OrderedDict()

    def constraint(self, grammar: Grammar, thinking: Thinking | None = None) -> Constraint:
        """A constraint for one request; with `thinking` it begins after that.

        Raises GrammarError for a grammar that is invalid, too large, or that no token can begin, and UsageError where
        llguidance is not installed.
        """
        first = (thinking is None or not thinking.begun) and grammar.kind != "reply"
        matcher = self._matcher(grammar, spaced=first and self.tokenizer.add_space_prefix)
        found = Matched(matcher, self.tokenizer.n_vocab)
        return found if thinking is None else AfterThinking(found, thinking, self.tokenizer)

    def _matcher(self, grammar: Grammar, spaced: bool) -> Any:
        """A matcher for one request. What is kept is at the beginning, and is only ever copied."""
        key = grammar, spaced
        with self._lock:
            if key in self._compiled:
                self._compiled.move_to_end(key)
                return self._compiled[key].deep_copy()
        compiled = self._compile(grammar, spaced)
        with self._lock:
            self._compiled[key] = compiled
            if len(self._compiled) > COMPILED_KEPT:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()

    def _compile(self, grammar: Grammar, spaced: bool) -> Any:
        """spaced: before what the grammar says comes the first space of a reply, which is not shown."""
        grammars = [grammar.source()]
        if spaced:
            grammars = [
                {"lark_grammar": '%llguidance {"no_forcing": true}\nstart: " " @answer'},
                {**grammars[0], "name": "answer"},
            ]
        llguidance = _llguidance()
        limits = llguidance.LLParserLimits(**LIMITS)
        matcher = llguidance.LLMatcher(
            self._tokens, json.dumps({"grammars": grammars}, ensure_ascii=False), log_level=0, limits=limits
        )
        if matcher.is_error():
            raise GrammarError(f"the grammar can't be used: {_brief(matcher.get_error())}")
        self._require_first(matcher)
        return matcher

    def _require_first(self, matcher: Any) -> None:
        """Raise GrammarError where no token begins, or what may come after the first one is too much to follow."""
        mask = np.empty(-(-self.tokenizer.n_vocab // 32), np.int32)
        Matched(matcher, self.tokenizer.n_vocab).fill(mask)
        first = int(np.unpackbits(mask.view(np.uint8), bitorder="little").argmax())
        Matched(matcher.deep_copy(), self.tokenizer.n_vocab).accept(first)

    def prepare(self) -> None:
        """Read the vocabulary now, which takes a second or two of a large one, if llguidance is there."""
        with suppress(UsageError, GrammarError):
            _ = self._tokens

    @property
    def _tokens(self) -> Any:
        with self._lock:
            return self._compiled_tokens

    @cached_property
    def _compiled_tokens(self) -> Any:
        """The vocabulary as llguidance has it."""
        vocabulary = _Vocabulary(self.tokenizer)
        ends = sorted(self.tokenizer.stop_ids)
        if not ends:
            raise GrammarError("the model has no token that ends a reply, so it can't follow a grammar")
        return _llguidance().LLTokenizer(vocabulary, n_vocab=self.tokenizer.n_vocab, eos_token=ends)


class _Vocabulary:
    """A tokenizer with the attributes that llguidance looks for."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id, self.bos_token_id = min(tokenizer.stop_ids), tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(tokenizer.n_vocab)]
        self.special_token_ids = [*{*tokenizer.special_ids, *tokenizer.stop_ids}]

    def __call__(self, text: str | bytes) -> list[int]:
        """The ids of a text in the middle of a reply."""
        data = text.encode() if isinstance(text, str) else text
        try:
            ids = self._tokenizer.encode(data.decode(), add_special=False, parse_special=False, continued=True)
        except (TokenizerError, UnicodeDecodeError):
            return self._longest_first(data)
        exact = b"".join(self.tokens[i] for i in ids) == data  # some tokenizers change letters
        return ids if exact else self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        """The ids of a text, each the longest token that it goes on with; bytes that no token has are left out."""
        ids, at = [], 0
        while at < len(data):
            ends = range(min(at + self._longest, len(data)), at, -1)
            end = next((end for end in ends if data[at:end] in self._by_bytes), None)
            if end is not None:
                ids.append(self._by_bytes[data[at:end]])
            at = end or at + 1
        return ids

    @cached_property
    def _by_bytes(self) -> dict[bytes, int]:
        special = set(self.special_token_ids)
        return {text: i for i, text in enumerate(self.tokens) if text and i not in special}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._by_bytes), default=1)


class Matched:
    """A Constraint: what a matcher of llguidance takes. Where that fails, nothing may come."""

    def __init__(self, matcher: Any, n_vocab: int) -> None:
        self.matcher, self._words = matcher, -(-n_vocab // 32)

    def fill(self, mask: Mask) -> None:
        own = mask[: self._words]
        assert own.dtype == np.int32
        assert own.flags.c_contiguous
        mask[len(own) :] = 0
        self.matcher.unsafe_compute_mask_ptr(own.ctypes.data, own.nbytes)
        self.require(own)

    def require(self, mask: Mask) -> None:
        """Raise GrammarError unless the matcher has filled a mask with a token that may come."""
        if self.matcher.is_error():
            raise GrammarError(f"the grammar can't be followed: {_brief(self.matcher.get_error())}")
        if not mask.any():
            raise GrammarError("the grammar can't be followed: no token of the vocabulary goes on as it has to")

    def fill_after(self, tokens: Sequence[int], mask: Mask) -> None:
        taken = self.matcher.try_consume_tokens(list(tokens))
        try:
            if taken < len(tokens):
                raise GrammarError(f"token {tokens[taken]} is not what the grammar allows")
            self.fill(mask)
        finally:
            self.matcher.rollback(taken)

    def forced(self) -> list[int]:
        return [] if self.stopped else list(self.matcher.compute_ff_tokens())

    def accept(self, token: int) -> None:
        if not self.matcher.consume_token(token):
            said = self.matcher.get_error()
            if REFUSED in said:
                raise GrammarError(f"token {token} is not what the grammar allows: {_brief(said)}")
            raise GrammarError(f"the grammar can't be followed: {_brief(said)}")

    @property
    def stopped(self) -> bool:
        return bool(self.matcher.is_stopped())


def _text(kind: str, given: str) -> str:
    if not isinstance(given, str) or not given or len(given) > MOST_CHARACTERS:
        found = f"{len(given)} characters" if isinstance(given, str) else repr(given)[:40]
        raise GrammarError(f"{kind} is {found} (allowed: a text of 1 to {MOST_CHARACTERS} characters)")
    return given


def _lark_of_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(text))
    except Exception as error:  # it is written for grammars that are right
        raise GrammarError(f"the GBNF grammar can't be read: {_brief(str(error) or type(error).__name__)}") from None


def _lark_of_regex(pattern: str) -> str:
    from llguidance import regex_to_lark

    return f"start: /{regex_to_lark(pattern, use_ascii='d')}/"


def _lark_of_choice(texts: str) -> str:
    return "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in json.loads(texts))


_LARK: dict[str, Callable[[str], str]] = {
    "lark": lambda text: text, "reply": lambda text: text, "gbnf": _lark_of_gbnf, "regex": _lark_of_regex,
    "choice": _lark_of_choice,
}  # fmt: skip


REFUSED = "doesn't satisfy the grammar"
"""What llguidance says of a token, and not of what it has no room for."""
_SHOWN = re.compile(r"\n\s*\d+ \| .*", re.DOTALL)


def _brief(message: str) -> str:
    """What llguidance says, without the lines of the grammar that it shows at the end."""
    return " ".join(_SHOWN.sub("", message).split())[:200]


def _llguidance() -> Any:
    try:
        import llguidance
    except ImportError as error:
        raise UsageError(f"grammars need llguidance: {import_failure('llguidance', error, INSTALL_SERVE)}") from None
    return llguidance
