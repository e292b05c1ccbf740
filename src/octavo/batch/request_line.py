"""A line of a batch: OpenAI's form of a request, or a plain prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

import msgspec
from msgspec import Raw

from octavo.batch.line_limits import DEPTH, require_few_values, too_deep
from octavo.server.http.api_errors import ApiError
from octavo.server.http.body import parse

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses"
URLS = (CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES)
OPENAI_FIELDS = ("custom_id", "method", "url", "body")
PLAIN = {"messages": CHAT, "prompt": COMPLETIONS, "input": EMBEDDINGS}
"""The field that tells what a plain line is for."""
LEADING = ("model", "cache_salt", "tools", "functions", "instructions", "messages", "prompt", "input")
"""The model, and fields that a prompt is written from, in the order in which templates write them."""
CONSTRAINTS = (
    "response_format", "grammar", "json_schema", "structured_outputs", "guided_json", "guided_regex", "guided_choice",
    "guided_grammar",
)
"""Fields of which one says what a reply may be."""
LONGEST_ID, LONGEST_MESSAGE = 512, 1000
MOST_FIELDS = 64
"""Of an object whose keys are looked for one by one."""
SEED_BYTES = 7
BOM = b"\xef\xbb\xbf"
T = TypeVar("T")

_object = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)
_flag = msgspec.json.Decoder(bool | None)
_encode = msgspec.json.Encoder().encode


class LineError(Exception):
    """A line that can't be asked. `code` is for programs, `custom_id` the line's where it has one."""

    def __init__(self, code: str, message: str, custom_id: str | None = None) -> None:
        shown = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
        super().__init__(shown)
        self.code, self.message, self.custom_id = code, shown, custom_id


@dataclass(frozen=True)
class Defaults:
    """What a line gets that does not say otherwise.

    text_url    what a line that is a text is for
    seed        of which, with its custom_id, a line's own seed is made; None for none
    constraint  a field that says what a reply may be, and its value in JSON; of chat and completions
    priority    the lowest number that a line may have for it; None for any
    """

    text_url: str = CHAT
    seed: int | None = 0
    constraint: tuple[str, bytes] | None = None
    priority: int | None = None


@dataclass(frozen=True)
class BatchRequest:
    """A request of line `number`, counted from 1. `fields` are the body's, each in JSON; `named`: it has its own id."""

    number: int
    custom_id: str
    url: str
    fields: Mapping[str, Raw]
    named: bool = True

    def leading(self) -> list[bytes]:
        """What its prompt begins with, in pieces: each message is one."""
        return [piece for name in LEADING if name in self.fields for piece in _pieces(self.fields[name])]

    def body(self, defaults: Defaults) -> bytes:
        """Its body in JSON, with the defaults."""
        found = dict(self.fields)
        if defaults.constraint is not None and self.url in (CHAT, COMPLETIONS) and not found.keys() & set(CONSTRAINTS):
            found[defaults.constraint[0]] = Raw(defaults.constraint[1])
        if defaults.seed is not None and self.url != EMBEDDINGS and bytes(found.get("seed", b"null")) == b"null":
            found["seed"] = Raw(_encode(seed_of(self.custom_id, defaults.seed)))
        if defaults.priority is not None and self.url != EMBEDDINGS:
            given = bytes(found.get("priority", b"null"))
            if not given.isdigit() or int(given[:20]) < defaults.priority:
                found["priority"] = Raw(_encode(defaults.priority))
        return _encode(found)


def seed_of(custom_id: str, seed: int) -> int:
    """The seed of a line, 56 bits: the same in each run, another one for each custom_id."""
    return int.from_bytes(blake2b(f"{seed}\0{custom_id}".encode(), digest_size=SEED_BYTES).digest(), "little")


def read_line(number: int, data: bytes, text_url: str) -> BatchRequest:
    """The request of a line that is not blank. Raises LineError.

    OpenAI's form has custom_id, method, url and body; others are a text, or an object with messages, prompt or input,
    and what else the body of such a request may have. Where those lack a custom_id, it is line-<number>.
    """
    if data.lstrip()[:1] == b'"':
        text = _decoded(_text, data, None)
        field = next(name for name, url in PLAIN.items() if url == text_url)
        said = [{"role": "user", "content": text}] if text_url == CHAT else text
        return BatchRequest(number, f"line-{number}", text_url, {field: Raw(_encode(said))}, named=False)
    _require_small(data)
    found = _fields(data, None)
    custom_id = _custom_id(found)
    if found.keys() & {"method", "url", "body"}:
        return _openai(number, custom_id, found)
    kinds = [name for name in PLAIN if name in found]
    if len(kinds) != 1:
        has = f"has {' and '.join(kinds)}" if kinds else "has no request"
        allowed = "custom_id, method, url and body, or one of messages, prompt and input"
        raise LineError("invalid_request", f"the line {has} (allowed: {allowed})", custom_id)
    fields = {name: value for name, value in found.items() if name != "custom_id"}
    _refuse_stream(fields, custom_id)
    return BatchRequest(number, custom_id or f"line-{number}", PLAIN[kinds[0]], fields, custom_id is not None)


def _openai(number: int, custom_id: str | None, found: Mapping[str, Raw]) -> BatchRequest:
    if custom_id is None:
        raise LineError("missing_custom_id", "custom_id is missing")
    for name in ("method", "url", "body"):
        if name not in found:
            raise LineError("invalid_request", f"{name} is missing", custom_id)
    strange = next((name for name in found if name not in OPENAI_FIELDS), None)
    if strange is not None:
        allowed = ", ".join(OPENAI_FIELDS)
        raise LineError("invalid_request", f"the field {strange!r} is not known (allowed: {allowed})", custom_id)
    method, url = (_named(name, found[name], custom_id) for name in ("method", "url"))
    if method != "POST":
        raise LineError("invalid_method", f"method is {method!r} (allowed: 'POST')", custom_id)
    if url not in URLS:
        raise LineError("invalid_url", f"url is {url!r} (allowed: {', '.join(URLS)})", custom_id)
    fields = _fields(bytes(found["body"]), custom_id, "body")
    _refuse_stream(fields, custom_id)
    return BatchRequest(number, custom_id, url, fields)


def _named(name: str, value: Raw, custom_id: str | None) -> str:
    try:
        return _text.decode(value)
    except msgspec.MsgspecError:
        raise LineError("invalid_request", f"{name} must be a string", custom_id) from None


def _custom_id(found: Mapping[str, Raw]) -> str | None:
    if "custom_id" not in found:
        return None
    custom_id = _named("custom_id", found["custom_id"], None)
    if not 0 < len(custom_id) <= LONGEST_ID:
        raise LineError("invalid_request", f"custom_id has {len(custom_id)} characters (allowed: 1 to {LONGEST_ID})")
    return custom_id


def _refuse_stream(fields: Mapping[str, Raw], custom_id: str | None) -> None:
    if "stream" in fields:
        try:
            stream = _flag.decode(fields["stream"])
        except msgspec.MsgspecError:
            return  # refused with the body's other fields
        if stream:
            raise LineError("invalid_request", "stream is true: the responses of a batch are whole", custom_id)


def _require_small(data: bytes) -> None:
    """Refuse a line that would take too much memory once it is split."""
    try:
        require_few_values(data)
    except ApiError as error:
        raise LineError("line_too_long", error.message.replace("the body", "the line")) from None
    if too_deep(data):
        raise LineError("invalid_json", f"the line is nested deeper than {DEPTH} levels")


def _fields(data: bytes, custom_id: str | None, what: str = "the line") -> dict[str, Raw]:
    """The fields of an object. A key that may occur twice is looked at by the server's own parser."""
    found = _decoded(_object, data, custom_id, what)
    if len(found) > MOST_FIELDS or any(data.count(b'"%b"' % name.encode()) > 1 for name in found):
        try:
            parse(data, DEPTH)
        except ApiError as error:
            raise LineError("invalid_json", error.message.replace("the body", what), custom_id) from None
    return found


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes, custom_id: str | None, what: str = "the line") -> T:
    try:
        return decoder.decode(data)
    except RecursionError:
        raise LineError("invalid_json", f"{what} is nested too deep", custom_id) from None
    except msgspec.ValidationError:
        allowed = "an object" if what == "body" else "an object or a string; a prompt must be in quotation marks"
        raise LineError("invalid_request", f"{what} is not a request (allowed: {allowed})", custom_id) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise LineError("invalid_json", f"{what} is not valid JSON: {_fault(data, error)}", custom_id) from None


def _fault(data: bytes, error: Exception) -> str:
    """What is wrong with a line that can't be read as JSON."""
    if data.startswith(BOM):
        return "it begins with a byte order mark; remove it"
    if b"\0" in data:
        return "it has zero bytes, as text in UTF-16 has (allowed: UTF-8)"
    return "a prompt must be in quotation marks" if is_plain(data) else str(error)


def is_plain(data: bytes) -> bool:
    """Whether a line is text rather than JSON of the kinds that a line may be."""
    return data.lstrip()[:1] not in (b"{", b"[", b'"') and not data.startswith(BOM) and b"\0" not in data


def _pieces(value: Raw) -> list[bytes]:
    """A list's values, or a value that is none."""
    data = bytes(value)
    if data[:1] == b"[":
        try:
            return [bytes(one) for one in msgspec.json.decode(data, type=list[Raw])]
        except msgspec.MsgspecError:
            pass  # refused when it is asked
    return [data]
