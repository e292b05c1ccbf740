"""`octavo imatrix`: which input channels of a model's weights matter, for `octavo quantize --imatrix`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.hub.models import ModelName, Offline, local
from octavo.cli.notes import stop_told
from octavo.cli.options import Chunks, Device, ParseSpecial, Threads, Window

if TYPE_CHECKING:
    from octavo.quantizers.imatrix import Imatrix


def imatrix(
    model: ModelName,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="A file of UTF-8 text, or `demo`: the demo model's questions.")
    ],
    output: Annotated[str, typer.Option("-o", "--output", metavar="FILE", help="The importance matrix, a GGUF file.")],
    chunks: Chunks = None, context: Window = None,
    save_every: Annotated[int, typer.Option(help="Save after this many windows.")] = 10,
    restart: Annotated[bool, typer.Option("--restart", help="Start over: don't go on from FILE.")] = False,
    process_output: Annotated[bool, typer.Option("--process-output", help="Include the output weight.")] = False,
    parse_special: ParseSpecial = False, device: Device = "auto", threads: Threads = None, offline: Offline = False,
) -> None:
    """Run a text and add up squared activations: `octavo imatrix model.gguf text.txt -o imatrix.gguf`.

    Interrupted, the same command goes on where FILE was saved.
    """
    from octavo.calibrate.texts import named_text
    from octavo.cli.progress_bar import Bar
    from octavo.evals.activation_squares import collect_imatrix
    from octavo.evals.eval_model import context_for, open_subject
    from octavo.io.atomic import require_target
    from octavo.io.distinct_paths import TEXT, require_apart, text_files

    require_target(output)
    require_apart(output, {TEXT: text_files(text)})
    model = local(model, offline)
    context = context_for(context, model)
    with open_subject(model, context, device=device, threads=threads, fuse=False) as loaded, Bar() as bar:
        read = named_text(text, loaded.tokenizer, "train", parse_special=parse_special)
        with stop_told(lambda: f"the same command goes on from {output}" if os.path.exists(output)
                       else "nothing was saved yet"):
            matrix = collect_imatrix(
                loaded, read.tokens, name=read.name, context=context, chunks=chunks, output=process_output,
                path=output, save_every=save_every, restart=restart,
                progress=lambda done, total: bar.show(f"chunk {done} of {total}", done, total),
            )
    _report(matrix, output)


def _report(matrix: Imatrix, output: str) -> None:
    print(f"{output}: {len(matrix.entries)} weights, {matrix.chunk_count} windows of {matrix.chunk_size} tokens")
    unseen = [(e.counts == 0).sum() for e in matrix.entries.values() if len(e.counts) > 1]
    if sum(unseen):
        experts = sum(len(e.counts) for e in matrix.entries.values() if len(e.counts) > 1)
        print(
            f"octavo: {sum(unseen)} of {experts} experts' weights met no token; a longer text reaches more",
            file=sys.stderr,
        )
