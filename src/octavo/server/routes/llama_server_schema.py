"""What bodies of llama-server's own routes may have."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from octavo.server.routes import refused_fields as refused
from octavo.server.routes.schema import (
    LIMIT,
    MOST_BIASES,
    MOST_CHOICES,
    MOST_MESSAGES,
    MOST_PROMPTS,
    MOST_TOOLS,
    TOKEN,
    TOKENS,
    Body,
    Message,
    Sampling,
    Tool,
    few,
    many,
)

MOST_EXTRAS = 1024
MIXED = Annotated[list[TOKEN | str], many(1 << 16, least=1)]


class NativeRequest(Sampling):
    """llama-server's /completion."""

    refuses: ClassVar[refused.Rules] = refused.NATIVE

    prompt: str | TOKENS | MIXED | Annotated[list[str | TOKENS | MIXED], many(MOST_PROMPTS, least=1)]
    model: str | None = None
    n_predict: LIMIT | None = None
    max_completion_tokens: LIMIT | None = Field(None, description="another name of n_predict")
    max_tokens: LIMIT | None = Field(None, description="another name of n_predict")
    n_probs: Annotated[int, Field(ge=0, le=20)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = Field(None, description="another name of n_probs")
    post_sampling_probs: bool | None = Field(
        None, description="probabilities after the sampler's settings"
    )
    response_fields: Annotated[list[str], many(64)] | None = Field(
        None, description="fields to return; nested ones as a/b"
    )
    n: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None
    n_cmpl: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = Field(None, description="another name of n")
    logit_bias: (
        Annotated[list[Annotated[list[int | float | bool | str], many(MOST_BIASES)]], many(MOST_BIASES)]
        | Annotated[dict[str, float | bool], few(MOST_BIASES)]
        | None
    ) = None
    stream: bool | None = None
    return_tokens: bool | None = None
    grammar: Annotated[str, Field(max_length=1 << 20)] | None = Field(None, description="GBNF")
    json_schema: dict[str, Any] | bool | None = None


class ExtraText(Body):
    """A part of another file."""

    text: str
    filename: Annotated[str, Field(max_length=1024)] = "tmp"


class InfillRequest(NativeRequest):
    """llama-server's /infill: what is between `input_prefix` with `prompt`, and `input_suffix`."""

    refuses: ClassVar[refused.Rules] = refused.INFILL

    prompt: str | MIXED = ""
    input_prefix: str | MIXED
    input_suffix: str | MIXED
    input_extra: Annotated[list[ExtraText], many(MOST_EXTRAS)] | None = Field(
        None, description="parts of other files, the most important last"
    )

    @field_validator("samplers", mode="before")
    @classmethod
    def _without_infill(cls, value: Any) -> Any:
        """Editors ask for a sampler of this name, which llama-server alone has."""
        if isinstance(value, str):
            return value.replace("i", "")
        return [one for one in value if one != "infill"] if isinstance(value, list) else value


class SlotRequest(Body):
    filename: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}$")]


class TokenizeRequest(Body):
    """llama-server's, with `content`, or vLLM's, with `prompt`."""

    content: str | None = None
    add_special: bool | None = None
    parse_special: bool | None = None
    with_pieces: bool | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None

    @model_validator(mode="after")
    def _one_text(self) -> TokenizeRequest:
        if (self.content is None) == (self.prompt is None):
            raise ValueError("content: a text is needed, as content or as prompt")
        return self


class DetokenizeRequest(Body):
    tokens: Annotated[list[TOKEN], many(1 << 22)]


class TemplateRequest(Body):
    refuses: ClassVar[refused.Rules] = refused.TEMPLATE
    messages: Annotated[list[Message], many(MOST_MESSAGES, least=1)]
    tools: Annotated[list[Tool], many(MOST_TOOLS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool | None = None
