"""What people look for in a model: its sizes, what it takes in memory, whether it runs here."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from octavo.cli.plain import printable
from octavo.errors import FileError, OctavoError, UsageError
from octavo.graph.names import split_layer
from octavo.io.gguf.file_type import file_type
from octavo.sizes import size

if TYPE_CHECKING:
    from octavo.graph.builder import CacheType
    from octavo.io.gguf import GGUFFile
    from octavo.models.shared.hparams import Hyperparams
    from octavo.runtime import Engine, Model


PROCESS, TOKEN = 190_000_000, 450
"""Bytes of Python, of the libraries that a model runs with, and of what steps compute in; large models take more. And
of the tokenizer, for each token."""


def name_of(file: GGUFFile) -> str:
    """The name in the model's metadata, or else the file's."""
    from octavo.io.hub.download_cache import shown_name

    return printable(file.metadata.get("general.name") or shown_name(file.path))


def facts(
    file: GGUFFile, n_ctx: int | None = None, cache_type: CacheType = "f16", device: str = "auto"
) -> dict[str, Any]:
    """The facts of a model as JSON takes them; memory is for a context of `n_ctx` tokens (default: as `run` has it).

    No weight is read. Raises UsageError for a context or a cache that the model can't have.
    """
    parameters = sum(math.prod(info.shape) for info in file.tensors.values())
    found: dict[str, Any] = {
        "name": name_of(file), "architecture": file.metadata.get("general.architecture"), "parameters": parameters,
        "file_type": file_type(file),
    }
    hparams, problem = _hyperparams(file)
    if hparams is not None:
        from octavo.runtime.engine.engine_limits import DEFAULT_CONTEXT

        n_ctx = min(hparams.n_ctx_most, DEFAULT_CONTEXT) if n_ctx is None else n_ctx or hparams.n_ctx_most
        found |= {
            "context_length": hparams.n_ctx_train, "longest_context": hparams.n_ctx_most,
            "layers": hparams.n_layer, "width": hparams.n_embd,
            "heads": hparams.n_head, "key_heads": hparams.n_head_kv, "experts": hparams.n_expert,
            "experts_used": hparams.n_expert_used, "vocabulary": hparams.n_vocab,
            "memory": {
                "ctx_size": n_ctx, "weights": weight_bytes(file, hparams.n_layer),
                "cache": cache_bytes(hparams, n_ctx, cache_type), "states": state_bytes(hparams),
                "process": PROCESS + TOKEN * hparams.n_vocab,
            },
        }
    template, other = _template(file)
    problem = problem or other or _why_not_here(file, n_ctx, cache_type, device)
    command = None if problem else _command(file)
    if device == "cpu":
        from octavo.jit.host_cpu import described

        found["cpu_level"] = described()
    return found | {"template": template, "runs": problem is None, "why_not": problem, "command": command}


def _command(file: GGUFFile) -> str:
    from octavo.models import read_model
    from octavo.runtime.text_embedding import command_for

    return command_for(read_model(file))


def engine(
    file: GGUFFile, n_ctx: int | None, cache_type: CacheType, device: str, ranks: int = 1, pipeline: int = 1
) -> Engine:
    """The engine that `run` would have, or rank 0 of it, with no weight loaded."""
    from octavo.models import read_model
    from octavo.runtime import Engine, EngineConfig
    from octavo.runtime.engine.placement import backends_for
    from octavo.runtime.text_embedding import embedding_engine, is_embedding_model

    backends, layers = backends_for(device, tensor_parallel=ranks, pipeline=pipeline)
    if is_embedding_model(read_model(file)):
        return embedding_engine(read_model(file), backends, n_ctx=n_ctx, gpu_layers=layers, pipeline=pipeline)
    config = EngineConfig(n_ctx=n_ctx, cache_type=cache_type, gpu_layers=layers, pipeline=pipeline)
    return Engine(read_model(file), backends, config)


def stages(made: Engine) -> list[dict[str, Any]]:
    """What each stage of a pipeline has: its device, first and last layer, and bytes; of several ranks, rank 0's."""
    from octavo.graph.node import lasting, leaf_bytes
    from octavo.graph.show import name_of

    found, first = [], made.model.hparams.n_layer - sum(made.stages)
    for number, count in enumerate(made.stages):
        leaves = [leaf for leaf in lasting(made.schedule.on(number)) if not leaf.attrs.get("constant")]
        weights = sum(leaf_bytes(leaf, made.limits) for leaf in leaves if leaf.op == "weight")
        kept = sum(leaf_bytes(leaf, made.limits) for leaf in leaves if leaf.op != "weight")
        found.append({
            "device": name_of(made.backends, number), "layers": [first, first + count - 1], "weights": weights,
            "cache": kept, "work": made.schedule.memory[number],
        })
        first += count
    return found


def _why_not_here(file: GGUFFile, n_ctx: int | None, cache_type: CacheType, device: str) -> str | None:
    """What this machine lacks for the model: a device, or free memory."""
    try:
        engine(file, n_ctx, cache_type, device).require_memory()
    except UsageError:
        raise
    except OctavoError as error:
        return _reason(error, file)
    return None


def weight_bytes(file: GGUFFile, n_layer: int) -> int:
    """Bytes of the tensors outside of layers and of the first `n_layer` ones: those that are computed with."""
    return sum(info.nbytes for info in file.tensors.values() if (split_layer(info.name)[0] or 0) < n_layer)


def cache_bytes(hparams: Hyperparams, n_ctx: int, cache_type: str) -> int:
    """Bytes of the keys and values of `n_ctx` tokens, of which layers with a window keep those within it."""
    from octavo.formats.cache_formats import CACHE_FORMATS
    from octavo.graph.node import PAGE_SIZE
    from octavo.runtime.cache.window_pool import most_pages
    from octavo.runtime.engine.engine import EngineConfig

    windows = [hparams.window(i) for i in range(hparams.n_layer)]
    kept = most_pages(max(windows, default=0), EngineConfig.n_batch, n_ctx) * PAGE_SIZE
    total = 0.0
    for i, window in enumerate(windows):
        heads, dim = hparams.kv_heads(i)
        rows = min(kept, n_ctx) if window else n_ctx
        total += rows * hparams.n_caches * heads * CACHE_FORMATS[cache_type].row_bytes(dim)
    return int(total)


def state_bytes(hparams: Hyperparams) -> int:
    """Bytes of the states of one sequence, and of the states kept for later prompts."""
    from octavo.runtime.cache.state_pool import slots_for

    return 4 * hparams.state_values * slots_for(1)


def _hyperparams(file: GGUFFile) -> tuple[Hyperparams | None, str | None]:
    """The sizes of a model that can be run, or why it can't."""
    from octavo.models import read_model

    try:
        return read_model(file).hparams, None
    except OctavoError as error:
        return None, _reason(error, file)


def _template(file: GGUFFile) -> tuple[list[str] | None, str | None]:
    """What the chat template is seen to offer, None without one; and what is wrong with the tokenizer, if anything."""
    from octavo.text import Tokenizer
    from octavo.text.template import TOOL_USE

    try:
        tokenizer = Tokenizer.from_gguf(file)
        if "tokenizer.chat_template" not in file.metadata:
            return None, None
        source = tokenizer.chat_template().source
        if TOOL_USE in tokenizer.template_names:
            source += tokenizer.chat_template(TOOL_USE).source
    except OctavoError as error:
        return None, _reason(error, file)
    offers = {"thinking": "enable_thinking", "thinks": "<think>", "tools": "tools"}
    found = [what for what, sign in offers.items() if sign in source]
    return [what for what in found if what != "thinks" or "thinking" not in found], None


def _reason(error: OctavoError, file: GGUFFile) -> str:
    text = str(error)
    prefix = f"{file.path}: "
    return text.removeprefix(prefix) if isinstance(error, FileError) else text


def lines(found: dict[str, Any]) -> dict[str, str]:
    """Facts as people read them, by their labels."""
    from octavo.sizes import short_count

    shown = {"architecture": printable(found["architecture"] or "not said"),
             "parameters": f"{short_count(found['parameters'])} ({found['parameters']:,})",
             "file type": found["file_type"]}
    if "layers" in found:
        experts = f", {found['experts_used']} of {found['experts']} experts a token" if found["experts"] else ""
        memory, longest = found["memory"], found["longest_context"]
        windowed = "" if longest == found["context_length"] else f", of which {longest:,} can be used here"
        total = sum(memory[part] for part in ("weights", "cache", "states", "process"))
        states = f", {size(memory['states'])} of states" if memory["states"] else ""
        shown |= {
            "context": f"{found['context_length']:,} tokens{windowed}",
            "layers": f"{found['layers']} of width {found['width']:,}{experts}",
            "heads": f"{found['heads']}, {found['key_heads']} of keys and values" if found["heads"] else "none",
            "vocabulary": f"{found['vocabulary']:,} tokens",
            "memory": f"{size(total)} at --ctx-size {memory['ctx_size']}: {size(memory['weights'])} of weights, "
            f"{size(memory['cache'])} of keys and values{states}, about {size(memory['process'])} of Python, "
            "tokenizer and workspaces",
        }
    stages, ranks = found.get("stages", ()), found.get("ranks", 1)
    rank = f"rank 0 of {ranks}" if ranks > 1 else ""
    for i, stage in enumerate(stages):
        name, whose = (f"stage {i}", rank and f"{rank}, ") if len(stages) > 1 else (rank, "")
        shown[name] = (
            f"{whose}layers {stage['layers'][0]} to {stage['layers'][1]} on {stage['device']}: "
            f"{size(stage['weights'])} of weights, {size(stage['cache'])} of keys and values, "
            f"{size(stage['work'])} to compute with"
        )
    if "cpu_level" in found:
        shown["kernels"] = f"for {found['cpu_level']}"
    template = found["template"]
    offers = "" if not template else f" ({', '.join(template)})"
    shown["chat template"] = "none" if template is None else f"yes{offers}"
    runs = "yes" if found.get("command") in (None, "run") else f"yes, with octavo {found['command']}"
    shown["runs here"] = runs if found["runs"] else f"no: {printable(found['why_not'])}"
    return shown


def headline(model: Model) -> str:
    """A loaded model in one line: what it is, where it runs, and with which adapters."""
    from octavo.io.hub.download_cache import shown_name
    from octavo.sizes import short_count

    engine = model.engine
    parameters = sum(math.prod(info.shape) for info in model.file.tensors.values())
    n_layer, name = engine.model.hparams.n_layer, engine.backends[0].name
    lora = "".join(f"; with LoRA {shown_name(path)} x {scale:g}" for path, scale in model.lora)
    where, counts = name, engine.stages
    if engine.gpu_layers < n_layer or len(counts) > 1:
        cards = f"{len(counts)} x {name}" if len(counts) > 1 else name
        where = f"{cards} ({' + '.join(map(str, counts))} of {n_layer} layers)"
        where += " and cpu" * (engine.gpu_layers < n_layer)
    if engine.cpu_experts:
        where += f", experts of {engine.cpu_experts} layers on cpu"
    return (
        f"{name_of(model.file)}: {engine.model.hparams.arch}, {short_count(parameters)} parameters, "
        f"{file_type(model.file)}; "
        f"context {engine.n_ctx:,} of {engine.model.hparams.n_ctx_most:,} tokens; on {where}{lora}"
    )
