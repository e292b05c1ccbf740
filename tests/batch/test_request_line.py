"""Lines of a batch: what is a request, what each form comes to, and how others are refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from msgspec import Raw

from octavo.batch.request_line import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    RESPONSES,
    Defaults,
    LineError,
    read_line,
    seed_of,
)
from tests.batch.files import openai_line

MESSAGES = [{"role": "user", "content": "hello"}]


def read(line: Any, text_url: str = CHAT) -> Any:
    return read_line(3, (line if isinstance(line, str) else json.dumps(line)).encode(), text_url)


@pytest.mark.parametrize(
    ("line", "text_url", "custom_id", "url", "body"),
    [
        (openai_line("a", {"messages": MESSAGES}), CHAT, "a", CHAT, {"messages": MESSAGES}),
        (openai_line("b", {"input": "x"}, RESPONSES), CHAT, "b", RESPONSES, {"input": "x"}),
        ({"messages": MESSAGES, "top_k": 3}, CHAT, "line-3", CHAT, {"messages": MESSAGES, "top_k": 3}),
        ({"custom_id": "c", "prompt": [1, 2]}, CHAT, "c", COMPLETIONS, {"prompt": [1, 2]}),
        ({"input": "a cat"}, CHAT, "line-3", EMBEDDINGS, {"input": "a cat"}),
        ('"a \\u00e9"', CHAT, "line-3", CHAT, {"messages": [{"role": "user", "content": "a é"}]}),
        ('  "a"\r\n', COMPLETIONS, "line-3", COMPLETIONS, {"prompt": "a"}),
        ('"a"', EMBEDDINGS, "line-3", EMBEDDINGS, {"input": "a"}),
    ],
)
def test_forms(line: Any, text_url: str, custom_id: str, url: str, body: Any) -> None:
    found = read(line, text_url)
    assert (found.number, found.custom_id, found.url) == (3, custom_id, url)
    assert json.loads(found.body(Defaults(seed=None))) == body


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("{", "invalid_json", "not valid JSON"),
        ('{"messages": [}', "invalid_json", "not valid JSON"),
        ("\xff", "invalid_json", "not valid JSON"),
        ("What is 12 times 7?", "invalid_json", "a prompt must be in quotation marks"),
        ("12 times 7?", "invalid_request", "a prompt must be in quotation marks"),
        ('\ufeff{"prompt": "a"}', "invalid_json", "begins with a byte order mark"),
        ('"\0a\0"\0', "invalid_json", "as text in UTF-16 has (allowed: UTF-8)"),
        ('{"a": ' + "[" * 100_000, "invalid_json", "the line is n"),
        ("[1]", "invalid_request", "an object or a string"),
        ("null", "invalid_request", "an object or a string"),
        ({}, "invalid_request", "messages, prompt and input"),
        ({"messages": MESSAGES, "prompt": "a"}, "invalid_request", "has messages and prompt"),
        ('{"prompt": "a", "prompt": "b"}', "invalid_json", "the key 'prompt' occurs twice"),
        ('{"custom_id": "a", "custom_id": "b", "prompt": "c"}', "invalid_json", "'custom_id' occurs twice"),
        ({"method": "POST", "url": CHAT, "body": {}}, "missing_custom_id", "custom_id is missing"),
        ({"custom_id": "a", "method": "POST", "body": {}}, "invalid_request", "url is missing"),
        ({"custom_id": "a", "url": CHAT, "body": {}}, "invalid_request", "method is missing"),
        ({**openai_line("a", {}), "more": 1}, "invalid_request", "the field 'more' is not known"),
        ({**openai_line("a", {}), "method": "GET"}, "invalid_method", "method is 'GET'"),
        ({**openai_line("a", {}), "method": 1}, "invalid_request", "method must be a string"),
        (openai_line("a", {}, "/v1/images"), "invalid_url", "url is '/v1/images'"),
        ({**openai_line("a", {}), "body": [1]}, "invalid_request", "body is not a request"),
        ({**openai_line("a", {}), "custom_id": 7}, "invalid_request", "custom_id must be a string"),
        (openai_line("", {}), "invalid_request", "custom_id has 0 characters"),
        (openai_line("a" * 513, {}), "invalid_request", "custom_id has 513 characters"),
        (openai_line("a", {"messages": MESSAGES, "stream": True}), "invalid_request", "stream is true"),
        ({"prompt": "a", "stream": True}, "invalid_request", "stream is true"),
    ],
)
def test_what_is_refused(line: Any, code: str, words: str) -> None:
    with pytest.raises(LineError) as refused:
        read(line)
    assert refused.value.code == code
    assert words in refused.value.message


NESTED: list[tuple[int, bool]] = [(63, True), (64, False), (5_000, False)]


@pytest.mark.parametrize(("n", "right"), NESTED)
def test_levels_of_a_line_are_those_of_a_body(n: int, right: bool) -> None:
    """A body has 64 of them; brackets in texts are none."""
    body = '{"prompt": "' + '[{\\"' * 999 + '", "a": ' + "[" * n + "]" * n + "}"
    line = f'{{"custom_id": "a", "method": "POST", "url": "{COMPLETIONS}", "body": {body}}}'
    if right:
        assert read(line).fields["prompt"]
        return
    with pytest.raises(LineError, match="deeper than 65 levels") as refused:
        read(line)
    assert refused.value.code == "invalid_json"


LARGE: list[tuple[str, str]] = [
    ('{"messages": [' + "1," * 5_000_000 + "1]}", "more than 1048580 values"),
    ('{"messages": [' + "{}," * 200_000 + "1]}", "more than 131072 keys, lists and objects"),
    ('{"prompt": "a", ' + ", ".join(f'"{i}": 1' for i in range(500_000)) + "}", "more than 131072 keys"),
]


@pytest.mark.parametrize(("body", "words"), LARGE, ids=["values", "objects", "keys"])
def test_a_large_line_is_refused_before_it_is_split(body: str, words: str) -> None:
    line = f'{{"custom_id": "a", "method": "POST", "url": "{CHAT}", "body": {body}}}'.encode()
    for one in (line, body.encode()):
        tracemalloc.start()
        try:
            with pytest.raises(LineError, match=words) as refused:
                read_line(1, one, CHAT)
            assert tracemalloc.get_traced_memory()[1] < 3 * len(line) + (1 << 20)
        finally:
            tracemalloc.stop()
        assert refused.value.code == "line_too_long"


def test_texts_may_have_any_number_of_commas() -> None:
    assert read({"prompt": ',[{:"\\' * 500_000}).leading()


def test_many_keys_are_looked_at_once() -> None:
    """Not each of them in all of the line: of 100,000 that took minutes."""
    fields = ", ".join(f'"{i}": 1' for i in range(100_000))
    assert len(read(f'{{"prompt": "a", {fields}}}').fields) == 100_001
    with pytest.raises(LineError, match="a key occurs twice"):
        read(f'{{"prompt": "a", {fields}, "7": 1}}')


def test_key_twice_is_told_from_a_text_that_names_it() -> None:
    line = {"prompt": 'say "prompt" or \\"prompt\\" twice', "stop": ["prompt"]}
    assert json.loads(read(line).body(Defaults(seed=None))) == line
    nested = openai_line("a", {"messages": [{"role": "user", "content": "body"}], "user": "custom_id"})
    assert read(nested).custom_id == "a"


def test_a_line_gets_a_seed_and_a_constraint_unless_it_has_them() -> None:
    defaults = Defaults(seed=5, constraint=("json_schema", b'{"type":"integer"}'))

    def body(line: Any) -> Any:
        return json.loads(read(line).body(defaults))

    plain = body({"custom_id": "a", "prompt": "x"})
    assert plain == {"prompt": "x", "seed": seed_of("a", 5), "json_schema": {"type": "integer"}}
    assert body({"prompt": "x", "seed": 0})["seed"] == 0
    assert body({"custom_id": "a", "prompt": "x", "seed": None})["seed"] == seed_of("a", 5)
    assert "json_schema" not in body({"prompt": "x", "grammar": 'root ::= "a"'})
    assert body({"input": "x"}) == {"input": "x"}
    assert body(openai_line("a", {"input": "x"}, RESPONSES)) == {"input": "x", "seed": seed_of("a", 5)}


def test_seeds_are_as_different_as_ids() -> None:
    seeds = {seed_of(f"line-{i}", seed) for i in range(1000) for seed in (0, 1)}
    assert len(seeds) == 2000
    assert max(seeds) < 1 << 56
    assert seed_of("line-1", 0) == seed_of("line-1", 0)


def test_what_a_prompt_begins_with_comes_in_the_order_of_templates() -> None:
    line = {"messages": MESSAGES * 2, "tools": [{"type": "function"}], "top_k": 1, "cache_salt": "s"}
    assert [bytes(piece) for piece in read(line).leading()] == [
        b'"s"', b'{"type": "function"}', json.dumps(MESSAGES[0]).encode(), json.dumps(MESSAGES[0]).encode()
    ]
    assert read({"prompt": "a b"}).leading() == [b'"a b"']
    assert isinstance(read({"prompt": "a"}).fields["prompt"], Raw)
