"""The tensors of a PEFT folder as what they add to weights, by GGUF's names and in its order of rows and columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from octavo.errors import ModelError
from octavo.formats import QTensor, by_name, dequantize, dequantize_rows
from octavo.graph.low_rank import EMBEDDING, OUTPUT
from octavo.graph.names import split_layer
from octavo.huggingface.adapters.peft import WRAPPED, PeftFolder
from octavo.huggingface.adapters.peft_parameters import Stacked, parameters_by_name
from octavo.huggingface.checkpoint_file import CheckpointFile
from octavo.huggingface.config.config_json import find_class
from octavo.huggingface.config.wrapper import text_name
from octavo.huggingface.tensors.experts import picked, stacked
from octavo.huggingface.tensors.heads import KEYS, is_of_heads
from octavo.huggingface.tensors.tensor_matches import FoundTensors, find
from octavo.huggingface.tensors.tensors import in_order
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import StoredTensor
from octavo.models import Architecture, Hyperparams, ModelSpec
from octavo.models.shared.conversion import columns_as_rows, f32_tensor, multiplied, of_values, rows_moved
from octavo.models.shared.lora import Adapter, Factored
from octavo.models.shared.weights import Tensors

PREFIX = "base_model.model."
_FACTOR = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?:\.default)?(\.weight)?")
_BASE = ".base_layer.weight"
"""The end of names of a model's own weights, which PEFT saves beside what it adds to embeddings."""
_ROWS, _NEAR, _NEAR_QUANTIZED = 64, 0.01, 0.4
"""Rows of such a weight that are compared with the model's, and how far they may be from it: rms, relative."""
Modules = tuple[Mapping[str, str], Mapping[str, str]]
"""Names of layers' modules and of tensors outside of layers."""


def peft_adapter(folder: PeftFolder, model: ModelSpec) -> Adapter:
    """What a folder adds to a model's weights. Tensors are read when they are asked for.

    Raises ModelError for a tensor that is not a factor, one without the other, another rank than the configuration has,
    and a module that is not part of the model.
    """
    modules, stacks = _modules(folder)
    if not modules and not stacks:
        raise ModelError("has no tensors", file=folder.path, allowed="pairs of lora_A and lora_B")
    stored = {_name_in_text(folder, name): pair for name, pair in modules.items()}
    for stack in stacks.values():
        _name_in_text(folder, stack.plain)
    first: ModelError | None = None
    for names in _candidates(model):
        try:
            parts = dict(_parts(folder, stored | parameters_by_name(folder, stacks, model, names), model, names))
            _require_base(folder, model, names)
            return Adapter(folder.path, parts)
        except ModelError as error:
            first = first or error
    assert first is not None
    raise first


def modules_of(folder: PeftFolder) -> dict[str, Factored]:
    """The two factors of each module, by the name that the model has for it; see `peft_adapter` for what is raised."""
    modules, stacks = _modules(folder)
    for module, stack in stacks.items():
        name = folder.parameters_of(module)[0]
        modules[module] = stack.factored(f"{module}.weight", folder.rank_of(name), folder.factor(name))
    return modules


def _modules(folder: PeftFolder) -> tuple[dict[str, Factored], dict[str, Stacked]]:
    """The two factors of each module, and those of parameters of modules."""
    found: dict[str, dict[str, StoredTensor]] = {}
    embeddings = set()
    for name, tensor in folder.tensors.items():
        if name.endswith(_BASE):
            continue
        match = _FACTOR.fullmatch(name)
        if match is None or bool(match[2]) == bool(match[4]):
            raise folder.error(name, _what_else(name), "lora_A and lora_B of modules")
        module = match[1].removeprefix(PREFIX)
        found.setdefault(module, {})[match[3]] = tensor
        if match[2]:
            embeddings.add(module)
    modules, stacks = {}, {}
    for module, parts in found.items():
        a, b = _both(folder, parts)
        wrapped = module.endswith(WRAPPED) or a.shape[:1] != (folder.rank_of(module),)
        if wrapped and folder.parameters_of(module):
            stacks[module] = Stacked(module, a, b)
        else:
            modules[module] = _pair(folder, module, a, b, module in embeddings)
    return modules, stacks


def _what_else(name: str) -> str:
    if "lora_magnitude_vector" in name:
        return "is a magnitude (DoRA)"
    return "is not a factor of a LoRA, and what else it changes can't be applied"


def _both(folder: PeftFolder, parts: Mapping[str, StoredTensor]) -> tuple[LazyTensor, LazyTensor]:
    """Two factors that belong together."""
    if len(parts) < 2:
        (there,) = parts
        missing = "lora_A" if there == "B" else "lora_B"
        raise folder.error(parts[there].name, f"has no {missing} beside it")
    return _lazy(parts["A"]), _lazy(parts["B"])


def _pair(folder: PeftFolder, module: str, a: LazyTensor, b: LazyTensor, of_rows: bool) -> Factored:
    """The factors of a module; those of an embedding, whose rows are looked up, are the other way round."""
    rank = folder.rank_of(module)
    if len(a.shape) != 2 or len(b.shape) != 2 or not a.shape[0] == b.shape[1] == rank:
        problem = f"has factors {list(a.shape)} and {list(b.shape)}"
        raise folder.error(module, problem, f"[{rank}, K] and [N, {rank}], of the rank in adapter_config.json")
    if of_rows:
        if folder.tied:
            problem = "is there: one LoRA for an embedding and the output matrix"
            raise ModelError(problem, file=folder.path, field="ensure_weight_tying", allowed="false")
        a, b = columns_as_rows(of_values(b)), columns_as_rows(of_values(a))
    return Factored.of(f"{module}.weight", a, b, folder.factor(module))


def _lazy(tensor: StoredTensor) -> LazyTensor:
    return LazyTensor(tensor.name, by_name(tensor.dtype), tensor.shape, tensor.load)


def _name_in_text(folder: PeftFolder, module: str) -> str:
    name = text_name(f"{module}.weight")
    if name is None:
        raise folder.error(module, "is of a part of the model that is not run", "modules of the text model")
    return name


def _candidates(model: ModelSpec) -> Iterator[Modules]:
    """The names that a checkpoint of the model has; of a GGUF file, which does not say its class, those of each."""
    architecture = model.architecture
    if isinstance(model.file, CheckpointFile):
        kinds = [find_class(model.file.folder.config)]
    else:
        kinds = ["", *(name for name in {**architecture.modules.by_class, **architecture.modules.outer_by_class})]
    for kind in kinds:
        names = {**architecture.names, **architecture.modules.by_class.get(kind, {})}
        yield names, {**architecture.outer, **architecture.modules.outer_by_class.get(kind, {})}


def _parts(
    folder: PeftFolder, stored: Mapping[str, Factored], model: ModelSpec, names: Modules
) -> Iterator[tuple[str, Factored]]:
    architecture, hp = model.architecture, model.hparams
    expected = architecture.tensors(hp)
    found = find(stored, architecture, *names)
    here = [*found.single, *found.experts, *found.halves]
    for name in here:
        if name not in expected:
            raise folder.error(name.removesuffix(".weight"), "is not a module of the model", architecture.name)
    for name in here:
        part = _placed(folder, found, name, hp, architecture, expected)
        yield name, _as_converted(folder, name, part, model)


def _require_base(folder: PeftFolder, model: ModelSpec, names: Modules) -> None:
    """Raise ModelError where the adapter has another weight of the model than the model has."""
    for name, stored in folder.tensors.items():
        if not name.endswith(_BASE):
            continue
        plain = f"{name.removesuffix(_BASE).removeprefix(PREFIX)}.weight"
        tensor = LazyTensor(name, by_name("F32"), stored.shape, stored.load)
        (own, *_) = find({text_name(plain) or plain: tensor}, model.architecture, *names).single or (plain,)
        own = EMBEDDING if own == OUTPUT and own not in model.file.tensors else own
        info = model.file.tensors.get(own)
        if info is None or len(stored.shape) != 2 or info.shape != stored.shape or not _is_near(model, own, stored):
            raise folder.error(
                name, "is another weight than the model's", "that of the model, and changes to it alone"
            )


def _is_near(model: ModelSpec, name: str, stored: StoredTensor) -> bool:
    """Whether some rows of a weight are the model's, as far as the model's type holds them."""
    own, (n, k) = model.file.tensor(name), stored.shape
    rows = np.unique(np.linspace(0, n - 1, _ROWS).astype(np.intp))
    width = stored.nbytes // n
    parts = (replace(stored, shape=(1, k), offset=stored.offset + int(row) * width) for row in rows)
    theirs = np.concatenate([part.floats() for part in parts])
    apart = float(np.linalg.norm(dequantize_rows(own, rows) - theirs))
    return apart <= float(np.linalg.norm(theirs)) * (_NEAR if own.format.is_float else _NEAR_QUANTIZED)


def _placed(
    folder: PeftFolder, found: FoundTensors, name: str, hp: Hyperparams, architecture: Architecture, expected: Tensors
) -> Factored:
    """The part for the weight `name`, as `huggingface.tensors` makes that of a checkpoint's."""
    want = expected[name].shape
    made: LazyTensor
    if name in found.experts:
        made = _stacked(folder, name, found.experts[name], want)
    elif name in found.halves:
        both, which = found.halves[name]
        made = architecture.layout.converted(name, both, hp)
        if made is both and isinstance(both, Factored) and is_of_heads(name):
            made = _of_heads(both, name, want)
        elif made is both and isinstance(both, Factored) and len(both.shape) == 3:
            made = _half_of_experts(both, which, alternate=architecture.layout.columns == "alternate")
        elif made is both:
            n = both.shape[0] // 2
            made = rows_moved(both, lambda rows: rows[which * n : (which + 1) * n], n)
    else:
        made = in_order(name, architecture.layout.converted(name, found.single[name], hp), hp, architecture)
    if not isinstance(made, Factored):
        raise folder.error(made.name, "is made into another tensor here than by moving rows and columns")
    if made.shape not in (want, (1, *want)):
        problem = f"changes a weight of shape {list(made.shape)}"
        raise folder.error(made.name, problem, f"{list(want)}, as the model's {name}")
    return made


def _half_of_experts(both: Factored, which: int, *, alternate: bool) -> Factored:
    """The gate's part (0) or the up projection's (1) of experts that have both; `alternate`, a row of each in turn."""
    n = both.shape[1] // 2
    taken = slice(which, None, 2) if alternate else slice(which * n, (which + 1) * n)

    def rows(b: LazyTensor) -> LazyTensor:
        shape = (b.shape[0], n, b.shape[2])
        return LazyTensor(b.name, b.format, shape, lambda: picked(b.load(), lambda values: values[:, taken]))

    return both.with_rows(rows)


def _stacked(folder: PeftFolder, name: str, parts: Mapping[int, LazyTensor], want: tuple[int, ...]) -> Factored:
    """Those of all experts. Raises ModelError where some have none, or others have another shape or factor."""
    rows = [part for part in (parts.get(i) for i in range(want[0])) if isinstance(part, Factored)]
    if len(rows) < want[0] or len(parts) > want[0]:
        raise folder.error(name, f"has {len(parts)} experts", f"0 to {want[0] - 1}")
    if len({(row.shape, row.rank, row.factor) for row in rows}) > 1:
        raise folder.error(name, "has experts of different shapes, ranks or factors", "the same for all")

    def all_of(parts: list[LazyTensor]) -> LazyTensor:
        plain = [of_values(part) for part in parts]
        return LazyTensor(name, plain[0].format, (len(plain), *plain[0].shape), lambda: stacked(plain))

    return Factored.of(name, all_of([row.a for row in rows]), all_of([row.b for row in rows]), rows[0].factor)


def _of_heads(both: Factored, name: str, want: tuple[int, ...]) -> Factored:
    """Of a matrix that makes keys and values of heads the part for one of them, see `huggingface.heads`.

    Keys are columns there, so each head's factors change places.
    """
    heads, keys = want[0], KEYS in name
    rows, rank = both.b.shape[0] // heads, both.rank
    kept = slice(want[2]) if keys else slice(rows - want[1], None)

    def own() -> QTensor:
        values = dequantize(both.b.load())[: heads * rows].reshape(heads, rows, rank)[:, kept]
        return f32_tensor(values.swapaxes(1, 2) if keys else values)

    def shared() -> QTensor:
        values = dequantize(both.a.load())
        values = values.T if keys else values
        return f32_tensor(np.broadcast_to(values, (heads, *values.shape)))

    n, k = len(range(rows)[kept]), both.shape[1]
    plain = by_name("F32")
    if keys:
        a = LazyTensor(both.b.name, plain, (heads, rank, n), own)
        return Factored.of(both.name, a, LazyTensor(both.a.name, plain, (heads, k, rank), shared), both.factor)
    b = LazyTensor(both.b.name, plain, (heads, n, rank), own)
    return Factored.of(both.name, LazyTensor(both.a.name, plain, (heads, rank, k), shared), b, both.factor)


def _as_converted(folder: PeftFolder, name: str, part: Factored, model: ModelSpec) -> Factored:
    """The part times what the weight itself is multiplied by on its way from a checkpoint.

    Raises ModelError where that is not known, or the weight is changed in a way that does not go through a sum.
    """
    layout = model.architecture.layout
    config = model.file.folder.config if isinstance(model.file, CheckpointFile) else None
    if config is None and layout.factors is not None:
        allowed = "its checkpoint folder as the model"
        raise folder.error(part.name, "is multiplied by numbers that no GGUF file of the model has", allowed)
    if name == "output.weight" and layout.unit_output is not None and (
        config is None or layout.unit_output(config) is not None
    ):
        raise folder.error(part.name, "is normalized in the model, which no sum goes through", "other modules")
    if name.endswith("position_embd.weight"):
        raise folder.error(part.name, "is of positions", "other modules")
    factor = {} if config is None or layout.factors is None else layout.factors(config)
    made = multiplied(part, factor.get(split_layer(name)[1], 1.0))
    assert isinstance(made, Factored)
    return made
