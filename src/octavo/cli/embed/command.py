"""`octavo embed`: texts as vectors, and their similarity."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from octavo.cli.columns import print_columns
from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.options import AsJson, Place, place_option
from octavo.cli.plain import printable, to_json
from octavo.cli.run.prompt_input import piped_lines
from octavo.errors import UsageError
from octavo.progress import on_terminal

if TYPE_CHECKING:
    from octavo.formats.spec import F32

SHOWN = 8
"""Numbers of a vector, and texts of a table, that are printed."""
LABEL = 32
"""Characters of a text that stand for it."""


def embed(
    model: ModelName,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXTS", help="Texts; without any, the lines of standard input.")
    ] = None,
    pooling: Annotated[
        Literal["mean", "cls", "last", "none"] | None,
        typer.Option(help="How tokens become one vector; none: a vector for each (default: as the file says)."),
    ] = None,
    raw: Annotated[bool, typer.Option("--no-normalize", help="Don't normalize the vectors.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write a .npy file, float32, a row a text.")
    ] = None,
    ctx: Annotated[int | None, place_option("--ctx-size", "-c", help="Tokens that a text may have.")] = None,
    *, place: Place, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Show how similar texts are: `octavo embed bge.gguf "a cat" "a kitten" "the stock market"`.

    `octavo embed bge.gguf -o vectors.npy < lines.txt` writes a vector for each line.
    """
    from octavo.huggingface import open_model_file
    from octavo.io.atomic import require_target
    from octavo.io.distinct_paths import MODEL, model_files, require_apart
    from octavo.io.model_path import resolve
    from octavo.runtime import load
    from octavo.runtime.text_embedding import require_pooling

    if pooling == "none" and output is not None:
        raise UsageError("--output stores a vector per text: use --pooling mean, cls or last")
    if output is not None:
        require_target(output)
    found = texts or piped_lines()
    path, given = local(model, offline), place.given(offline)
    if pooling is None:  # before the model is loaded
        with open_model_file(resolve(path)) as file:
            require_pooling(file, None)
    with on_terminal():
        loaded = load(path, n_ctx=ctx, **given)
    with loaded:
        if output is not None:
            require_apart(output, {MODEL: model_files(loaded.file.path, loaded.file.files)})
        if pooling == "none":
            vectors: Any = loaded.embed_tokens(found)
        else:
            vectors = loaded.embed(found, pooling=pooling, normalize=not raw)
    if output is not None:
        _save(output, vectors)
        print(f"octavo: {output}: {len(vectors)} rows of {vectors.shape[1]} numbers", file=sys.stderr)
    if as_json:
        print(to_json({"model": model, "texts": len(found), "embeddings": [v.tolist() for v in vectors]}))
    elif output is None and (pooling == "none" or len(found) == 1):
        _show_vectors(found, vectors)
    elif output is None:
        _show_similarity(found, vectors)


def _save(path: str, vectors: F32) -> None:
    import numpy as np

    from octavo.io.atomic import written_file

    with written_file(path) as temporary, open(temporary, "wb") as file:
        np.save(file, vectors)


def _show_vectors(texts: list[str], vectors: Any) -> None:
    for text, vector in zip(texts, vectors, strict=True):
        rows = vector.reshape(-1, vector.shape[-1])
        print(f"{_label(text)}: {' x '.join(map(str, vector.shape))} numbers")
        for row in rows[:SHOWN]:
            print("  " + " ".join(f"{value:9.5f}" for value in row[:SHOWN]) + (" ..." if len(row) > SHOWN else ""))


def _show_similarity(texts: list[str], vectors: F32) -> None:
    """The cosine similarity of all pairs, or of the first texts with all."""
    import numpy as np

    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(lengths == 0, 1, lengths)
    cosines = unit @ unit[:SHOWN].T
    numbers = [str(i + 1) for i in range(cosines.shape[1])]
    rows = [
        (str(i + 1), _label(text), *(f"{value:.3f}" for value in row))
        for i, (text, row) in enumerate(zip(texts, cosines, strict=True))
    ]
    print_columns(("", "text", *numbers), rows, numbers=numbers)


def _label(text: str) -> str:
    plain = printable(text)
    return plain if len(plain) <= LABEL else plain[: LABEL - 3] + "..."
