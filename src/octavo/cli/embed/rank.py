"""`octavo rank`: which documents answer a query best."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.columns import print_columns
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.options import AsJson, Place, place_option
from octavo.cli.plain import printable, to_json
from octavo.cli.run.prompt_input import piped_lines
from octavo.progress import on_terminal


def rank(
    model: ModelName,
    query: Annotated[str, typer.Argument(metavar="QUERY", help="The question that the documents answer.")],
    documents: Annotated[
        list[str] | None, typer.Argument(metavar="DOCUMENTS", help="Texts; without any, the lines of standard input.")
    ] = None,
    ctx: Annotated[int | None, place_option("--ctx-size", "-c", help="Tokens of a query and a document.")] = None,
    *, place: Place, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """List documents by a reranker's score: `octavo rank bge-reranker.gguf "what do cats eat?" "fish" "the moon"`."""
    from octavo.runtime import load

    found = documents or piped_lines()
    path, given = local(model, offline), place.given(offline)
    with on_terminal():
        loaded = load(path, n_ctx=ctx, **given)
    with loaded:
        scores = loaded.rank(query, found).tolist()
    order = sorted(range(len(found)), key=lambda i: -scores[i])
    if as_json:
        results = [{"index": i, "score": scores[i], "document": found[i]} for i in order]
        print(to_json({"model": model, "query": query, "results": results}))
    else:
        rows = [(f"{scores[i]:.4f}", str(i + 1), printable(found[i])) for i in order]
        print_columns(("score", "", "document"), rows, numbers=("score", ""))
