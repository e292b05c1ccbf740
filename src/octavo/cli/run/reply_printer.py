"""The reply to one prompt of `octavo run`, as text or as JSON, and how fast it came."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from octavo.cli.notes import INTERRUPTED
from octavo.cli.plain import to_json
from octavo.cli.run.screen import Screen, Wrapped
from octavo.errors import ContextFullError, OctavoError
from octavo.jit.clock import compile_seconds
from octavo.progress import shown

if TYPE_CHECKING:
    from octavo.runtime import GenerateOptions, Generation, Model

log = logging.getLogger("octavo")


def write(text: str) -> None:
    """Show text on standard output now."""
    sys.stdout.write(text)
    sys.stdout.flush()


def screen_for(model: Model, prompt: Sequence[int]) -> Screen:
    """Where the reply to a prompt is written: standard output, with care if that is a terminal."""
    thinking = model.tokenizer.decode(prompt[-8:]).rstrip().endswith("<think>")
    plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    terminal = sys.stdout.isatty()
    shown_by = Wrapped(write, shutil.get_terminal_size().columns) if terminal else write
    return Screen(shown_by, terminal=terminal, dim=not plain, thinking=thinking)


def larger_context(model: Model) -> str:
    """What to do where the context is full."""
    most = model.engine.model.hparams.n_ctx_most
    if model.engine.n_ctx < most:
        return f"--ctx-size makes it larger, up to {most}"
    return "the model was made for no more"


@dataclass(frozen=True)
class Loading:
    """Seconds that loading a model took, and seconds that kernels had been compiled for in this process before it."""

    seconds: float
    compiled_before: float

    @property
    def compile_seconds(self) -> float:
        """Seconds of compiling since then."""
        return compile_seconds() - self.compiled_before


def encoded(model: Model, prompt: Any, options: GenerateOptions, *, raw: bool = False) -> list[int]:
    """The tokens of a prompt, text or messages."""
    return model.encode_prompt(prompt, system=options.get("system"), raw=raw, think=options.get("think"))


def begun(model: Model, tokens: list[int], options: GenerateOptions, *, raw: bool = False) -> Generation:
    """The generation from the tokens of a prompt."""
    rest: Any = {name: value for name, value in options.items() if name not in ("system", "think")}
    return model.generate(tokens, raw=raw, **rest)


def pieces(generation: Generation) -> Iterator[str]:
    """A reply's pieces; from the first one on nothing is drawn over what stands on the terminal."""
    found = iter(generation)
    for first in found:
        yield first
        with shown(lambda *_: None):
            yield from found


def answer_text(model: Model, prompt: str, raw: bool, options: GenerateOptions, loading: Loading, stats: bool) -> None:
    """Print a reply as it comes, and with `stats` its speeds on stderr."""
    tokens = encoded(model, prompt, options, raw=raw)
    generation, screen = begun(model, tokens, options, raw=raw), screen_for(model, tokens)
    full: ContextFullError | None = None
    try:
        for piece in pieces(generation):
            screen.show(piece)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except ContextFullError as error:
        if not generation.tokens:
            raise
        full = error
    finally:
        screen.end()
        if generation.text_so_far and not generation.text_so_far.endswith("\n"):
            write("\n")
        if full is not None:
            log.warning("%s; %s", full, larger_context(model))
        if stats:
            print(speeds(generation, loading), file=sys.stderr)


def answer_json(model: Model, prompt: str, raw: bool, options: GenerateOptions, loading: Loading, stats: bool) -> None:
    """Print a reply as one JSON object when it is complete, or when the context is full."""
    generation = begun(model, encoded(model, prompt, options, raw=raw), options, raw=raw)
    failure: OctavoError | None = None
    try:
        for _ in generation:
            pass
    except ContextFullError as error:
        failure = None if generation.tokens else error
    except OctavoError as error:
        failure = error
    if failure is None:
        print(to_json(as_object(model, generation, loading)))
    if stats:
        print(speeds(generation, loading), file=sys.stderr)
    if failure is not None:
        raise failure


def as_object(model: Model, generation: Generation, loading: Loading) -> dict[str, Any]:
    """What `--json` prints: text, token ids, counts and seconds, and why the reply ended."""
    t = generation.timings
    return {
        "text": generation.text_so_far, "tokens": generation.tokens, "finish_reason": generation.finish_reason,
        "prompt_tokens": t.prompt_tokens, "generated_tokens": t.generated_tokens,
        "drafted_tokens": t.drafted_tokens, "accepted_tokens": t.accepted_tokens,
        "timings": {
            "load_seconds": round(loading.seconds, 6), "compile_seconds": round(loading.compile_seconds, 6),
            "prefill_seconds": round(t.prefill_seconds, 6), "decode_seconds": round(t.decode_seconds, 6),
            "prefill_tokens_per_second": round(t.prefill_rate, 3),
            "decode_tokens_per_second": round(t.decode_rate, 3),
        },
        "model": model.file.path,
    }


def speeds(generation: Generation, loading: Loading | None = None) -> str:
    """One line of counts and speeds, those of a process's first reply with the time to load."""
    t = generation.timings
    cached = f" ({t.cached_tokens} cached)" if t.cached_tokens else ""
    parts = [
        f"prompt {t.prompt_tokens} tokens{cached}, {t.prefill_rate:.1f} tok/s",
        f"reply {t.generated_tokens} tokens, {t.decode_rate:.1f} tok/s",
        f"ended by {generation.finish_reason}",
    ]
    if t.drafted_tokens:
        parts.append(f"{t.accepted_tokens} of {t.drafted_tokens} drafted tokens accepted")
    if loading is not None:
        parts.append(f"load {loading.seconds:.2f} s")
    compiling = t.compile_seconds if loading is None else loading.compile_seconds
    if compiling:
        parts.append(f"kernels compiled for {compiling:.1f} s, this once")
    return "; ".join(parts)
