"""`octavo run`: a prompt and its reply, or a conversation."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from octavo.cli.options import Device, Kv, Layers, Threads, gpu_layers
from octavo.cli.plain import to_json
from octavo.errors import OctavoError, UsageError

if TYPE_CHECKING:
    from octavo.runtime import GenerateOptions, Generation, Model

SAMPLING = "Sampling"
OUTPUT = "Output"
INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""


def run(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A GGUF file, a checkpoint folder, or `demo`.")],
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="What to ask (`-` or a pipe: read it). Without: a conversation."),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option("-n", "--max-tokens", min=0, help="Most tokens to make.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text as it is: no chat template.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends the reply; may be given again.")] = None,
    temp: Annotated[
        float | None,
        typer.Option(help="Temperature; 0 is greedy (default: the model's own, or 0.8).", rich_help_panel=SAMPLING),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="Only the k most likely; 0: all (default: 40).", rich_help_panel=SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Only the likeliest of this total probability (default: 0.95).", rich_help_panel=SAMPLING),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(help="Only those at least this likely, relative to the best (default: 0.05).",
                     rich_help_panel=SAMPLING),
    ] = None,
    repeat_penalty: Annotated[
        float | None, typer.Option(help="Over 1: tokens seen lately get less likely.", rich_help_panel=SAMPLING)
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="The same seed gives the same reply.", rich_help_panel=SAMPLING)
    ] = None,
    ctx: Annotated[int | None, typer.Option(help="Tokens of context (default: the model's, up to 4096).")] = None,
    kv: Kv = "f16",
    device: Device = "auto",
    layers: Layers = None,
    threads: Threads = None,
    stats: Annotated[bool, typer.Option("--stats", help="Print speeds afterwards.", rich_help_panel=OUTPUT)] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:  # fmt: skip
    """Run a model: `octavo run demo "What is 12 times 7?"`."""
    from octavo.runtime import load

    if prompt == "-" or (prompt is None and (sys.stdin is None or not sys.stdin.isatty())):
        prompt = _read_pipe()
    if prompt is None and as_json:
        raise UsageError("--json needs a prompt")
    given = {
        "temperature": temp, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repeat_penalty": repeat_penalty,
        "seed": seed, "max_tokens": max_tokens, "stop": stop, "system": system,
    }  # fmt: skip
    options = cast("GenerateOptions", {name: value for name, value in given.items() if value is not None})
    start = time.perf_counter()
    with load(model, device=device, n_ctx=ctx, threads=threads, cache_type=kv, gpu_layers=gpu_layers(layers)) as loaded:
        load_seconds = time.perf_counter() - start
        if prompt is None:
            from octavo.cli.chat import Chat, read_line

            Chat(loaded, read_line, _write, raw=raw, stats=stats, **options).loop()
            return
        generation = loaded.generate(prompt, raw=raw, **options)
        (_answer_json if as_json else _answer_text)(loaded, generation, load_seconds, stats)


def _read_pipe() -> str:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read()
    try:
        text = data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"standard input is not UTF-8 at byte {error.start}") from None
    if not text:
        raise UsageError("there is no prompt: none was given, and standard input is empty")
    return text


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _answer_text(model: Model, generation: Generation, load_seconds: float, stats: bool) -> None:
    try:
        for piece in generation:
            _write(piece)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    finally:
        if generation.text_so_far and not generation.text_so_far.endswith("\n"):
            _write("\n")
        if stats:
            print(speeds(generation, load_seconds), file=sys.stderr)


def _answer_json(model: Model, generation: Generation, load_seconds: float, stats: bool) -> None:
    failure: OctavoError | None = None
    try:
        for _ in generation:
            pass
    except OctavoError as error:
        failure = error
    if failure is None or generation.finish_reason == "context":
        print(to_json(as_object(model, generation, load_seconds)))
    if stats:
        print(speeds(generation, load_seconds), file=sys.stderr)
    if failure is not None:
        raise failure


def as_object(model: Model, generation: Generation, load_seconds: float) -> dict[str, Any]:
    """What `--json` prints: text, token ids, counts and seconds, and why the reply ended."""
    t = generation.timings
    return {
        "text": generation.text_so_far,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "prompt_tokens": t.prompt_tokens,
        "generated_tokens": t.generated_tokens,
        "timings": {
            "load_seconds": round(load_seconds, 6),
            "prefill_seconds": round(t.prefill_seconds, 6),
            "decode_seconds": round(t.decode_seconds, 6),
            "prefill_tokens_per_second": round(t.prefill_rate, 3),
            "decode_tokens_per_second": round(t.decode_rate, 3),
        },
        "model": model.file.path,
    }


def speeds(generation: Generation, load_seconds: float | None = None) -> str:
    """One line of counts and speeds."""
    t = generation.timings
    cached = f" ({t.cached_tokens} cached)" if t.cached_tokens else ""
    parts = [
        f"prompt {t.prompt_tokens} tokens{cached}, {t.prefill_rate:.1f} tok/s",
        f"reply {t.generated_tokens} tokens, {t.decode_rate:.1f} tok/s",
        f"ended by {generation.finish_reason}",
    ]
    if load_seconds is not None:
        parts.append(f"load {load_seconds:.2f} s")
    return "; ".join(parts)
