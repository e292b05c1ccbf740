"""`octavo eval cache` and `octavo eval retrieval`: what types of the KV cache cost."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.cli.columns import print_columns
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.option_groups import grouped
from octavo.cli.options import AsJson, Chunks, DeviceOptions, Where, Window
from octavo.cli.plain import printable, to_json
from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.evals.kl_divergence import Divergence
    from octavo.evals.saturation import Saturation

LONG = 8192
"""Tokens of a row of the retrieval task, unless a number is given or the model's context is shorter."""
NOISE = 1e-5
"""Nats that a cache in f16 costs by its own rounding: models whose activations stay floats are far below it."""


def cache(
    model: ModelName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="A file of UTF-8 text, or `demo`.")],
    types: Annotated[
        str, typer.Option(help="Types of the cache, with commas between them.")
    ] = "f16,q8_0,int8,fp8,int4",
    context: Window = None, chunks: Chunks = None, *, place: DeviceOptions, offline: Offline = False,
    as_json: AsJson = False,
) -> None:
    """What types of the KV cache cost: divergence from one in f32, and what static scales cut off, by layer."""
    from octavo.calibrate.texts import named_text
    from octavo.cli.progress_bar import Bar
    from octavo.evals.eval_model import context_for, open_subject
    from octavo.evals.kl_divergence import divergence
    from octavo.evals.saturation import saturation

    path, names = local(model, offline), _known(types)
    context = context_for(context, path)

    given = place.given(offline)

    def load(kv: Any, **how: Any) -> Any:
        return open_subject(path, context, cache_type=kv, **(given | how))

    found: dict[str, tuple[Divergence, list[Saturation]]] = {}
    with load("f32", attention="exact") as base, Bar() as bar:
        tokens = named_text(text, base.tokenizer, "test").tokens
        for i, name in enumerate(names):

            def show(part: int, done: int, total: int, value: str, name: str = name, i: int = i) -> None:
                """Of each type there are two parts: divergence and what is cut off."""
                what = f"{name}, chunk {done} of {total}: {value}"
                bar.show(what, (2 * i + part) * total + done, 2 * len(names) * total)

            with load(name) as other:
                compared = divergence(
                    other, base, tokens, context=context, chunks=chunks,
                    progress=lambda done, total, value: show(0, done, total, f"KL {value:.6f}"),
                )
            with load(name, attention="exact", fuse=False) as plain:
                cut = saturation(
                    plain, tokens, context=context, chunks=chunks,
                    progress=lambda done, total: show(1, done, total, "what is cut off"),
                )
            found[name] = compared, cut
    if as_json:
        rows = {name: {**asdict(kl), "saturation": [asdict(s) for s in cut]} for name, (kl, cut) in found.items()}
        print(to_json({"model": model, "text": text, "types": rows}))
    else:
        _show(found)


def retrieval(
    model: ModelName,
    context: Annotated[
        int | None,
        typer.Option("--ctx-size", "-c", help="Tokens of a row (default: 8192, or what the model can have)."),
    ] = None,
    rows: Annotated[int, typer.Option(help="Rows of keys, values and questions.")] = 8,
    seed: Annotated[int, typer.Option("--seed", "-s", help="The same seed, the same rows.")] = 0,
    *, where: Where, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Ask a model made for it for values in a long context: `octavo eval retrieval made.gguf --cache-type int8`."""
    from octavo.cli.progress_bar import Bar
    from octavo.evals.eval_model import context_for, open_subject
    from octavo.evals.retrieval import retrieve

    path = local(model, offline)
    context = context_for(context, path, usual=LONG)
    with open_subject(path, context, **where.given(offline)) as loaded, Bar() as bar:

        def show(done: int, total: int, share: float) -> None:
            bar.show(f"row {done} of {total}: {share:.2%} right", done, total)

        found = retrieve(loaded, context, rows, seed, show)
    low, high = found.interval()
    if as_json:
        print(to_json({"model": model, "context": context, "seed": seed, "cache_type": where.kv,
                       "attention": where.attention, **asdict(found)}))
    else:
        print(f"{found.right} of {found.n} values, {found.accuracy:.2%} ({low:.2%} to {high:.2%})")


def _known(types: str) -> list[str]:
    from octavo.formats.cache_formats import CACHE_FORMATS

    names = types.split(",")
    unknown = [name for name in names if name not in CACHE_FORMATS]
    if unknown:
        raise UsageError(f"--types has {printable(unknown[0])!r} (allowed: {', '.join(CACHE_FORMATS)})")
    return names


def _show(found: dict[str, tuple[Divergence, list[Saturation]]]) -> None:
    rows = [
        (name, f"{kl.kl.value:.3g}", f"{kl.kl.error:.2g}", f"{kl.same_top.value:.3%}", _share(cut))
        for name, (kl, cut) in found.items()
    ]
    print_columns(("type", "KL", "+-", "same top token", "cut off"), rows, ("KL", "+-", "same top token", "cut off"))
    floor = found["f16"][0].kl.value if "f16" in found else 0.0
    if floor > NOISE:
        print(
            f"floor {floor:.3g}, that of f16: products of 8 bits round activations, and the least change of a cache "
            "rounds some of them otherwise; a type costs what it is over that"
        )
    for name, (_, cut) in found.items():
        for part in cut:
            if part.cut_off:
                share = f"{part.cut_off:,} of {part.numbers:,} numbers cut off"
                print(f"{name}, {part.name}: {share}, the largest at {part.largest:.2f} of what is kept")


def _share(cut: list[Saturation]) -> str:
    """What is cut off of all, in percent; nothing where scales are dynamic."""
    numbers = sum(part.numbers for part in cut)
    return f"{100 * sum(part.cut_off for part in cut) / numbers:.4f} %" if numbers else ""


def add_to(app: typer.Typer) -> None:
    app.command("cache")(grouped(cache))
    app.command("retrieval")(grouped(retrieval))
