"""A checkpoint folder to a GGUF file: `convert_checkpoint`.

It stands above the quantizers: a checkpoint is one more source of tensors for them, so converting to Q4_K_M and
converting to F16 are the same thing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from octavo.errors import FileError, TokenizerError, UsageError
from octavo.formats import BlockFormat, QTensor, by_name, dequantize, quantize_reference
from octavo.formats.exact import as_type, exact_type
from octavo.formats.spec import F32
from octavo.graph.factors import LowRank
from octavo.graph.low_rank import EMBEDDING, OUTPUT
from octavo.graph.names import split_layer
from octavo.huggingface.adapters.adapter import adapter_files
from octavo.huggingface.checkpoint_file import CheckpointFile
from octavo.huggingface.folder import Folder, read_folder
from octavo.huggingface.layouts.layout_table import layout_name
from octavo.huggingface.tokenizer.unsupported_settings import unsaid
from octavo.io.distinct_paths import model_files
from octavo.io.foreign import HEAD, foreign
from octavo.io.gguf import LazyTensor
from octavo.io.gguf.part import MAGIC
from octavo.io.missing_model import require_there
from octavo.io.regular_file import open_regular
from octavo.models import Hyperparams, read_model
from octavo.models.shared.weights import ORDER, SCALE, scale_name, weight_of
from octavo.quantizers.imatrix import Imatrix
from octavo.quantizers.job.importance import load_importance
from octavo.quantizers.job.job_plan import Progress, QuantizeJob, StrPath, plan, require_ready
from octavo.quantizers.job.job_report import Report
from octavo.quantizers.job.job_source import ModelSource, SourceTensor, model_facts
from octavo.quantizers.job.write import write_model
from octavo.quantizers.mix.mixing import Choices
from octavo.quantizers.mix.presets import find_preset
from octavo.runtime.lora_adapters import Chosen, Lora, chosen, located, with_adapters
from octavo.text.bpe import MERGES

log = logging.getLogger("octavo")

AUTO = "auto"
OF_QUANTIZED = ("F32", "F16", "BF16", "Q8_0")
"""What quantized weights may become if that is asked for: types that lose nothing, or hardly anything."""


def convert_checkpoint(
    folder: StrPath,
    dst: StrPath,
    preset: str = AUTO,
    *,
    imatrix: StrPath | Imatrix | None = None,
    choices: Choices | None = None,
    lora: Lora | None = None,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Write the Hugging Face checkpoint in `folder` as the GGUF file `dst`.

    preset  F16, BF16, F32, Q8_0 or any other of `PRESETS`; "auto" is BF16 for weights stored so, else F16. Vectors and
            routers are F32 in each. Of quantized weights "auto" makes the smallest type that holds them exactly, and
            Q8_0, with a warning, where there is none; F32, F16, BF16 and Q8_0 may be asked for
    lora    adapters that are merged into the weights, as of `octavo.load`; not into quantized ones

    The other arguments, how the file appears, and the errors are those of `quantize_file`; further a TokenizerError for
    a tokenizer, and a ModelError for an architecture, that is not known, and a FileError for pickles.
    """
    weights, adapters = load_importance(imatrix), located(chosen(lora))
    found = _readable(folder)
    quantized = [t for t in found.tensors if not t.format.is_float]
    automatic = preset.lower() == AUTO
    if quantized and not automatic and preset.upper() not in OF_QUANTIZED:
        allowed = f"{AUTO}, which keeps what it holds, {', '.join(OF_QUANTIZED)}"
        raise UsageError(f"{found.checkpoint.folder}: type {preset} for quantized weights (allowed: {allowed})")
    if quantized and adapters:
        problem = f"lora is given for {found.checkpoint.folder}, whose weights are quantized"
        raise UsageError(f"{problem}; convert a checkpoint of floats, or use `octavo run --lora`", argument="lora")
    exact = exact_types(found.tensors) if quantized and automatic else {}
    source = checkpoint_source(found, exact)
    read = [tensor.file for tensor in found.checkpoint.tensors.values()]
    read += [file for path, _ in adapters for file in adapter_files(path)]
    require_ready(dst, model_files(source.path, read), weights)
    wanted = find_preset(_stored(source.tensors) if automatic else preset)
    job = plan(merged(source, found, adapters), wanted, choices or Choices(), weights)
    if quantized and automatic:
        job = _keeping(job, [t.name for t in quantized if t.name not in exact])
    report = write_model(job, dst, dry_run=dry_run, threads=threads, progress=progress)
    return replace(report, layout=layout_name(found.checkpoint, found.config)) if quantized else report


def checkpoint_source(found: Folder, exact: Mapping[str, BlockFormat] | None = None) -> ModelSource:
    """The checkpoint as a source of tensors: those of `exact` in these types, others that are quantized as F32."""
    hp, beside = found.hparams, {t.name: t for t in found.tensors if t.name.endswith((ORDER, SCALE))}
    kept = exact or {}
    tensors = tuple(_tensor(t, kept, beside) for t in found.tensors if not t.name.endswith(ORDER))
    tensors += tuple(_magnitudes(name, values, hp) for name, values in _cache_magnitudes(found).items())
    facts = model_facts(hp.arch, hp.n_layer, hp.n_head, hp.n_head_kv, hp.n_expert)
    return ModelSource(found.checkpoint.folder, hp.arch, found.metadata, tensors, facts)


def merged(source: ModelSource, found: Folder, adapters: Chosen) -> ModelSource:
    """The source with what adapters add to weights, which are F32 then.

    Raises UsageError where they change one of the two matrices that a tied embedding is, and what adapters that do not
    fit raise.
    """
    if not adapters:
        return source
    added = with_adapters(read_model(CheckpointFile(source.path, found)), adapters, merged=True).added
    names = {tensor.name for tensor in source.tensors}
    if OUTPUT not in names and (EMBEDDING in added or OUTPUT in added):
        problem = f"lora changes the embedding or the output of {source.path}, which are one matrix"
        raise UsageError(f"{problem}; use `octavo run --lora`", argument="lora")

    def changed(tensor: SourceTensor) -> SourceTensor:
        pair = added.get(tensor.name)
        return tensor if pair is None else replace(tensor, type_name="F32", load=partial(_sum, tensor, pair))

    return replace(source, tensors=tuple(map(changed, source.tensors)))


def _sum(tensor: SourceTensor, pair: LowRank) -> QTensor:
    values = dequantize(tensor.load())
    values += (dequantize(pair.b) @ dequantize(pair.a)).reshape(values.shape)
    return quantize_reference(values, by_name("F32"), tensor.name)


def exact_types(tensors: Iterable[LazyTensor]) -> dict[str, BlockFormat]:
    """The types of GGUF that hold quantized tensors exactly, by name. All of these are read.

    Weights whose columns have an order of their own are put in that of the activation, where groups are not contiguous.
    """
    ordered = {weight_of(t.name) for t in tensors if t.name.endswith(ORDER)}
    types = {
        t.name: t.format if t.format.gguf is not None else exact_type(t.load())
        for t in tensors
        if not t.format.is_float and t.name not in ordered
    }
    return {name: fmt for name, fmt in types.items() if fmt is not None}


def _readable(folder: StrPath) -> Folder:
    """The checkpoint in a folder. Raises what `read_folder` raises, FileError for a file, and TokenizerError for one
    without merges."""
    _require_folder(folder)
    found = read_folder(folder)
    if MERGES in found.metadata and not found.metadata[MERGES]:
        problem = "has no merges, without which a GGUF file can't be read; `octavo run` takes the folder as it is"
        raise TokenizerError(problem, file=found.checkpoint.folder, field="tokenizer.json")
    for difference in unsaid(found.metadata):
        log.warning("%s: with the GGUF file llama.cpp %s; Octavo does", found.checkpoint.folder, difference)
    return found


def _require_folder(path: StrPath) -> None:
    require_there(path)
    if os.path.isdir(path):
        return
    with open_regular(path) as file:
        head = file.read(HEAD)
    is_gguf = head.startswith(MAGIC)
    problem = "is a GGUF file already: `octavo quantize` makes other types of it" if is_gguf else foreign(head)
    raise FileError(problem or "is not the folder of a checkpoint", file=path)


def _cache_magnitudes(found: Folder) -> dict[str, F32]:
    """What the folder's scales of caches say; a tensor of a GGUF file each."""
    return CheckpointFile(found.checkpoint.folder, found).cache_magnitudes()


def _magnitudes(name: str, values: F32, hp: Hyperparams) -> SourceTensor:
    heads, _ = hp.kv_heads(split_layer(name)[0] or 0)
    of_heads = np.ascontiguousarray(np.broadcast_to(values, max(heads, len(values))))
    return SourceTensor(name, of_heads.shape, "F32", lambda: quantize_reference(of_heads, by_name("F32"), name))


def _tensor(t: LazyTensor, exact: Mapping[str, BlockFormat], beside: Mapping[str, LazyTensor]) -> SourceTensor:
    stem, scale = t.name.removesuffix(".weight"), beside.get(scale_name(t.name))
    factor, names = (None, ()) if scale is None else (dequantize(scale.load()), (scale.name,))
    if t.name in exact:
        fmt = exact[t.name]
        return SourceTensor(t.name, t.shape, fmt.name, lambda: as_type(t.load(), fmt), factor, names, _origin(t))
    if t.format.is_float:
        return SourceTensor(t.name, t.shape, t.format.name, t.load, factor, names)
    order = beside.get(stem + ORDER)
    return SourceTensor(t.name, t.shape, "F32", lambda: _floats(t, order), factor, names, _origin(t, order))


def _origin(t: LazyTensor, order: LazyTensor | None = None) -> tuple[str, int]:
    return f"{t.format.name}{' by g_idx' if order else ''}", t.nbytes


def _floats(t: LazyTensor, order: LazyTensor | None) -> QTensor:
    """A tensor as F32, its columns where the activation has them."""
    values = dequantize(t.load())
    if order is not None:
        places = dequantize(order.load()).astype(np.intp)
        natural = np.empty_like(values)
        np.put_along_axis(natural, np.broadcast_to(places[..., None, :], values.shape), values, axis=-1)
        values = natural
    return QTensor(by_name("F32"), t.shape, values.view(np.uint8).reshape(*t.shape[:-1], -1), t.name)


def _keeping(job: QuantizeJob, others: list[str]) -> QuantizeJob:
    """The job with the types of its source kept, and `others` Q8_0, which a warning names."""
    floats = {t.name for t in job.source.tensors if t.is_float}
    types = {name: fmt for name, fmt in job.types.items() if name in floats and name not in others}
    if others:
        more = f" and {len(others) - 1} others" if len(others) > 1 else ""
        log.warning("no GGUF type holds %s%s exactly: they become Q8_0, the nearest; --type F32 is exact, and larger",
                    others[0], more)
    return replace(job, name=AUTO, types=types | dict.fromkeys(others, by_name("Q8_0")), file_type=None)


def _stored(tensors: tuple[SourceTensor, ...]) -> str:
    """The type of 16 bits that loses least of what is stored."""
    first = next((t.type_name for t in tensors if len(t.shape) > 1), "F16")
    return "BF16" if first == "BF16" else "F16"
