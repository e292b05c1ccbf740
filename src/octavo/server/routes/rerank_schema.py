"""Bodies of requests for scores: Jina's and Cohere's, text-embeddings-inference's, and vLLM's of pairs."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field, model_validator

from octavo.server.routes import refused_fields as refused
from octavo.server.routes.schema import MOST_PROMPTS, Body, many


class Document(Body):
    """A document as an object, as Cohere's clients may send one."""

    text: str


TEXTS = Annotated[list[str], many(MOST_PROMPTS, least=1)]


class Scored(Body):
    """What all have in common."""

    refuses: ClassVar[refused.Rules] = refused.RERANK
    model: str | None = None
    raw_scores: bool | None = Field(None, description="the classifier's own numbers, not between 0 and 1")
    use_activation: bool | None = Field(None, description="false: the same, as vLLM has it")

    @property
    def raw(self) -> bool:
        return self.raw_scores is True or self.use_activation is False


class RerankRequest(Scored):
    query: str
    documents: Annotated[list[str | Document], many(MOST_PROMPTS, least=1)] | None = None
    texts: TEXTS | None = Field(None, description="in place of documents; the answer is then a list")
    top_n: Annotated[int, Field(ge=1, le=1 << 31)] | None = None
    return_documents: bool | None = None
    return_text: bool | None = None

    @model_validator(mode="after")
    def _one(self) -> RerankRequest:
        if (self.documents is None) == (self.texts is None):
            raise ValueError("documents: is needed, or texts, and not both")
        return self

    def given(self) -> list[str]:
        """The documents' texts."""
        return [one if isinstance(one, str) else one.text for one in self.documents or self.texts or ()]


class ScoreRequest(Scored):
    text_1: str | TEXTS | None = None
    text_2: str | TEXTS | None = None
    queries: str | TEXTS | None = Field(None, description="another name of text_1")
    documents: str | TEXTS | None = Field(None, description="another name of text_2")

    @model_validator(mode="after")
    def _both(self) -> ScoreRequest:
        for name, other in (("text_1", "queries"), ("text_2", "documents")):
            if (getattr(self, name) is None) == (getattr(self, other) is None):
                raise ValueError(f"{name}: is needed, or {other}, and not both")
        n, others = len(self.left), len(self.right)
        if n not in (1, others):
            raise ValueError(f"text_1: has {n} texts, and text_2 {others} (allowed: one, or as many)")
        return self

    @property
    def left(self) -> list[str]:
        return _listed(self.text_1 if self.queries is None else self.queries)

    @property
    def right(self) -> list[str]:
        return _listed(self.text_2 if self.documents is None else self.documents)

    def pairs(self) -> list[tuple[str, str]]:
        """What is scored: one text with all others, or each with its own."""
        left, right = self.left, self.right
        return list(zip(left if len(left) == len(right) else left * len(right), right, strict=True))


def _listed(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else given or []
