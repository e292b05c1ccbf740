"""`octavo eval`: perplexity, divergence from another model, many files judged, and the demo model's accuracy."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.columns import print_columns
from octavo.cli.evaluate import cache_divergence as evaluate_cache
from octavo.cli.evaluate import compare
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.option_groups import grouped
from octavo.cli.option_names import App, Commands
from octavo.cli.options import AsJson, CacheName, Chunks, ParseSpecial, Where, Window
from octavo.cli.plain import printable, to_json
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.evals.accuracy import DemoResult
    from octavo.evals.kl_divergence import Divergence
    from octavo.evals.stats import Estimate, Spread

app = App(cls=Commands, help="Measure how good a model is.", no_args_is_help=True)

TextFile = Annotated[
    str, typer.Argument(metavar="TEXT", help="A file of UTF-8 text, or `demo`: the demo model's questions and answers.")
]


def ppl(
    model: ModelName, text: TextFile, context: Window = None, chunks: Chunks = None,
    parse_special: ParseSpecial = False, *, where: Where, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Perplexity of a text, defined as llama.cpp does: `octavo eval ppl model.gguf wiki.test.raw`.

    Of the demo text only answers are scored: the demo model was not taught what people ask.
    """
    from octavo.calibrate.texts import named_text
    from octavo.cli.progress_bar import Bar
    from octavo.evals.eval_model import context_for, open_subject
    from octavo.evals.likelihood import perplexity

    path = local(model, offline)
    context = context_for(context, path)
    with open_subject(path, context, **where.given(offline)) as loaded:
        read = named_text(text, loaded.tokenizer, "test", parse_special=parse_special)
        with Bar() as bar:

            def show(done: int, total: int, value: float) -> None:
                bar.show(f"chunk {done} of {total}: perplexity {value:.4f}", done, total)

            found = perplexity(loaded, read.tokens, context=context, chunks=chunks, scored=read.scored, progress=show)
    if as_json:
        print(to_json({"model": model, "text": read.name, **asdict(found)}))
    else:
        print(f"perplexity {_plain(found.perplexity)} ({_extent(found.tokens, found.chunks, context)})")


def kl(
    model: ModelName, text: TextFile,
    base: Annotated[str, typer.Option("--base", metavar="MODEL", help="The model to compare with, as it was before.")],
    answers: Annotated[bool, typer.Option("--answers", help="Score only the answers in the demo text.")] = False,
    context: Window = None, chunks: Chunks = None, parse_special: ParseSpecial = False, *, where: Where,
    base_kv: Annotated[
        CacheName | None, typer.Option("--base-cache-type", help="Type of the base's KV cache (default: --cache-type).")
    ] = None,
    offline: Offline = False, as_json: AsJson = False,
) -> None:
    """How far a model is from its base: `octavo eval kl model-q4.gguf wiki.test.raw --base model-f16.gguf`.

    Adapters are the model's alone: `--lora` with the same MODEL as `--base` shows what one changes.
    """
    from octavo.calibrate.texts import named_text
    from octavo.cli.progress_bar import Bar
    from octavo.evals.eval_model import context_for, open_subject
    from octavo.evals.kl_divergence import divergence

    paths = [local(name, offline) for name in (model, base)]
    context = context_for(context, *paths)
    with (
        open_subject(paths[0], context, **where.given(offline)) as loaded,
        open_subject(paths[1], context, cache_type=base_kv or where.kv, **where.plain()) as other,
    ):
        read = named_text(text, loaded.tokenizer, "test", parse_special=parse_special)
        if answers and read.scored is None:
            raise UsageError(f"--answers is for the text `demo`; {text} does not say what is an answer")
        with Bar() as bar:
            found = divergence(
                loaded, other, read.tokens, context=context, chunks=chunks, scored=read.scored if answers else None,
                progress=lambda done, total, value: bar.show(f"chunk {done} of {total}: KL {value:.6f}", done, total),
            )
    if as_json:
        print(to_json({"model": model, "base": base, "text": read.name, **asdict(found)}))
    else:
        _show(found, "" if read.scored is None else " of answers" if answers else " of all tokens")


def demo(
    model: ModelName = "demo",
    questions: Annotated[int, typer.Option("-n", "--questions", help="How many to ask, up to 2,000.")] = 1000,
    seed: Annotated[int, typer.Option(help="Another seed asks other questions.")] = 0,
    misses: Annotated[bool, typer.Option("--misses", help="Also print what was answered wrongly.")] = False,
    *, where: Where, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Ask the demo model, or what it was made into, arithmetic that it was not trained on: `octavo eval demo`."""
    import octavo
    from octavo.cli.progress_bar import Bar
    from octavo.data.questions import most
    from octavo.evals.accuracy import evaluate

    if not 1 <= questions <= most("test"):
        raise UsageError(f"questions is {questions} (allowed: 1 to {most('test'):,})")
    with octavo.load(local(model, offline), **where.given(offline)) as loaded, Bar() as bar:
        asked = 0

        def ask(prompt: str) -> str:
            nonlocal asked
            reply = "".join(loaded.generate(prompt, temperature=0.0, max_tokens=64))
            asked += 1
            bar.show(f"question {asked} of {questions}", asked, questions)
            return reply

        report = evaluate(ask, questions, seed)
    if as_json:
        wrong = [{"prompt": q.prompt, "answer": q.answer, "reply": reply} for q, reply in report.misses]
        print(to_json({"model": model, "seed": seed, **report.to_dict(), **({"misses": wrong} if misses else {})}))
        return
    _show_tallies(report)
    for question, reply in report.misses if misses else ():
        print(f"{question.kind}: {question.prompt!r} -> {printable(repr(reply))}, not {question.answer!r}")


app.command("ppl")(grouped(ppl))
app.command("kl")(grouped(kl))
compare.add_to(app)
evaluate_cache.add_to(app)
app.command("demo")(grouped(demo))


def _show_tallies(report: DemoResult) -> None:
    numbers = ("right", "of", "accuracy")
    print_columns(("kind", *numbers, "95% interval"), report.rows(), numbers)


def _plain(estimate: Estimate) -> str:
    """Value and error, with two digits of the error that count."""
    known = math.isfinite(estimate.error) and estimate.error > 0
    digits = min(max(1 - math.floor(math.log10(estimate.error)), 2), 12) if known else 6
    return f"{estimate.value:.{digits}f} ± {estimate.error:.{digits}f}"


def _percent(estimate: Estimate) -> str:
    scaled = type(estimate)(100 * estimate.value, 100 * estimate.error)
    return f"{_plain(scaled)} %"


def _extent(tokens: int, chunks: int, context: int) -> str:
    return f"{tokens:,} tokens in {chunks:,} windows of {context}"


def _show(found: Divergence, what: str) -> None:
    rows = {
        "KL divergence": _plain(found.kl),
        "same top token": _percent(found.same_top),
        f"perplexity{what}": _plain(found.perplexity),
        "  of the base": _plain(found.base_perplexity),
        "  ratio": _plain(found.perplexity_ratio),
        "  difference": _plain(found.perplexity_difference),
        "  correlation": f"{100 * found.correlation:.2f} %",
        "change in probability": _percent(found.delta_p),
        "  root mean square": _percent(found.rms_delta_p),
    }
    width = max(map(len, rows))
    print(_extent(found.tokens, found.chunks, found.context))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    print(f"\n{'percentile':<12} {'KL':>12} {'change in p':>14}")
    for name, divergence, change in zip(
        *_percentiles(found.kl_spread), _percentiles(found.delta_p_spread)[1], strict=True
    ):
        print(f"{name:<12} {divergence:>12.4g} {100 * change:>12.4g} %")


def _percentiles(spread: Spread) -> tuple[list[str], list[float]]:
    middle = {"median" if p == 50 else f"{p:g}": value for p, value in spread.percentiles.items()}
    rows = {"largest": spread.largest, **middle, "least": spread.least}
    return list(rows), list(rows.values())
