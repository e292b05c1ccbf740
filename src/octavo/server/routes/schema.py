"""What bodies of requests may have. Fields that are not here are ignored: clients send many that mean nothing here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from octavo.runtime.grammar.json_schema import without_reference
from octavo.runtime.sampling.sampler import MOST_TEXT, MOST_TEXTS
from octavo.server.http.body import plain_arguments
from octavo.server.routes import refused_fields as refused
from octavo.server.tool_calls.custom_tools import arguments, parameters

MOST_CHOICES = 128
MOST_STOPS = 16
MOST_TOKENS = 1 << 31
MOST_PROMPTS = 2048
MOST_MESSAGES = 1 << 14
MOST_CONTENTS = 1 << 14
"""The most parts of a message, or choices of a grammar."""
MOST_BIASES = 1024
MOST_TOOLS = 1024


def many(most: int, *, least: int | None = None) -> Any:
    """For a list of up to this many values. Its first fault is the only one that is found: each takes a kilobyte."""
    return Field(min_length=least, max_length=most, fail_fast=True)


def joined(texts: Iterable[str]) -> str:
    """Parts of a content as one text: each on a line of its own, as llama-server and vLLM have it."""
    return "\n".join(filter(None, texts))


def short(text: str) -> str:
    """A text of bounded length. Raises ValueError for a longer one."""
    if len(text.encode()) > MOST_TEXT:
        raise ValueError(f"a text has {len(text.encode())} bytes (allowed: up to {MOST_TEXT})")
    return text


def few(most: int) -> BeforeValidator:
    """For an object of up to this many keys, which are counted before any of them is looked at."""

    def counted(value: Any) -> Any:
        if isinstance(value, dict) and len(value) > most:
            raise ValueError(f"{len(value)} keys are too many (allowed: up to {most})")
        return value

    return BeforeValidator(counted)


TOKEN = Annotated[int, Field(ge=0, lt=1 << 31)]
TOKENS = Annotated[list[TOKEN], many(1 << 22, least=1)]
TOP_K = Annotated[int, Field(ge=-(1 << 31), le=1 << 31, description="0 or less: all tokens")]
LIMIT = Annotated[int, Field(ge=-2, le=MOST_TOKENS, description="0: only read the prompt; -1: to the context's end")]
"""The most tokens of a reply."""
SECONDS = Annotated[float, Field(gt=0, le=1e9)]
STOP = Annotated[str, Field(min_length=1, max_length=1024)]
SHORT_TEXTS = Annotated[list[Annotated[str, Field(min_length=1), AfterValidator(short)]], many(MOST_TEXTS)]


class Body(BaseModel):
    """Numbers are numbers, and finite ones; texts are texts."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False, defer_build=True)
    refuses: ClassVar[refused.Rules] = {}
    """Fields that are none of these, and would change a reply."""

    @model_validator(mode="before")
    @classmethod
    def _refuse(cls, value: Any) -> Any:
        if cls.refuses and isinstance(value, dict):
            refused.refuse(cls.refuses, value)
        return value


class AdapterChoice(Body):
    """An adapter by its name, or as llama-server's clients know it by its id, and what it is multiplied by."""

    id: Annotated[int, Field(ge=0, lt=1 << 31)] | None = None
    name: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    scale: Annotated[float, Field(ge=-1e3, le=1e3)] = 1.0

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if (self.id is None) == (self.name is None):
            raise ValueError("an adapter has an id or a name")
        return self


class Sampling(Body):
    """How tokens are chosen; what is left out is the model's own, or the default."""

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: TOP_K | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repeat_penalty: Annotated[float, Field(ge=1e-3, le=100)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1e-3, le=100)] | None = Field(
        None, description="another name of repeat_penalty"
    )
    repeat_last_n: Annotated[int, Field(ge=-1, le=1 << 31)] | None = Field(None, description="-1: the whole context")
    typical_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_n_sigma: Annotated[float, Field(ge=-100, le=100)] | None = Field(None, description="0 or less: off")
    xtc_probability: Annotated[float, Field(ge=0, le=1)] | None = None
    xtc_threshold: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="above 0.5: off")
    dry_multiplier: Annotated[float, Field(ge=0, le=100)] | None = Field(None, description="0: off")
    dry_base: Annotated[float, Field(ge=1, le=100)] | None = None
    dry_allowed_length: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    dry_penalty_last_n: Annotated[int, Field(ge=-1, le=1 << 31)] | None = Field(
        None, description="-1: the whole context; 0: off"
    )
    dry_sequence_breakers: SHORT_TEXTS | None = Field(None, description="texts that no repetition goes across")
    banned_strings: SHORT_TEXTS | None = Field(
        None, description="texts that the reply may not have, whatever the case of letters a to z"
    )
    reasoning_budget: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = Field(
        None, description="tokens of thinking, after which it is closed; -1: no limit"
    )
    reasoning_budget_tokens: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = Field(
        None, description="another name of reasoning_budget"
    )
    thinking_budget_tokens: Annotated[int, Field(ge=-1, le=MOST_TOKENS)] | None = Field(
        None, description="another name of reasoning_budget"
    )
    reasoning_budget_message: Annotated[str, Field(max_length=4096)] | None = Field(
        None, description="text that thinking is closed with where its budget ends it"
    )
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 64)] | None = Field(None, description="-1: a random one")
    min_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TOKEN], many(1024)] | None = None
    stop: STOP | Annotated[list[STOP], many(MOST_STOPS)] | None = None
    cache_salt: Annotated[str, Field(max_length=1024)] | None = Field(
        None, description="requests with the same salt share cached prompts"
    )
    id_slot: Annotated[int, Field(ge=-1, lt=1 << 31)] | None = Field(
        None, description="the slot that the conversation can be saved by; -1: any"
    )
    samplers: Annotated[list[str], many(64)] | str | None = Field(
        None, description="samplers to apply, in this order; those not named are off"
    )
    priority: Annotated[int, Field(ge=-(1 << 31), lt=1 << 31)] | None = Field(
        None, description="lower numbers go first; 0 if left out"
    )
    max_time: SECONDS | None = Field(None, description="seconds until the reply ends, the queue included")
    t_max_predict_ms: Annotated[int, Field(le=1 << 31)] | None = Field(
        None, description="milliseconds from the first token until the reply ends, once it has a line end; 0 or less: "
        "no limit"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="variables of the chat template that are not set otherwise"
    )
    return_progress: bool | None = Field(None, description="a stream reports how far its prompt is read")
    lora: Annotated[str, Field(min_length=1, max_length=256)] | Annotated[list[AdapterChoice], many(64)] | None = Field(
        None, description="adapters to compute with, by id or name and scale; [] for none"
    )
    timings_per_token: bool | None = Field(None, description="each chunk of a stream has timings")

    @field_validator("stop", mode="before")
    @classmethod
    def _stops_have_text(cls, value: Any) -> Any:
        if value == "" or (isinstance(value, list) and "" in value):
            raise ValueError("an empty string can't end a reply")
        return value


def chosen_as(body: Sampling) -> dict[str, Any]:
    """How a request wants tokens to be chosen, for another one."""
    return {name: value for name in Sampling.model_fields if (value := getattr(body, name)) is not None}


class OpenAISampling(Sampling):
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], few(MOST_BIASES)] | None = None
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class StreamOptions(Body):
    include_usage: bool | None = None


class TextPart(Body):
    type: Literal["text"]
    text: str


ARGUMENTS = Annotated[str, AfterValidator(plain_arguments)]


class Function(Body):
    name: str
    arguments: ARGUMENTS | dict[str, Any] = ""


class CustomCall(Body):
    name: str
    input: str


class ToolCall(Body):
    id: str | None = None
    type: Literal["function", "custom"] = "function"
    function: Function | None = None
    custom: CustomCall | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _as_function(self) -> ToolCall:
        if self.type == "custom" and self.custom is not None:
            custom = self.custom
            self.type, self.function = "function", Function(name=custom.name, arguments=arguments(custom.input))
        if self.function is None:
            raise ValueError(f"a call of type {self.type} needs {self.type}")
        return self


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], many(MOST_CONTENTS)] | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], many(128)] | None = None
    function_call: Function | None = Field(None, description="an older form of tool_calls")
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, value: Any) -> Any:
        """Parts that are not text are refused by their type."""
        parts = value.get("content") if isinstance(value, dict) else None
        for part in parts if isinstance(parts, list) else ():
            kind = part.get("type") if isinstance(part, dict) else None
            if kind is not None and kind != "text":
                raise ValueError(f"a content part of type {kind!r}: this model takes text")
        return value

    @model_validator(mode="after")
    def _has_content(self) -> Message:
        if self.content is None and self.role != "assistant":
            raise ValueError("a message needs content")
        return self

    @model_validator(mode="after")
    def _as_tools(self) -> Message:
        """Calls of functions, and what came of them, in their newer form."""
        if self.function_call is not None and self.tool_calls is None:
            self.tool_calls = [ToolCall(id=f"call_{self.function_call.name}", function=self.function_call)]
        if self.role == "function":
            self.role, self.tool_call_id = "tool", f"call_{self.name}"
        return self

    def text(self) -> str | None:
        """The content as one text."""
        if isinstance(self.content, list):
            return joined(part.text for part in self.content)
        return self.content


class ToolFunction(Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    @field_validator("parameters")
    @classmethod
    def _of_an_object(cls, value: dict[str, Any] | None) -> Any:
        """Parameters that are a reference are those that it leads to: templates and calls look for them by name."""
        return value and without_reference(value)


class CustomGrammar(Body):
    definition: Annotated[str, Field(max_length=1 << 20)]
    syntax: Literal["regex", "lark"]


class CustomFormat(Body):
    type: Literal["text", "grammar"]
    grammar: CustomGrammar | None = None

    @model_validator(mode="after")
    def _can_be_held(self) -> CustomFormat:
        if self.type == "grammar" and (self.grammar is None or self.grammar.syntax != "regex"):
            raise ValueError("Lark grammars can't be used within JSON strings of calls: use a regex")
        return self


class Custom(Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    format: CustomFormat | None = None


class Tool(Body):
    """A function, or a tool whose argument is a text, which the model is told of as a function."""

    type: Literal["function", "custom"]
    function: ToolFunction = Field(default=None)  # type: ignore[assignment]  # made of `custom` else
    custom: Custom | None = Field(default=None, exclude=True)

    @model_validator(mode="after")
    def _as_function(self) -> Tool:
        if self.type == "custom" and self.custom is not None:
            form = self.custom.format
            pattern = form.grammar.definition if form is not None and form.grammar is not None else None
            self.type, self.function = "function", ToolFunction(
                name=self.custom.name, description=self.custom.description, parameters=parameters(pattern),
                strict=pattern is not None,
            )
        if self.function is None:
            raise ValueError(f"a tool of type {self.type} needs {self.type}")
        return self


class NamedFunction(Body):
    name: str


class NamedTool(Body):
    type: Literal["function", "custom"]
    function: NamedFunction | None = None
    custom: NamedFunction | None = None

    @model_validator(mode="after")
    def _has_name(self) -> NamedTool:
        if (self.function or self.custom) is None:
            raise ValueError(f"{self.type} needs a name")
        return self

    @property
    def name(self) -> str:
        found = self.function or self.custom
        assert found is not None
        return found.name


class AllowedList(Body):
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedTool], many(MOST_TOOLS, least=1)]


class AllowedTools(Body):
    """Those that may be called, of the ones that the model is told of."""

    type: Literal["allowed_tools"]
    allowed_tools: AllowedList


class JsonSchema(Body):
    name: str = "schema"
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: dict[str, Any] | bool | None = Field(None, alias="schema", description="as llama-server has it")


class StructuredOutputs(Body):
    """As vLLM has it: one of these."""

    json_: dict[str, Any] | str | bool | None = Field(None, alias="json")
    regex: str | None = None
    choice: Annotated[list[str], many(MOST_CONTENTS)] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class Constrained(OpenAISampling):
    """What a reply has to be; one of these."""

    response_format: ResponseFormat | None = None
    grammar: Annotated[str, Field(max_length=1 << 20)] | None = Field(None, description="GBNF or Lark")
    json_schema: dict[str, Any] | bool | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | bool | None = None
    guided_regex: str | None = None
    guided_choice: Annotated[list[str], many(MOST_CONTENTS)] | None = None
    guided_grammar: str | None = None


class ChatRequest(Constrained):
    refuses: ClassVar[refused.Rules] = refused.CHAT
    n_predict: LIMIT | None = Field(None, description="another name of max_tokens")
    messages: Annotated[list[Message], many(MOST_MESSAGES, least=1)]
    max_tokens: LIMIT | None = None
    max_completion_tokens: LIMIT | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], many(MOST_TOOLS)] | None = None
    tool_choice: (
        Literal["none", "auto", "required"] | Annotated[NamedTool | AllowedTools, Field(discriminator="type")] | None
    ) = None
    functions: Annotated[list[ToolFunction], many(MOST_TOOLS)] | None = Field(
        None, description="an older form of tools"
    )
    function_call: Literal["none", "auto"] | NamedFunction | None = Field(
        None, description="an older form of tool_choice"
    )
    parallel_tool_calls: bool | None = None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None = Field(
        None, description="none: thinking stays in the text"
    )
    add_generation_prompt: bool | None = Field(None, description="false: the reply goes on where the messages end")
    continue_final_message: bool | None = Field(
        None, description="whether the reply goes on with the assistant's last message, as it does by default"
    )
    reasoning_effort: str | None = None

    @model_validator(mode="after")
    def _as_tools(self) -> ChatRequest:
        """Functions in their newer form, of which a reply calls one."""
        if self.functions is None and self.function_call is None:
            return self
        if self.tools or self.tool_choice is not None:
            old = "functions" if self.functions is not None else "function_call"
            new = "tools" if self.tools else "tool_choice"
            raise ValueError(f"{old}: {new} is given too: send one of them")
        self.tools = [Tool(type="function", function=one) for one in self.functions or ()]
        choice = self.function_call
        self.tool_choice = NamedTool(type="function", function=choice) if isinstance(choice, NamedFunction) else choice
        self.parallel_tool_calls = False
        return self

    @property
    def continues(self) -> bool:
        """Whether the reply goes on with the last message."""
        if self.continue_final_message is not None:
            return self.continue_final_message
        return self.messages[-1].role == "assistant" and self.add_generation_prompt is not False

    @model_validator(mode="after")
    def _one_end(self) -> ChatRequest:
        if self.continue_final_message and self.add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt can't both be true")
        if self.continue_final_message and (role := self.messages[-1].role) != "assistant":
            raise ValueError(f"continue_final_message: the last message has role {role}, not assistant")
        return self

    @model_validator(mode="after")
    def _top_needs_logprobs(self) -> ChatRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: requires logprobs")
        return self


class CompletionRequest(Constrained):
    refuses: ClassVar[refused.Rules] = refused.COMPLETIONS
    n_predict: LIMIT | None = Field(None, description="another name of max_tokens")
    max_completion_tokens: LIMIT | None = Field(None, description="another name of max_tokens")
    prompt: (
        str
        | TOKENS
        | Annotated[list[str], many(MOST_PROMPTS, least=1)]
        | Annotated[list[TOKENS], many(MOST_PROMPTS, least=1)]
    )
    suffix: str | None = Field(None, description="what comes after the reply, for models with tokens for that")
    max_tokens: LIMIT | None = Field(None, description="16 if left out")
    logprobs: Annotated[int, Field(ge=0, le=20)] | bool | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None

    @model_validator(mode="after")
    def _one_text(self) -> CompletionRequest:
        if self.suffix and self.echo:
            raise ValueError("echo: can't be used together with suffix")
        return self

    @property
    def after(self) -> str | None:
        """What the reply is followed by; None where it ends the text."""
        return self.suffix or None


class FimRequest(CompletionRequest):
    """Mistral's: the reply is always in the middle, if at the end of a file."""

    @property
    def after(self) -> str:
        return self.suffix or ""


class EmbeddingRequest(Body):
    refuses: ClassVar[refused.Rules] = refused.EMBEDDINGS
    input: (
        str
        | TOKENS
        | Annotated[list[str], many(MOST_PROMPTS, least=1)]
        | Annotated[list[TOKENS], many(MOST_PROMPTS, least=1)]
    )
    model: str | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    pooling: Literal["mean", "cls", "last"] | None = None
