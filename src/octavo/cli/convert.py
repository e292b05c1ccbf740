"""`octavo convert`: a Hugging Face checkpoint as a GGUF file."""

from __future__ import annotations

from typing import Annotated

import typer

from octavo.cli.progress import Bar
from octavo.cli.quantize import (
    AsJson,
    DryRun,
    EmbeddingType,
    ImatrixFile,
    OutputType,
    Pure,
    TensorType,
    Threads,
    show,
    tensor_types,
)


def convert(
    folder: Annotated[str, typer.Argument(metavar="HF_DIR", help="The folder: config.json, *.safetensors, tokenizer.")],
    dst: Annotated[str, typer.Argument(metavar="OUT.gguf", help="The file to write; it is replaced when all is done.")],
    type: Annotated[
        str, typer.Option(help="F16, BF16, F32, Q8_0 or another preset of `octavo quantize`; auto: BF16 or F16.")
    ] = "auto",
    imatrix: ImatrixFile = None,
    pure: Pure = False,
    tensor_type: TensorType = None,
    output_tensor_type: OutputType = None,
    token_embedding_type: EmbeddingType = None,
    dry_run: DryRun = False,
    threads: Threads = None,
    as_json: AsJson = False,
) -> None:
    """Convert a checkpoint of Llama, Mistral, Mixtral, Qwen 2 or Qwen 3: `octavo convert Qwen3-0.6B out.gguf`."""
    from octavo.convert import convert_checkpoint
    from octavo.quantizers import Choices

    choices = Choices(
        pure=pure, output_type=output_tensor_type, embedding_type=token_embedding_type,
        tensor_types=tensor_types(tensor_type or []),
    )  # fmt: skip
    with Bar() as bar:
        report = convert_checkpoint(
            folder, dst, type, imatrix=imatrix, choices=choices, dry_run=dry_run, threads=threads, progress=bar.show
        )
    show(report, as_json)
