"""Bodies of requests: large ones are read quickly, and nothing is taken that is not plain JSON."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from octavo.runtime import Model
from octavo.server.engine.fake import INFO, FakeClient
from octavo.server.http import body
from octavo.server.http.api_errors import ApiError
from tests.limits import processor_time
from tests.server.live_server import Server, running

DEPTH = 8
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9)
KEYS = st.sampled_from(["a", "b:", 'c"', "\\", "[{"]) | st.text(max_size=3)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
PIECES = st.lists(st.sampled_from([
    *'{}[]:,"\\ud8', "\\ud83d", "\\ude00", "\\\\", '\\"', '"a"', '"a":', "1", "-0", "01", "1.5", "1e999", "NaN",
    "-Infinity", "true", "\n", "\t", "\x00", "é", "\ufeff", '{"a": 1, "a": 2}', "9" * 30,
]))


@pytest.fixture(scope="module")
def front(model: Model) -> Iterator[Server]:
    with running(FakeClient([300]), model) as server:
        yield server


@st.composite
def texts(draw: st.DrawFn) -> str:
    """JSON, and what is nearly JSON."""
    text = json.dumps(draw(OBJECTS), ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1])))
    at = draw(st.integers(0, len(text)))
    return text[:at] + "".join(draw(PIECES | st.just([]))) + text[at + draw(st.integers(0, 2)) :]


def within(value: Any) -> Iterable[Any]:
    """The values in a list or an object of JSON."""
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def plain(data: bytes) -> Any:
    """What the standard library reads, held to the same rules. Raises ValueError, and RecursionError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    def level(value: Any) -> int:
        return isinstance(value, dict | list) + max(map(level, within(value)), default=0)

    value = json.loads(data.decode(), object_pairs_hook=once, parse_constant=lambda name: float(f"{name}?"))
    json.dumps(value, ensure_ascii=False).encode()
    if level(value) > DEPTH or not isinstance(value, dict) or has_large_number(value):
        raise ValueError("too deep, no object, or a number that is too large")
    return value


def has_large_number(value: Any) -> bool:
    """Whether a number somewhere in a value of JSON is too large for a float, or for 64 bits."""
    whole = isinstance(value, int) and not -(1 << 63) <= value < 1 << 64
    large = math.isinf(value) if isinstance(value, float) else whole
    return large or any(map(has_large_number, within(value)))


@pytest.mark.parametrize("large", [0, 1 << 30], ids=["large", "small"])
@settings(deadline=None, max_examples=150)
@given(text=texts())
@example(text='{"a": {"b": 1, "c": {"b": 1, "b": 2}}}')
@example(text='{"inf": null}')
@example(text='{"a": [{"b": -1e999}]}')
@example(text='{"a\\"": 1, "a\\\\": ":", "": "\\\\\\":"}')
def test_what_is_taken_is_what_the_standard_library_takes(large: int, text: str) -> None:
    data = text.encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(body, "LARGE", large)
        patch.setattr(body, "WINDOW", 5)
        try:
            wanted = plain(data)
        except ValueError:
            with pytest.raises(ApiError) as caught:
                body.parse(data, DEPTH)
            assert caught.value.status == 400
            return
        assert repr(body.parse(data, DEPTH)) == repr(wanted)


@pytest.mark.parametrize(("text", "said"), [
    ('{"a": %s, "b": {"c": 1, "c": 2}}', "a key occurs twice"), ('{"a": %s, "b": NaN}', "not valid JSON"),
    ('{"a": %s, "b": "\\ud800 and more"}', "surrogate"), ('{"a": %s', "not valid JSON"),
])
def test_large_bodies_that_are_not_plain(text: str, said: str) -> None:
    data = (text % json.dumps("x" * body.LARGE)).encode()
    with pytest.raises(ApiError, match=said):
        body.parse(data, DEPTH)


@pytest.mark.parametrize(("begin", "part", "end"), [('{"x": [', "[],", "1]}"), ("{", '"a":1,', '"b":1}')])
def test_more_parts_than_a_request_has(begin: str, part: str, end: str) -> None:
    data = (begin + part * 2_000_000 + end).encode()
    with processor_time(1), pytest.raises(ApiError, match="more than 131072 keys, lists and objects"):
        body.parse(data, DEPTH)


def test_brackets_within_texts_are_no_parts() -> None:
    text = '[{":,\\' * 300_000
    assert body.parse(json.dumps({"a": text}).encode(), DEPTH) == {"a": text}


def test_a_body_has_so_many_values() -> None:
    """Each takes some forty bytes of memory, whatever it takes of the body."""
    assert body.count_values(b'{"a": [%b",,,"]}' % (b"0," * 997), 1000) == 999
    data = b'{"a": [%b0]}' % (b"0," * 8_000_000)
    with processor_time(1), pytest.raises(ApiError, match="more than 1000 values"):
        body.count_values(data, 1000)


def test_a_long_context_takes_as_many_tokens(model: Model) -> None:
    info = replace(INFO, n_ctx=3 << 20, n_vocab=model.tokenizer.n_vocab)
    with running(FakeClient(info=info), model) as server:
        assert server.service.limits.values == 6 << 20


CONTENT = '{"max_tokens": 1, "messages": [{"role": "user", "content": ['


@pytest.mark.parametrize(("path", "begin", "part", "end", "message"), [
    ("/v1/completions", '{"prompt": [', "1.5,", "1]}", "prompt.0 must be an integer"),
    ("/v1/completions", '{"prompt": [', '"",', '""]}', "prompt has too many values (at most 2048)"),
    ("/v1/embeddings", '{"input": [', "-1,", "1]}", "input.0 must be 0 or more"),
    ("/detokenize", '{"tokens": [', '"",', '""]}', "tokens.0 must be an integer"),
    ("/v1/chat/completions", CONTENT, '"",', '""]}]}', "messages.0.content.0 must be an object"),
    ("/v1/messages", CONTENT, '"",', '""]}]}', "messages.0.content.0 must be an object"),
    ("/v1/responses", '{"input": [{"role": "user", "content": [', '"",', '""]}]}',
     "input.0.content.0 must be an object"),
])
def test_of_many_faults_one_is_found(front: Server, path: str, begin: str, part: str, end: str, message: str) -> None:
    took = list[float]()
    while len(took) < 3 and (not took or took[-1] >= 2):  # what else this process does counts too
        start = time.process_time()
        status, error = front.refused(path, (begin + part * 500_000 + end).encode())
        took.append(time.process_time() - start)
        assert status == 400
        assert error["message"].startswith(message)
    assert min(took) < 2


def test_keys_are_counted_before_their_values_are_looked_at(front: Server) -> None:
    biases = {str(token): "x" for token in range(60_000)}
    start = time.process_time()
    status, error = front.refused("/v1/completions", {"prompt": "a", "logit_bias": biases})
    assert time.process_time() - start < 1
    assert (status, error["message"]) == (400, "logit_bias: 60000 keys are too many (allowed: up to 1024)")
