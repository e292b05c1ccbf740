"""Model: a GGUF file or a checkpoint folder, ready to generate: what `octavo.load` returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Self, Unpack

from octavo.errors import ContextFullError, UsageError
from octavo.formats.spec import F32
from octavo.io.gguf import GGUFFile
from octavo.io.hub.download_cache import shown_name
from octavo.runtime.argument_checks import flag, integer, require_known, wrong
from octavo.runtime.batch_generate import BatchRow, Stream, fill
from octavo.runtime.conversation import Conversation
from octavo.runtime.engine.core import EngineCore
from octavo.runtime.engine.engine import Engine
from octavo.runtime.generation import Generation
from octavo.runtime.grammar.grammar import Grammar, Grammars
from octavo.runtime.lora_adapters import Chosen
from octavo.runtime.options import GenerateOptions, SamplingOptions, recommended, settings
from octavo.runtime.output.reply import Reply
from octavo.runtime.output.thinking import PROMPT_END, Thinking, thinking_after
from octavo.runtime.prompt_tokens import Message, Prompt, encode_prompt, token_ids
from octavo.runtime.reranking import Ranker
from octavo.runtime.sampling.sampler import Sampler, SamplingParams, make_sampler
from octavo.runtime.scheduler.constraint import Constraint
from octavo.runtime.text_embedding import Embedder, Pooling, require_generating
from octavo.sizes import short_count
from octavo.text import ChatTemplate, Tokenizer


class Model:
    """A model with its tokenizer, chat template and engine; `file` and `engine` are there for a closer look.

    `lora` are its adapters by path, each with its scale, `draft` is the engine of its draft model, `head` that of its
    head. Any thread may use it: what they ask for is computed in turn.
    """

    def __init__(
        self, file: GGUFFile, engine: Engine, tokenizer: Tokenizer, lora: Chosen = (), draft: Engine | None = None,
        head: Engine | None = None,
    ) -> None:
        self.file, self.engine, self.tokenizer, self.lora = file, engine, tokenizer, lora
        self.draft, self.head = draft, head
        self._conversation: Conversation | None = None
        self._closed = False

    def __repr__(self) -> str:
        infos = self.file.tensors.values()
        types: Counter[str] = Counter()
        for info in infos:
            types[info.type_name] += info.size
        architecture = self.file.metadata.get_str("general.architecture")
        size, stored = short_count(sum(info.size for info in infos)), max(types, key=lambda name: types[name])
        where = self.engine.backends[0].name
        added = "".join(f", lora {shown_name(path)} x {scale:g}" for path, scale in self.lora)
        return f"Model({self.name!r}, {architecture}, {size}, {stored}, ctx {self.n_ctx}, {where}{added})"

    @property
    def name(self) -> str:
        """The name of its file, without what it ends in, or of its folder."""
        return shown_name(self.file.path).removesuffix(".gguf")

    @property
    def n_ctx(self) -> int:
        """Tokens that a conversation may hold."""
        return self.engine.n_ctx

    @property
    def n_vocab(self) -> int:
        """Logits that it computes for a token: one for each token that it knows, and perhaps some for none."""
        return self.engine.model.hparams.n_vocab

    def count_tokens(self, text: str) -> int:
        """How many tokens a text is, without a template and without what goes before it."""
        return len(self.tokenizer.encode(text, add_special=False))

    @cached_property
    def template(self) -> ChatTemplate | None:
        """The chat template that the file carries, None without one. Raises TemplateError for one that is invalid."""
        return self.tokenizer.chat_template() if "tokenizer.chat_template" in self.file.metadata else None

    def use_template(self, name: str) -> None:
        """Put prompts into the chat template that the file calls `name` from now on, "default" for that without a name.

        Raises TemplateError for a name that the file does not have, and for a template that is invalid.
        """
        self.template = self.tokenizer.chat_template(name)

    def generate(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        **options: Unpack[GenerateOptions],
    ) -> Generation:
        """Generate a reply; iterate over what this returns for pieces of text.

        prompt      a question (put in the model's chat template unless `raw`), messages, or token ids
        system      the system message that goes before a question
        think       whether the model is to think first, where its template leaves that open (`enable_thinking`)
        max_tokens  where to stop at the latest; None: where the context ends (default: that, or 512 of a model without
                    a chat template, which seldom ends its reply)
        stop        text that ends the reply: a string, or several
        grammar     what the reply may be, see `octavo.Grammar`; it begins where thinking ends
        logprobs    how likely each token was, in `logprobs` of the reply, and this many of the likeliest in its place
        sampling    fields of SamplingParams

        What the prompt shares with earlier ones is not computed again. Replies that several threads read share steps,
        `max_sequences` of them, see `load`; others wait until one ends (see `Conversation`). Raises UsageError for
        arguments that are wrong, and ContextFullError, after the last piece of text, where the context is full before
        the reply ends.
        """
        flag("raw", raw)
        self.require_generation()
        chosen = settings("generate", self.file, **options)
        tokens = self.encode_prompt(prompt, system=options.get("system"), raw=raw, think=options.get("think"))
        sampler, constraint = self._sampler(chosen.sampling, tokens, raw), self._constraint(tokens, raw, options)
        return Generation(
            self._talk, tokens, tokenizer=self.tokenizer, sampler=sampler, constraint=constraint,
            stop=chosen.stop, max_tokens=chosen.max_tokens, stop_ids=chosen.sampling.stop_token_ids,
            goes_on=self._goes_on(prompt, raw), logprobs=self._logprobs(options),
        )

    def chat(self, messages: Sequence[Message], **options: Unpack[GenerateOptions]) -> Generation:
        """Generate the reply to the messages of a conversation; options are those of `generate`.

        `message` of what this returns goes behind them, for the next turn. Raises UsageError for what are not messages,
        and for a model without a chat template.
        """
        if isinstance(messages, str) or not isinstance(messages, Iterable):
            raise wrong("messages", messages, 'a list of messages, as [{"role": "user", "content": "Hi"}]')
        given = list(messages)
        if not given:
            raise wrong("messages", given, "one message or more")
        if not isinstance(given[0], Mapping):
            raise UsageError(f"{given[0]!r} is not a message: it needs a role and a content, both strings")
        require_known("chat", options, tuple(GenerateOptions.__annotations__))
        return self.generate(given, **options)

    def generate_many(
        self, prompts: Iterable[Prompt], *, raw: bool = False, **options: Unpack[GenerateOptions]
    ) -> list[Reply]:
        """The replies to several prompts, in their order; `max_sequences` of them, see `load`, are made at a time.

        Prompts and options are those of `generate`; a seed is that of each reply. Where the context is full a reply
        ends, and its `finish_reason` says so. What prompts share is computed once. Other threads wait until all are
        made. Raises UsageError for arguments that are wrong, and ContextFullError for a prompt that does not fit,
        before anything is computed.
        """
        rows = self._rows("generate_many", prompts, raw, options)
        fill(self._talk, rows)
        return [row.reply for row in rows]

    def stream_many(
        self, prompts: Iterable[Prompt], *, raw: bool = False, **options: Unpack[GenerateOptions]
    ) -> Stream:
        """Pieces of the replies to several prompts as they come, in pairs: the prompt's place, from 0, and a text.

        `replies` of what this returns are the replies, which grow meanwhile. All else is as with `generate_many`, but
        that other threads may have steps between.
        """
        return Stream(self._talk, self._rows("stream_many", prompts, raw, options))

    def _rows(self, function: str, prompts: Iterable[Prompt], raw: bool, options: GenerateOptions) -> list[BatchRow]:
        """What several prompts are computed from. Raises UsageError and ContextFullError."""
        flag("raw", raw)
        self.require_generation()
        if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
            raise wrong("prompts", prompts, "a list of prompts")
        chosen = settings(function, self.file, **options)
        rows = []
        for i, prompt in enumerate(prompts):
            tokens = self.encode_prompt(prompt, system=options.get("system"), raw=raw, think=options.get("think"))
            if len(tokens) > self.n_ctx:
                raise ContextFullError(f"prompt {i}, of {len(tokens)} tokens, does not fit the context of {self.n_ctx}")
            after = tokens if self._goes_on(prompt, raw) else ()
            reply = Reply(self.tokenizer, chosen.stop, chosen.max_tokens, chosen.sampling.stop_token_ids, after)
            sampler, constraint = self._sampler(chosen.sampling, tokens, raw), self._constraint(tokens, raw, options)
            rows.append(BatchRow(tokens, sampler, reply, constraint, self._logprobs(options)))
        return rows

    def _logprobs(self, options: GenerateOptions) -> int | None:
        """How many of the likeliest tokens are wanted beside each. Raises UsageError for more than there are."""
        most = options.get("logprobs")
        return None if most is None else integer("logprobs", most, 0, self.tokenizer.n_vocab)

    def _goes_on(self, prompt: Prompt, raw: bool) -> bool:
        """Whether a reply's text goes on in the prompt's, which no template is put around."""
        return isinstance(prompt, str) and (raw or self.template is None)

    def _sampler(self, params: SamplingParams, prompt: Sequence[int], raw: bool) -> Sampler:
        """Raises UsageError for tokens that are not in the vocabulary."""
        most = self.tokenizer.n_vocab - 1
        for name, tokens in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
            for token in tokens:
                integer(name, token, 0, most)
        thinking = None if params.reasoning_budget < 0 else self._thinking(prompt, raw)
        return make_sampler(params, n_prompt=len(prompt), end_ids=self.tokenizer.stop_ids, tokenizer=self.tokenizer,
                            thinking=thinking)

    def _thinking(self, prompt: Sequence[int], raw: bool) -> Thinking | None:
        """What a reply's thinking is in; None where there is none."""
        if raw or self.template is None:
            return None
        return thinking_after(self.template.source, self.tokenizer.decode(prompt[-PROMPT_END:]))

    def _constraint(self, prompt: Sequence[int], raw: bool, options: GenerateOptions) -> Constraint | None:
        """What the `grammar` among the options allows after a prompt. Raises UsageError and GrammarError."""
        grammar = options.get("grammar")
        if grammar is None:
            return None
        if not isinstance(grammar, Grammar):
            raise wrong("grammar", grammar, "an octavo.Grammar")
        if options.get("banned_strings"):
            raise UsageError("banned_strings can't be used with a grammar", argument="banned_strings")
        return self._grammars.constraint(grammar, self._thinking(prompt, raw))

    @cached_property
    def _grammars(self) -> Grammars:
        return Grammars(self.tokenizer)

    @property
    def core(self) -> EngineCore:
        """What computes replies. Raises UsageError unless the model generates text."""
        return self._talk.core

    @property
    def _talk(self) -> Conversation:
        self.require_generation()
        if self._conversation is None:
            with self.engine.lock:
                if self._conversation is None:
                    core = EngineCore(self.engine, n_known=self.tokenizer.n_vocab, draft=self.draft, head=self.head)
                    self._conversation = Conversation(core)
        return self._conversation

    def encode_prompt(
        self, prompt: Prompt, *, system: str | None = None, raw: bool = False, think: bool | None = None
    ) -> list[int]:
        """The tokens that a prompt comes to (see `generate`).

        Raises UsageError for a system message or `think` with a prompt that no template takes, for `think` with a
        template that leaves no choice, and for what is not a prompt.
        """
        return encode_prompt(prompt, self.tokenizer, None if raw else self.template, system, think)

    def embed(self, texts: str | Iterable[str], *, pooling: Pooling | None = None, normalize: bool = True) -> F32:
        """Vectors of texts: float32 [n, d], a row for each; their products are cosine similarities.

        pooling    how the vectors of a text's tokens become one: "mean", "cls" (the first) or "last"; by default what
                   the file says. One that does not say, as of a model made to generate, needs it
        normalize  rows have length 1

        What a model wants before a text ("search_query: ") is for the caller to put there. A model that generates
        computes with the weights and the cache that it has. Raises UsageError for arguments that are wrong, and
        ContextFullError for a text that does not fit the context, before anything is computed.
        """
        flag("normalize", normalize)
        return self.embedder.embed(_texts(texts), pooling, normalize=normalize)

    def embed_tokens(self, texts: str | Iterable[str]) -> list[F32]:
        """For each text the vectors of its tokens, float32 [tokens, n_embd], neither pooled nor normalized."""
        return self.embedder.token_vectors(_texts(texts))

    def rank(self, query: str, documents: str | Iterable[str]) -> F32:
        """How well each document answers a query, by a reranker: float32 [n], more is better.

        Of an encoder (BGE, XLM-RoBERTa) the classifier's own number, which may have any sign; of a model that generates
        (Qwen3) the share of "yes" against "no". Raises UsageError for arguments that are wrong, ModelError for a model
        that is not a reranker, and ContextFullError where a query and a document do not fit, before any computation.
        """
        if not isinstance(query, str):
            raise wrong("query", query, "a text")
        return self.ranker.scores(query, _texts(documents))

    @cached_property
    def ranker(self) -> Ranker:
        """What scores documents. Raises ModelError for a model that is not a reranker."""
        return Ranker(self.embedder)

    @cached_property
    def embedder(self) -> Embedder:
        """What gives vectors of texts; one that generates makes a graph for it over its weights and its cache."""
        self._require_open()
        return Embedder(self.engine, self.tokenizer)

    def require_generation(self) -> None:
        """Raise UsageError unless the model generates text, and is open."""
        self._require_open()
        if self.engine.config.embeds:
            require_generating(self.engine.model)

    def _require_open(self) -> None:
        if self._closed:
            raise UsageError(f"{self.name} is closed: octavo.load opens it again")

    def logits(self, tokens: Sequence[int]) -> F32:
        """Logits after each of `tokens`: float32 [n, n_vocab]."""
        self.require_generation()
        return self.engine.logits(token_ids(tokens))

    def sampling_defaults(self) -> SamplingOptions:
        """What the model's own metadata recommends (general.sampling.*). Raises ModelError for what is out of range."""
        return recommended(self.file)

    def close(self) -> None:
        """Close the model's file, and end the processes of its other ranks. From then on it answers nothing new."""
        self._closed = True
        self.engine.close()
        self.file.close()
        for drafts in (self.draft, self.head):
            if drafts is not None:
                drafts.model.file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _texts(given: str | Iterable[str]) -> list[str]:
    """A text or several as a list. Raises UsageError for anything else."""
    found = [given] if isinstance(given, str) else list(given) if isinstance(given, Iterable) else None
    if found is None or not all(isinstance(text, str) for text in found):
        raise wrong("texts", given, "a string or a list of strings")
    return found
