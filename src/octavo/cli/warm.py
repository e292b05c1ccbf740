"""`octavo warm`: kernels compiled ahead, so that no start has to wait for them."""

from __future__ import annotations

import os
import tempfile
from contextlib import closing
from typing import TYPE_CHECKING, Annotated

import typer

from octavo.cli.hub.models import Offline, local
from octavo.cli.options import Where
from octavo.progress import on_terminal

if TYPE_CHECKING:
    from octavo.runtime import Model

USUAL = ("Q4_K_M", "Q8_0", "Q4_0", "Q5_K_M", "Q6_K", "F16")
"""Presets that most files have."""
PROMPT, REPLIES, REPLY = 600, 4, 12
"""Tokens of a prompt that is cut into several sizes of steps, replies that are made together, and tokens of each."""


def warm(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="A model, as of `octavo run`; without one what most models take."),
    ] = None,
    *, where: Where, offline: Offline = False,
) -> None:
    """Compile a model's kernels ahead, on all cores at once: `octavo warm model.gguf`.

    They are kept, by model type, format and CPU. `octavo run` and `octavo serve` find them.
    """
    from octavo.jit.clock import clock, compile_seconds

    start, compiled = clock() + compile_seconds(), compile_seconds()
    if model is not None:
        _use(local(model, offline), where, offline)
    else:
        with tempfile.TemporaryDirectory() as folder:
            for preset in USUAL:
                _use(_made(preset, os.path.join(folder, f"{preset}.gguf")), where, offline)
    seconds = clock() + compile_seconds() - start
    print(f"kernels are ready: {compile_seconds() - compiled:.1f} s of {seconds:.1f} s were spent compiling")


def _made(preset: str, path: str) -> str:
    """The demo model in a preset."""
    from octavo.quantizers.job.quantize import quantize_file

    with on_terminal():
        quantize_file("demo", path, preset)
    return path


def _use(path: str, where: Where, offline: bool) -> None:
    """Do with a model what makes all sizes of its steps."""
    import octavo

    with on_terminal(), closing(octavo.load(path, max_sequences=REPLIES, **where.given(offline))) as model:
        if _is_for_vectors(model):
            model.embed(["a text", "another text that is somewhat longer " * 8])
            return
        n = max(1, min(PROMPT, model.n_ctx - REPLY - 1))
        tokens = [(7 * i) % model.n_vocab for i in range(n)]
        prompts = [tokens, *(tokens[i : i + 9] for i in range(REPLIES))]
        model.generate_many(prompts, max_tokens=REPLY, ignore_eos=True, temperature=0.0)
        str(model.generate([1, 2, 3] * 9, max_tokens=REPLY, ignore_eos=True))


def _is_for_vectors(model: Model) -> bool:
    from octavo.runtime.text_embedding import is_embedding_model

    return is_embedding_model(model.engine.model)
