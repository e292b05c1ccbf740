"""`octavo run`: a prompt and its reply, or a conversation."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, cast

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.options import Context, Draft, SamplingFlags, Speculation, Where, sampling_option
from octavo.cli.run.prompt_input import whole_prompt
from octavo.errors import ContextFullError, UsageError
from octavo.progress import on_terminal

if TYPE_CHECKING:
    from octavo.runtime import GenerateOptions

log = logging.getLogger("octavo")
output_option = partial(typer.Option, rich_help_panel="Output")


@dataclass
class ReplyOptions:
    """What the reply is to, and how long it may get."""

    system: Annotated[str | None, typer.Option("--system", "-sys", help="The system message.")] = None
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", "-n", help="Maximum number of tokens to generate; -1: as many as fit.")
    ] = None
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the reply; may be repeated.")] = None
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Don't stop at end-of-sequence tokens, but at --max-tokens.")
    ] = False
    think: Annotated[
        bool | None,
        typer.Option("--think/--no-think", help="Whether to think first (default: as in the model's template)."),
    ] = None
    json_schema: Annotated[
        str | None, typer.Option(metavar="SCHEMA|FILE", help="The reply is JSON of this schema.")
    ] = None
    grammar: Annotated[
        str | None,
        typer.Option(metavar="GRAMMAR|FILE", help="The reply follows this grammar (GBNF, or llguidance's Lark)."),
    ] = None
    chat_template: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which of the model's chat templates (default: the unnamed one).")
    ] = None
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template.")] = False


@dataclass
class SeededSampling(SamplingFlags):
    """How tokens are sampled, with a seed."""

    seed: Annotated[
        int | None, sampling_option("--seed", "-s", help="Random seed: the same gives the same reply; -1: a new one.")
    ] = None


@dataclass
class OutputOptions:
    """What is printed."""

    stats: Annotated[bool, output_option("--stats", help="Print speeds afterwards.")] = False
    as_json: Annotated[bool, output_option("--json", help="Print one JSON object instead of text.")] = False


def run(
    model: ModelName,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="PROMPT", help="The prompt; piped input is appended (`-`: only that). "
                       "Without a prompt: a conversation."),
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Append this file to the prompt.")
    ] = None,
    *, reply: ReplyOptions, sampled: SeededSampling, ctx: Context = None, where: Where, draft: Draft = None,
    speculate: Speculation = "auto", offline: Offline = False, output: OutputOptions,
) -> None:
    """Run a model: `octavo run demo "What is 12 times 7?"`.

    `git diff | octavo run model.gguf "Review this:"` asks about what is piped in.
    """
    from octavo.cli.run.reply_printer import Loading, answer_json, answer_text, larger_context, screen_for, write
    from octavo.jit.clock import clock, compile_seconds
    from octavo.runtime import load
    from octavo.runtime.loading import open_generating

    text = whole_prompt(" ".join(prompt) if prompt else None, prompt_file)
    if text is None and output.as_json:
        raise UsageError("--json needs a prompt")
    if reply.raw and reply.chat_template is not None:
        raise UsageError("--chat-template and --raw can't be used together")
    options = _options(reply, sampled)
    path = local(model, offline)
    start, compiled = clock(), compile_seconds()
    with on_terminal():
        drafts = None if draft is None else local(draft, offline)
        loaded = load(open_generating(path), n_ctx=ctx, draft=drafts, speculate=speculate, **where.given(offline))
    if not gc.isenabled():  # as the command begins; what is there by now stays
        gc.freeze()
        gc.enable()
    with loaded:
        if reply.chat_template is not None:
            loaded.use_template(reply.chat_template)
        if text is None:
            from octavo.cli.run.chat_loop import Chat
            from octavo.cli.run.line import read_line, typed_lines

            chat = Chat(loaded, read_line, write, raw=reply.raw, stats=output.stats, screen=screen_for, **options)
            with typed_lines(chat.complete):
                chat.loop()
            return
        loading = Loading(clock() - start, compiled)
        if log.isEnabledFor(logging.INFO):
            from octavo.cli.inspect.facts import headline

            log.info("%s; loaded in %.2f s", headline(loaded), loading.seconds)
        settings = {**loaded.sampling_defaults(), **options}
        log.info("sampling: %s", ", ".join(f"{name} {value}" for name, value in settings.items()) or "the defaults")
        try:
            answer = answer_json if output.as_json else answer_text
            answer(loaded, text, reply.raw, options, loading, output.stats or log.isEnabledFor(logging.INFO))
        except ContextFullError as error:
            raise ContextFullError(f"{error}; {larger_context(loaded)}") from None


def _options(reply: ReplyOptions, sampled: SeededSampling) -> GenerateOptions:
    """Those that were given, by the names that `generate` has for them."""
    from octavo.cli.run.grammar_options import grammar_option
    from octavo.runtime.options import ENDLESS

    given = sampled.params() | {
        "seed": sampled.seed, "max_tokens": reply.max_tokens, "stop": reply.stop, "system": reply.system,
        "think": reply.think, "ignore_eos": reply.ignore_eos or None,
        "grammar": grammar_option(reply.json_schema, reply.grammar),
    }
    options = {name: value for name, value in given.items() if value is not None}
    return cast("GenerateOptions", options | ({"max_tokens": None} if reply.max_tokens in ENDLESS else {}))
