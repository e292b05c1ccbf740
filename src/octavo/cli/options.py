"""Options that several commands share: where to run, and with what.

Defaults are told in round brackets: help texts are Rich markup, to which square ones are tags that it leaves out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from octavo.errors import UsageError

if TYPE_CHECKING:
    from octavo.runtime.placement import GpuLayers

Device = Annotated[
    Literal["auto", "cpu", "gpu", "reference"], typer.Option(help="Where to run; auto: the GPU if there is one.")
]
Threads = Annotated[int | None, typer.Option(help="Threads to use (default: all cores).")]
Context = Annotated[
    int | None,
    typer.Option("-c", "--context", help="Tokens of a window (default: 512, or the model's if it has fewer)."),
]
Kv = Annotated[Literal["f16", "f32", "q8_0"], typer.Option(help="How keys and values are kept.")]
Layers = Annotated[
    str | None,
    typer.Option(
        "--gpu-layers", "-ngl", metavar="N|all|auto",
        help="The last N layers run on the GPU, the others on the CPU; auto: as many as fit (default: with --device "
        "auto what fits, with gpu all).",
    ),
]  # fmt: skip


def gpu_layers(text: str | None) -> GpuLayers | None:
    """What `--gpu-layers` stands for. Raises UsageError for what is no number of layers."""
    if text is None or text in ("all", "auto"):
        return cast("GpuLayers | None", text)
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--gpu-layers is {text!r} (allowed: 0 or more, all, auto)") from None
