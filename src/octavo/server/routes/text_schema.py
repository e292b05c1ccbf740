"""What bodies of requests for completions and vectors of texts may have."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from octavo.server.routes import refused_fields as refused
from octavo.server.routes.schema import LIMIT, MOST_CHOICES, MOST_PROMPTS, TOKENS, Body, Constrained, many


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
    max_tokens: LIMIT | None = Field(None, description="16 if left out")
    logprobs: Annotated[int, Field(ge=0, le=20)] | bool | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MOST_CHOICES)] | None = None


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
