"""Checkpoints whose linear layers are quantized, as compressed-tensors lays them out.

Weights are rounded to the nearest unless a method makes them by a text. A model goes through GGUF's names, whatever it
was, so one way leads from GGUF files and from checkpoint folders to a folder.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from octavo.backends.cores import threads_of
from octavo.errors import FileError, OctavoError, UsageError
from octavo.expressions import compiled
from octavo.huggingface import CheckpointFile, open_model_file
from octavo.huggingface.config.config_json import find_class
from octavo.huggingface.config.config_out import config_json, generation_config
from octavo.huggingface.config.sentence import sentence_files, sentence_out
from octavo.huggingface.folder import read_folder
from octavo.huggingface.kv_out import cache_scales, cache_scheme
from octavo.huggingface.schemes import KEY, CheckpointScheme, checkpoint_scheme, with_whole_groups
from octavo.huggingface.tensors.tensor_names import EXPERTS, checkpoint_name, is_linear
from octavo.huggingface.tokenizer.special_tokens import MORE_TEMPLATES, named_templates
from octavo.huggingface.tokenizer.tokenizer_out import tokenizer_files
from octavo.huggingface.writers import Writer, find_writer
from octavo.io.atomic import failures_of, new_folder, require_new_folder, require_room
from octavo.io.gguf import GGUFFile
from octavo.io.model_path import resolve
from octavo.io.safetensors import Checkpoint, write_safetensors
from octavo.io.safetensors.checkpoint import CONFIG, SINGLE
from octavo.models import ModelSpec, read_model
from octavo.quantizers.job.job_report import Report
from octavo.quantizers.job.method_result import undersampled, warn
from octavo.quantizers.job.quantization_record import FILE, MethodRecord, WeightRecord, record_of, to_values
from octavo.quantizers.job.scheme_method import CheckpointMethod, SchemeResult
from octavo.quantizers.schemes.scheme_tensors import REQUANTIZE, CheckpointJob, CheckpointTarget, Progress

_log = logging.getLogger(__name__)

JOINED = (("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up"), ("ffn_gate_shexp", "ffn_up_shexp"), EXPERTS)
"""Linear layers of a block that vLLM has in one: it wants one scheme for all, or none, and else refuses to load."""
StrPath = str | os.PathLike[str]
CARRIED = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "generation_config.json",
    "qwen.tiktoken",
)
"""Files of a checkpoint that go with its weights."""
OUTPUT, WORK = "output.weight", ".work"
"""The output matrix, and what the folder of a method at work is called, after the name of its checkpoint."""


def ignored_layers(model: ModelSpec, patterns: Sequence[str]) -> frozenset[str]:
    """The weights of linear layers in whose name a pattern is found: GGUF's (blk.0.ffn_down.weight), or a checkpoint's
    (model.layers.0.mlp.down_proj.weight; of experts with * in the place of a number).

    A warning names layers that vLLM joins with others. Raises UsageError for a pattern that is not a regular expression
    or that no layer has, and where nothing is left to be quantized.
    """
    names = {
        name: (name, checkpoint_name(name, model.architecture) or "") for name in model.file.tensors if is_linear(name)
    }
    found: set[str] = set()
    for pattern in patterns:
        try:
            expression = compiled(pattern)
        except re.error as error:
            raise UsageError(f"--ignore {pattern!r} is not a valid regular expression: {error}") from None
        mine = {name for name, both in names.items() if any(map(expression.search, both))}
        if not mine:
            first = " or ".join(next(iter(names.values()), ()))
            problem = f"--ignore is {pattern!r}, which matches no linear layer"
            raise UsageError(f"{problem} (allowed: a part of a name, as of {first})")
        found |= mine
    if names and found == names.keys():
        problem = f"--ignore is {', '.join(map(repr, patterns))}, which leaves no layer to quantize"
        raise UsageError(f"{problem} (allowed: what matches some)")
    for joined, apart, layers in _apart(names, found):
        where = f"{layers} layer{'s' if layers > 1 else ''}"
        _log.warning("vLLM joins %s and wants all of them or none as they are: --ignore leaves %s in %s",
                     _listed(joined), _listed(apart), where)
    return frozenset(found)


def _apart(names: Collection[str], left: Collection[str]) -> list[tuple[tuple[str, ...], tuple[str, ...], int]]:
    """Of layers that vLLM joins: those that are there, those of them that are left and others not, and in how many
    blocks."""
    found = Counter[tuple[tuple[str, ...], tuple[str, ...]]]()
    for block in sorted({name.rsplit(".", 2)[0] for name in names}):
        for joined in JOINED:
            there = tuple(one for one in joined if f"{block}.{one}.weight" in names)
            apart = tuple(one for one in there if f"{block}.{one}.weight" in left)
            if 0 < len(apart) < len(there):
                found[there, apart] += 1
    return [(*both, layers) for both, layers in found.items()]


def _listed(names: Sequence[str]) -> str:
    """a, b and c."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def quantize_checkpoint(
    src: StrPath,
    dst: StrPath,
    scheme: str,
    *,
    method: CheckpointMethod | None = None,
    layout: str = "compressed-tensors",
    ignore: Sequence[str] = (),
    allow_requantize: bool = False,
    dry_run: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Quantize the linear layers of a model into the new folder `dst`, readable by compressed-tensors and vLLM.

    src               a GGUF file, a checkpoint folder, or "demo"
    scheme            "int8-w8a8", "w4a8", "w4a16-g128", ..., see `octavo.huggingface.schemes.CHECKPOINT_SCHEMES`; where
                      rows are not whole groups, that of the next smaller groups which they are, with a warning
    method            makes weights by a text (`octavo.calibrate.SchemeMethod`); None: all are rounded to nearest
    layout            "compressed-tensors", or "gptq", "awq" or "qqq" for the schemes that they hold
    ignore            regular expressions of linear layers that stay as they are, see `ignored_layers`
    allow_requantize  quantized tensors may be quantized again, at a loss
    dry_run           nothing is written; the report has types and sizes

    The embedding, the output matrix, routers and vectors stay as they are. Holds a tensor at a time, and what a method
    made; `dst` appears when all of it is written and was read again. Raises what opening `src` and the method raise,
    UsageError for what does not go together, FileError where `dst` has something in it or can't be written, ModelError
    for a GGUF file that config.json has no words for, NonFiniteError and QuantFormatError for values that can't be
    stored.
    """
    writer = find_writer(layout)
    kind = writer.scheme(checkpoint_scheme(scheme))
    if method is not None and method.static:
        kind = writer.with_static(kind)
    name, work = os.fsdecode(dst), os.fsdecode(dst).rstrip(os.sep) + WORK
    _require_new(dst)
    if method is not None and method.kv is not None and layout != "compressed-tensors":
        raise UsageError(f"--kv {method.kv} with layout {layout}: it needs compressed-tensors")
    with open_model_file(resolve(src)) as file:
        source = read_model(file)
        left = ignored_layers(source, ignore)
        kind = replace(_in_whole_groups(writer, kind, source, left), left=left)
        _config(source, source, allow_requantize)
        target = CheckpointTarget(source, kind, writer, threads_of(threads), allow_requantize, progress)
        job = CheckpointJob(target, SchemeResult(file))  # says what is wrong with the model before a method is at work
        report = Report(file.path, name, kind.name, dry_run)
        if dry_run:
            _outline(report, job, method)
        elif method is None:
            _write(dst, job, report, None)
        else:
            _write_by(method, dst, target, work, report)
    return report


def _in_whole_groups(
    writer: Writer, scheme: CheckpointScheme, model: ModelSpec, left: Collection[str]
) -> CheckpointScheme:
    """The scheme, or one of smaller groups where rows are not whole ones of it, which a warning says."""
    rows = {info.shape[-1] for name, info in model.file.tensors.items() if is_linear(name) and name not in left}
    found = with_whole_groups(scheme, rows)
    if found.name == scheme.name:
        return scheme
    odd = ", ".join(str(k) for k in sorted(rows) if k % scheme.multiple)
    _log.warning("rows of %s values are not whole groups of %d: %s instead of %s, %.3g bits a weight", odd,
                 scheme.multiple, found.name, scheme.name, found.format(found.multiple).bits_per_weight)
    return writer.scheme(found)


def _write_by(method: CheckpointMethod, dst: StrPath, target: CheckpointTarget, work: str, report: Report) -> None:
    """Have a method make the weights, in the folder `work`, and write the checkpoint."""
    prepared = method(target.source.file, target.scheme, work)
    try:
        report.scaled.extend(prepared.scaled)
        report.inputs.extend(prepared.inputs)
        report.starved.extend(undersampled(prepared.made.values()))
        warn(report.starved)
        _write(dst, CheckpointJob(target, prepared), report, method.kv)
    except BaseException as error:
        prepared.end(error)
        raise
    prepared.end(None)


def _outline(report: Report, job: CheckpointJob, method: CheckpointMethod | None) -> None:
    """What would be written."""
    if method is not None:
        job = CheckpointJob(job.target, SchemeResult(method.outline(job.file, job.scheme)))
    report.rows.extend(job.row(name) for name in job.stored)


def _write(dst: StrPath, job: CheckpointJob, report: Report, kv: str | None) -> None:
    """Write the folder, with scales for caches of type `kv`, and read it again."""
    source, target = job.target.source, job.target
    scales = cache_scales(job.model, job.prepared.caches, kv) if kv is not None else {}
    require_room(dst, sum(head.nbytes for head in job.heads(scales)))
    quantized = job.config()
    if kv is not None:
        quantized["kv_cache_scheme"] = cache_scheme(kv)
    config = _config(source, job.model, target.allow_requantize) | {KEY: quantized}
    with failures_of(dst), new_folder(dst) as folder:
        write_safetensors(os.path.join(folder, SINGLE), job.heads(scales), job.arrays(report, scales))
        others = {CONFIG: config} | _tokenizer(source.file) | _record(report.preset, job.prepared)
        _write_others(folder, source.file, others)
        read_folder(folder)


def _record(scheme: str, prepared: SchemeResult) -> dict[str, dict[str, Any]]:
    """What a method did, as a file beside the weights; none where there was no method."""
    if prepared.about is None:
        return {}
    weights = (
        WeightRecord(name, made.how, made.before, made.error, made.tried, made.channels)
        for name, made in prepared.made.items()
    )
    starved = undersampled(prepared.made.values())
    return {FILE: to_values(MethodRecord(prepared.about, scheme, tuple(weights), tuple(prepared.scaled), starved))}


def _require_new(dst: StrPath) -> None:
    if not os.fspath(dst):
        raise UsageError("the destination has no name; name a folder that is new or empty")
    try:
        require_new_folder(dst)
    except FileError as error:
        made = _made_by(dst)
        if made is None:
            raise
        raise FileError(f"is a finished checkpoint: {made}", file=dst, allowed=error.allowed) from None


def _made_by(dst: StrPath) -> str | None:
    """What a checkpoint's record says of how it was made; None where there is no such record."""
    with suppress(OctavoError):
        checkpoint = Checkpoint.open(dst)
        record = record_of(checkpoint.json(FILE), checkpoint.path(FILE))
        return f"{record.target} by {record.about.method} over {record.about.text}"
    return None


def _config(source: ModelSpec, model: ModelSpec, allow_requantize: bool) -> dict[str, Any]:
    """config.json of what is written, without KEY.

    Raises ModelError for a model that has none, UsageError for a quantized one, and for one that is not written.
    """
    file, architecture = source.file, source.architecture
    source_class = find_class(file.folder.config) if isinstance(file, CheckpointFile) else ""
    if source_class in architecture.unwritten.classes:
        problem = (
            f"class {source_class} has joined matrices where single ones are written: it has no place in a checkpoint"
        )
        raise UsageError(f"{file.path}: {problem}")
    if why := architecture.unwritten.why(source.hparams):
        raise UsageError(f"{file.path}: {why}: it has no place in a checkpoint")
    config = dict(file.folder.config.values) if isinstance(file, CheckpointFile) else config_json(model)
    if config.get(KEY) is not None and not allow_requantize:
        raise UsageError(f"{file.path} is quantized already, and quantizing it again would add error{REQUANTIZE}")
    if OUTPUT in model.file.tensors and OUTPUT not in file.tensors:
        config = _untied(config)
    return {key: value for key, value in config.items() if key != KEY}


def _untied(config: dict[str, Any]) -> dict[str, Any]:
    """A config.json of a model whose output matrix is no longer its embedding, in its part for text too."""
    inner = {key: _untied(value) for key, value in config.items() if key == "text_config" and isinstance(value, dict)}
    return config | {"tie_word_embeddings": False} | inner


def _tokenizer(file: GGUFFile) -> dict[str, Any]:
    """Files that a checkpoint needs and a GGUF file has as metadata, by name; none for a checkpoint."""
    if isinstance(file, CheckpointFile):
        return {}
    sampling = generation_config(file)
    return tokenizer_files(file) | sentence_out(file) | ({"generation_config.json": sampling} if sampling else {})


def _write_others(folder: str, file: GGUFFile, made: dict[str, Any]) -> None:
    """The files that were made, and those that a checkpoint has beside its weights."""
    if isinstance(file, CheckpointFile):
        checkpoint = file.folder.checkpoint
        templates = [os.path.join(MORE_TEMPLATES, name) for name in named_templates(checkpoint.folder)]
        for name in (*CARRIED, *templates, *sentence_files(checkpoint)):
            if os.path.isfile(checkpoint.path(name)):
                os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
                shutil.copyfile(checkpoint.path(name), os.path.join(folder, name))
    write_objects(folder, made)


def write_objects(folder: str, made: Mapping[str, Any]) -> None:
    """Write objects as files of JSON, by their names in a folder."""
    for name, values in made.items():
        os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            json.dump(values, out, indent=2, ensure_ascii=False)
            out.write("\n")
