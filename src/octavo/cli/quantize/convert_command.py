"""`octavo convert`: a Hugging Face checkpoint as a GGUF file."""

from __future__ import annotations

from time import monotonic
from typing import Annotated

import typer

from octavo.cli.hub.models import Offline, local
from octavo.cli.lora_command import adapters
from octavo.cli.options import Lora
from octavo.cli.progress_bar import Bar
from octavo.cli.quantize.command import AsJson, DryRun, MixedTypes, Threads, show
from octavo.cli.quantize.method_options import ImatrixFile


def convert(
    folder: Annotated[
        str,
        typer.Argument(metavar="HF_DIR",
                       help="The folder: config.json, *.safetensors, tokenizer; or ORG/REPO of the hub.")
    ],
    dst: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write; it is replaced when all is done.")],
    type: Annotated[
        str,
        typer.Option(
            help="F16, BF16, F32, Q8_0 or another preset of `octavo quantize`; auto: BF16 or F16, and of quantized "
            "weights the smallest type that holds them exactly, or else Q8_0."
        ),
    ] = "auto",
    imatrix: ImatrixFile = None, lora: Lora = None, *, types: MixedTypes, dry_run: DryRun = False,
    threads: Threads = None, offline: Offline = False, as_json: AsJson = False,
) -> None:
    """Convert a checkpoint folder to a GGUF file: `octavo convert Qwen3-0.6B out.gguf`.

    With `--lora` the adapter is merged into the weights.
    """
    from octavo.convert import convert_checkpoint

    started, folder = monotonic(), local(folder, offline)
    with Bar() as bar:
        report = convert_checkpoint(
            folder, dst, type, imatrix=imatrix, choices=types.choices(), lora=adapters(lora, offline), dry_run=dry_run,
            threads=threads, progress=bar.show,
        )
    show(report, as_json, started=started)
