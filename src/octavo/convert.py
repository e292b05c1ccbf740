"""A checkpoint folder to a GGUF file: `convert_checkpoint`.

It stands above the quantizers: a checkpoint is one more source of tensors for them, so converting to Q4_K_M and
converting to F16 are the same thing.
"""

from __future__ import annotations

import os

from octavo.errors import TokenizerError
from octavo.huggingface.folder import read_folder
from octavo.io.named import resolve
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.plan import Progress, StrPath, plan, require_ready
from octavo.quantizers.job.report import Report
from octavo.quantizers.job.source import Source, SourceTensor, model_facts
from octavo.quantizers.job.write import write_model
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import find_preset
from octavo.text.bpe import MERGES

AUTO = "auto"


def convert_checkpoint(
    folder: StrPath,
    dst: StrPath,
    preset: str = AUTO,
    *,
    imatrix: StrPath | Imatrix | None = None,
    choices: Choices | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the Hugging Face checkpoint in `folder` as the GGUF file `dst`.

    preset  F16, BF16, F32, Q8_0 or any other of `PRESETS`; "auto" is BF16 for weights stored so, else F16. Vectors and
            routers are F32 in each

    The other arguments, how the file appears, and the errors are those of `quantize_file`; further a TokenizerError for
    a tokenizer, and a ModelError for an architecture, that is not known, and a FileError for pickles.
    """
    weights = imatrix if isinstance(imatrix, Imatrix | None) else Imatrix.load(imatrix)
    source = checkpoint_source(folder)
    require_ready(dst, (os.path.join(source.path, name) for name in os.listdir(source.path)))
    chosen = find_preset(_stored(source.tensors) if preset.lower() == AUTO else preset)
    job = plan(source, chosen, choices or Choices(), weights)
    return write_model(job, dst, dry_run=dry_run, threads=threads, progress=progress)


def checkpoint_source(folder: StrPath) -> Source:
    """The checkpoint as a source of tensors. Raises what `read_folder` raises, and ModelError for a quantized one."""
    found = read_folder(resolve(folder))
    if found.config.values.get("quantization_config") is not None:
        allowed = "weights of F32, F16 or BF16; `octavo run` takes the folder as it is"
        raise found.config.error("quantization_config", "is a quantized checkpoint", allowed)
    if MERGES in found.metadata and not found.metadata[MERGES]:
        allowed = "some, as no GGUF file is read without; `octavo run` takes the folder as it is"
        raise TokenizerError("has no merges", file=found.checkpoint.folder, field="tokenizer.json", allowed=allowed)
    hp = found.hparams
    tensors = tuple(SourceTensor(t.name, t.shape, t.format.name, t.load) for t in found.tensors)
    facts = model_facts(hp.arch, hp.n_layer, hp.n_head, hp.n_head_kv, hp.n_expert)
    return Source(found.checkpoint.folder, hp.arch, found.metadata, tensors, facts)


def _stored(tensors: tuple[SourceTensor, ...]) -> str:
    """The type of 16 bits that loses least of what is stored."""
    first = next((t.type_name for t in tensors if len(t.shape) > 1), "F16")
    return "BF16" if first == "BF16" else "F16"
