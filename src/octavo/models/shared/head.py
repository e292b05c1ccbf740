"""Heads: small networks that guess the tokens after the next one from a model's hidden states.

A head is a model of its own, with its own keys and values, whose step is given hidden states beside tokens. At position
i it reads the token at i + 1 and what the model's step gave at i, and guesses the token at i + 2. Beside logits it
gives hidden states itself, which it reads in place of the model's where these are not computed yet.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.errors import ModelError, shown
from octavo.graph.builder import CacheType, GraphBuilder
from octavo.graph.node import PAGE_SIZE, Graph, Node
from octavo.io.gguf import GGUFFile
from octavo.models.shared.architecture import ModelSpec
from octavo.models.shared.hidden_states import Tap

SHARED = frozenset({"token_embd.weight", "output.weight"})
"""Tensors that a head may read of its model, which are in memory once."""
VOCABULARY = "tokenizer.ggml.tokens"


def require_vocabulary(file: GGUFFile, main: ModelSpec) -> None:
    """Raise ModelError where the tokens in a head's file, if there are any, are not those of its model."""
    own, texts = (one.metadata.get_bytes_list(VOCABULARY, []) for one in (file, main.file))
    if (at := next((i for i, (a, b) in enumerate(zip(own, texts, strict=False)) if a != b), None)) is not None:
        head, model = (shown(text.decode(errors="replace")) for text in (own[at], texts[at]))
        raise ModelError(f"another vocabulary: token {at} is {head} in the head and {model} in the model",
                         file=file.path, field=VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class HeadSpec(ModelSpec, ABC):
    """A head of the model `main`, read and checked; `hparams` has what its engine reads of sizes.

    Its layers have the numbers behind those of the model's layers, so that their caches have names of their own.
    """

    main: ModelSpec

    @property
    def width(self) -> int:
        """Of hidden states, both what it reads and what it gives."""
        return self.main.hparams.n_embd

    @property
    def shared(self) -> frozenset[str]:
        """The tensors that it reads of its model: those that its file lacks, if it has one of its own."""
        return SHARED if self.file is self.main.file else SHARED - self.file.tensors.keys()

    @property
    def later(self) -> tuple[HeadSpec, ...]:
        """Further layers of its file, each of which makes the guess behind that of the one before; none: this one makes
        all."""
        return ()

    @property
    def reads_given(self) -> bool:
        """Of a later layer: it reads what the one before it gave, otherwise what the model gave."""
        return False

    @property
    def gives_all(self) -> bool:
        """It gives hidden states of all tokens, for a later layer to read, not only of the outputs."""
        return False

    @abstractmethod
    def tap(self, g: GraphBuilder, residuals: Sequence[Node], last: Node) -> Node:
        """What a step of the model gives for the head, [T, width]; see `Tap`."""

    @abstractmethod
    def build(self, g: GraphBuilder, hidden: Node) -> tuple[Node, Node]:
        """Logits [outputs, n_vocab] of the model's vocabulary, and hidden states [outputs, width], or [T, width] where
        it `gives_all`.

        hidden  [T, width], of the model or of the head itself, beside `g.tokens`
        """

    def guesses(self, n: int, *, cache_type: CacheType, n_ctx: int) -> Graph:
        """The graph of n guesses in a row, each with the likeliest token of the one before: int [outputs], n of them.

        Sequences have one output each, and where their further tokens lie are inputs, see `GraphBuilder.after`.
        """
        g, found = GraphBuilder(cache_type, PAGE_SIZE, n_ctx), list[Node]()
        hidden = g.hidden(self.width)
        for _ in range(n):
            logits, hidden = self.build(g, hidden)
            found.append(g.likeliest(logits))
            g = g.after(found[-1])
        return Graph.of(*found)

    def graph(
        self, *, cache_type: CacheType = "f16", page_size: int = PAGE_SIZE, n_ctx: int | None = None,
        vectors: bool = False, window_pages: bool = False, tap: Tap | None = None,
    ) -> Graph:
        """The graph of a step: tokens and hidden states in, logits and hidden states of the outputs out."""
        assert not vectors
        assert tap is None
        g = GraphBuilder(cache_type, page_size, n_ctx or self.hparams.n_ctx_train, window_pages=window_pages)
        return Graph.of(*self.build(g, g.hidden(self.width)))
