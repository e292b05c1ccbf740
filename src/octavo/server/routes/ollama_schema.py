"""What bodies of Ollama's routes may have, and the requests of OpenAI's routes that they come to."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from octavo.server.routes import refused_fields as refused
from octavo.server.routes.schema import (
    LIMIT,
    MOST_MESSAGES,
    MOST_PROMPTS,
    MOST_TOOLS,
    TOKEN,
    Body,
    ChatRequest,
    CompletionRequest,
    Sampling,
    ToolFunction,
    chosen_as,
    many,
)
from octavo.server.routes.template_variables import CHOICES

LOADING = frozenset("""numa num_batch num_gpu main_gpu low_vram f16_kv use_mmap use_mlock num_thread vocab_only
logits_all embedding_only draft_num_predict""".split())
"""Options of how a model is loaded, which here is the server's to say; no text depends on them."""
MEANINGLESS = LOADING | {"num_keep", "mirostat_tau", "mirostat_eta"}
"""And those of contexts that are shifted, which none is, and of a sampler that is refused."""
PART = re.compile(r"([0-9]*\.?[0-9]+|[0-9]+\.)(ns|us|µs|ms|s|m|h)")
LONGEST_S = 1e9
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(value: float | str) -> float:
    """A duration: seconds, or a text as Go writes it, such as 1h30m; infinity for one below 0, or of years: for ever.

    Raises ValueError for what is none.
    """
    if isinstance(value, str):
        text = value.strip().lstrip("+")
        number = re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text)
        if number is None and not re.fullmatch(rf"-?({PART.pattern})+", text):
            raise ValueError(f"{value[:40]!r} is not a duration (allowed: seconds, or a text such as 5m or 1h30m)")
        length = sum(float(n) * UNITS[unit] for n, unit in PART.findall(text))
        value = float(text) if number is not None else -length if text.startswith("-") else length
    return math.inf if value < 0 or value > LONGEST_S else float(value)


def _require_duration(value: float | str) -> float | str:
    seconds(value)
    return value


KEEP_ALIVE = Annotated[float | Annotated[str, Field(max_length=64)], AfterValidator(_require_duration)]


class Options(Sampling):
    """How tokens are chosen, and how many there may be. Names that mean nothing here are refused."""

    model_config = ConfigDict(extra="forbid")
    refuses: ClassVar[refused.Rules] = refused.OLLAMA_OPTIONS
    num_predict: LIMIT | None = None
    num_ctx: Annotated[int, Field(ge=0, le=1 << 31)] | None = Field(
        None, description="the most tokens of prompt and reply, where the server's context has more"
    )

    @model_validator(mode="before")
    @classmethod
    def _without_the_meaningless(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        refused.refuse(cls.refuses, value)
        return {name: one for name, one in value.items() if name not in cls.refuses and name not in MEANINGLESS}


class OllamaRequest(Body):
    """What all requests to a model have."""

    model: str | None = None
    options: Options | None = None
    keep_alive: KEEP_ALIVE | None = Field(None, description="how long the model stays loaded, with several models")


class ReplyRequest(OllamaRequest):
    """What those have that are answered with text."""

    stream: bool | None = Field(None, description="true if left out")
    format: Literal["", "json"] | dict[str, Any] | None = Field(None, description="json, or a JSON schema")
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @property
    def num_ctx(self) -> int | None:
        return None if self.options is None else self.options.num_ctx or None

    def chosen(self) -> dict[str, Any]:
        """Fields of OpenAI's requests that say how replies are made."""
        options = self.options or Options.model_validate({})
        found = {**chosen_as(options), "max_tokens": options.num_predict}
        if self.format == "json":
            found["response_format"] = {"type": "json_object"}
        elif self.format:
            found["response_format"] = {"type": "json_schema", "json_schema": {"schema": self.format}}
        return found


class CalledFunction(Body):
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)


class Call(Body):
    id: str | None = None
    function: CalledFunction


class OllamaMessage(Body):
    refuses: ClassVar[refused.Rules] = refused.OLLAMA_IMAGES
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[Call], many(128)] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaTool(Body):
    type: Literal["function"] = "function"
    function: ToolFunction


class OllamaChatRequest(ReplyRequest):
    refuses: ClassVar[refused.Rules] = refused.OLLAMA
    messages: Annotated[list[OllamaMessage], many(MOST_MESSAGES)] | None = Field(
        None, description="none: the model is loaded, and nothing said"
    )
    tools: Annotated[list[OllamaTool], many(MOST_TOOLS)] | None = None


class OllamaGenerateRequest(ReplyRequest):
    refuses: ClassVar[refused.Rules] = refused.OLLAMA_GENERATE
    prompt: str | None = Field(None, description="none: the model is loaded, and nothing said")
    system: str | None = None
    context: Annotated[list[TOKEN], many(1 << 22)] | None = Field(
        None, description="of an earlier response, whose conversation goes on"
    )
    raw: bool | None = Field(None, description="the prompt goes to the model as it is, without a template")
    suffix: str | None = Field(None, description="what comes after the reply, for models with tokens for that")

    @model_validator(mode="after")
    def _raw_alone(self) -> OllamaGenerateRequest:
        for name in ("system", "context"):
            if self.is_raw and getattr(self, name):
                raise ValueError(f"{name}: raw prompts, and those with a suffix, have none: write it into the prompt")
        return self

    @property
    def is_raw(self) -> bool:
        return bool(self.raw or self.suffix)


class OllamaEmbedRequest(OllamaRequest):
    input: str | Annotated[list[str], many(MOST_PROMPTS)] | None = None
    truncate: bool | None = Field(None, description="false: a text that is longer than the context is an error")
    dimensions: Annotated[int, Field(ge=0, le=1 << 20)] | None = None


class OllamaEmbeddingsRequest(OllamaRequest):
    """The older form: one text, whose vector has the length that the model gives it."""

    prompt: str | None = None


class OllamaNameRequest(Body):
    """A model, by either name of the field."""

    model: str | None = None
    name: str | None = Field(None, description="an older name of model")
    stream: bool | None = None
    verbose: bool | None = None

    @property
    def meant(self) -> str | None:
        return self.model or self.name


class OllamaCopyRequest(Body):
    source: Annotated[str, Field(min_length=1)]
    destination: Annotated[str, Field(min_length=1, max_length=256, pattern=r"^[\w./:@+-]+$")]


def chat_request(body: OllamaChatRequest | OllamaGenerateRequest) -> ChatRequest:
    """The request of /v1/chat/completions that asks for the same. Raises ValidationError."""
    asked = body.chosen()
    if isinstance(body, OllamaChatRequest):
        asked["messages"] = _messages(body.messages or ())
        asked["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools or ()] or None
    else:
        system = [{"role": "system", "content": body.system}] if body.system else []
        asked["messages"] = [*system, {"role": "user", "content": body.prompt}]
    if body.think is not None:
        given = asked.get("chat_template_kwargs") or {}
        asked["chat_template_kwargs"] = {**given, **dict.fromkeys(CHOICES, body.think is not False)}
    if isinstance(body.think, str):
        asked["reasoning_effort"] = body.think
    if body.logprobs:
        asked |= {"logprobs": True, "top_logprobs": body.top_logprobs}
    return ChatRequest.model_validate(asked)


def completion_request(body: OllamaGenerateRequest, usual: int | None) -> CompletionRequest:
    """The request of /v1/completions for a raw prompt, of up to `usual` tokens. Raises ValidationError."""
    asked = body.chosen()
    if asked["max_tokens"] is None:
        asked["max_tokens"] = -1 if usual is None else usual
    if body.logprobs:
        asked["logprobs"] = body.top_logprobs or 0
    return CompletionRequest.model_validate({**asked, "prompt": body.prompt or "", "suffix": body.suffix or None})


def _messages(given: Sequence[OllamaMessage]) -> list[dict[str, Any]]:
    """Messages as OpenAI's clients send them. Calls without an id get one, and results are theirs by name and order."""
    found, calls, open_calls = [], 0, list[tuple[str, str]]()
    for message in given:
        one: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.thinking:
            one["reasoning_content"] = message.thinking
        if message.tool_calls:
            one["tool_calls"], open_calls = [], []
            for call in message.tool_calls:
                calls += 1
                call_id = call.id or f"call_{calls}"
                one["tool_calls"].append({"id": call_id, "type": "function", "function": call.function.model_dump()})
                open_calls.append((call_id, call.function.name))
        if message.role == "tool":
            fitting = [call for call in open_calls if message.tool_name in (None, call[1])] or open_calls
            answered = next((call for call in fitting if message.tool_call_id in (None, call[0])), ("", ""))
            open_calls = [call for call in open_calls if call != answered]
            one |= {"tool_call_id": message.tool_call_id or answered[0], "name": message.tool_name or answered[1]}
        found.append(one)
    return found
