"""What a request says that a reply has to be: the fields of OpenAI's, vLLM's and llama-server's clients for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Concatenate, ParamSpec

from octavo.errors import GrammarError
from octavo.runtime.grammar.grammar import Grammar
from octavo.runtime.output.thinking import Thinking
from octavo.server.generation.service import Service
from octavo.server.http.api_errors import ApiError, bad
from octavo.server.http.background import LONG
from octavo.server.routes.llama_server_schema import NativeRequest
from octavo.server.routes.schema import Constrained, ResponseFormat, StructuredOutputs

P = ParamSpec("P")
Named = tuple[str, Callable[[], Grammar]]


def grammar_of(body: Constrained | NativeRequest) -> tuple[Grammar | None, str | None]:
    """The grammar that a request asks for, None for none, and the field that does. Raises ApiError."""
    wanted = list(_native(body) if isinstance(body, NativeRequest) else _wanted(body))
    if len(wanted) > 1:
        raise bad(f"{wanted[0][0]} and {wanted[1][0]} can't be used together", wanted[1][0])
    for name, make in wanted:
        try:
            return make(), name
        except GrammarError as error:
            raise bad(str(error), name) from None
    return None, None


def usable_grammar(
    service: Service, body: Constrained | NativeRequest, thinking: Thinking | None = None
) -> Grammar | None:
    """The grammar that a request asks for. Raises ApiError for one that can't be used; finding that out takes time."""
    grammar, param = grammar_of(body)
    if grammar is not None:
        require_grammar(service, grammar, thinking, param)
    return grammar


def require_grammar(service: Service, grammar: Grammar, thinking: Thinking | None, param: str | None) -> None:
    """Raises ApiError for a grammar that can't be used; finding that out takes time."""
    try:
        service.grammars.check(grammar, thinking)
    except GrammarError as error:
        raise bad(str(error), param) from None


def _native(body: NativeRequest) -> Iterator[Named]:
    if body.json_schema is not None:
        schema = body.json_schema
        yield "json_schema", lambda: Grammar.json_schema(schema)
    if body.grammar:
        text = body.grammar
        yield "grammar", lambda: _of_text(text)


def _wanted(body: Constrained) -> Iterator[Named]:
    """What is asked for, by the names of the fields."""
    if body.response_format is not None and body.response_format.type != "text":
        form = body.response_format
        yield "response_format", lambda: _of_format(form)
    if body.grammar:
        text = body.grammar
        yield "grammar", lambda: _of_text(text)
    if body.json_schema is not None:
        schema = body.json_schema
        yield "json_schema", lambda: Grammar.json_schema(schema)
    if body.structured_outputs is not None:
        outputs = body.structured_outputs
        yield "structured_outputs", lambda: _of_outputs(outputs)
    for name, make in (("guided_json", Grammar.json_schema), ("guided_regex", Grammar.regex),
                       ("guided_choice", Grammar.choice), ("guided_grammar", _of_text)):
        if (value := getattr(body, name)) is not None:
            yield name, lambda make=make, value=value: make(value)  # type: ignore[misc]


def _of_format(form: ResponseFormat) -> Grammar:
    schema: Any = form.schema_ if form.json_schema is None else form.json_schema.schema_
    if form.type == "json_object" and schema is None:
        return Grammar.json_object()
    if schema is None:
        raise ApiError(400, "response_format has no schema", param="response_format")
    return Grammar.json_schema(schema)


def _of_text(text: str) -> Grammar:
    """A grammar in the notation that it looks like: GBNF has "::=", Lark does not."""
    return Grammar.gbnf(text) if "::=" in text else Grammar.lark(text)


def _of_outputs(given: StructuredOutputs) -> Grammar:
    makers: tuple[tuple[Any, Callable[[Any], Grammar]], ...] = (
        (given.json_, Grammar.json_schema), (given.regex, Grammar.regex), (given.choice, Grammar.choice),
        (given.grammar, _of_text), (given.json_object or None, lambda _: Grammar.json_object()),
    )
    found = [(value, make) for value, make in makers if value is not None]
    if len(found) != 1:
        raise GrammarError(f"structured_outputs has {len(found)} of json, regex, choice, grammar and json_object, "
                           "but needs exactly one")
    ((value, make),) = found
    return make(value)


FIELDS = ("tools", "response_format", "grammar", "json_schema", "structured_outputs", "guided_json", "guided_regex",
          "guided_choice", "guided_grammar")
"""What a request may have a grammar for."""


def is_held(body: Any) -> bool:
    """Whether a request has something to compile."""
    return any(getattr(body, name, None) is not None for name in FIELDS)


async def held(
    service: Service, body: Any, find: Callable[Concatenate[Service, Any, P], Grammar | None],
    *args: P.args, **kwargs: P.kwargs,
) -> Grammar | None:
    """The grammar that `find` makes for a request, in a thread that nothing else waits for. Raises what it does."""
    if not is_held(body):
        return None
    return await service.in_grammar_thread(find, service, body, *args, **kwargs)


def effort_of(body: Any, size: int) -> int:
    """Characters that a request takes as long as: its own, and more than LONG where it has something to compile."""
    return size + (LONG + 1) * is_held(body)
