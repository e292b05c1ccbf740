"""The tensors of a checkpoint under GGUF's names: renamed, q and k reordered, experts stacked."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats import BlockFormat, QTensor, by_name, dequantize, quantize_reference
from octavo.formats.spec import F32
from octavo.graph.names import split_layer
from octavo.huggingface.config import find_class
from octavo.huggingface.experts import apart, columns_of, half, in_groups, stacked, transposed
from octavo.huggingface.heads import is_no_part, is_of_heads, part_of_heads
from octavo.huggingface.layouts.stored import stored_tensors
from octavo.huggingface.orders import Moved, absorb_orders, absorb_orders_of_heads
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint
from octavo.models import Architecture, Hyperparams
from octavo.models.config import Config
from octavo.models.hparams import CLASSIFIER
from octavo.models.remaking import multiplied, neighbouring, of_unit_length, rows_moved
from octavo.models.weights import WHOLE

IGNORED = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that follow from the configuration."""

BESIDE = ("bias", "scale", "order", "input_scale")
"""What a layer's weight may have beside it."""
SHARED = ("scale", "order", "input_scale")
"""What the rows of a matrix have in common, so that all tensors that are made of it have it."""

_NUMBER = r"\.(0|[1-9][0-9]{0,4})\.(.+)"
_ONE_OF = re.compile(r"(\w+)\.(0|[1-9][0-9]?)\.(weight|bias)")
_EXPERT = re.compile(r"((?:.+\.)?experts)\.(0|[1-9][0-9]{0,4})\.(\w+)")


@dataclass
class Found:
    """The tensors of a checkpoint by GGUF name: one each, or one an expert, or a half of a tensor for all experts."""

    single: dict[str, LazyTensor] = field(default_factory=dict)
    experts: dict[str, dict[int, LazyTensor]] = field(default_factory=dict)
    halves: dict[str, tuple[LazyTensor, int]] = field(default_factory=dict)


def gguf_tensors(
    checkpoint: Checkpoint,
    config: Config,
    architecture: Architecture[Any],
    hp: Hyperparams,
    constants: Mapping[str, F32],
    beside: Mapping[str, LazyTensor],
    text_name: Callable[[str], str | None] | None = None,
    moved: Moved | None = None,
) -> tuple[LazyTensor, ...]:
    """The tensors in the order of the model: vectors and routers as F32, matrices as they are stored.

    Where config.json says that the embedding is the output matrix, one in the checkpoint is left out.

    constants  tensors of GGUF's that follow from config.json, by name
    beside     those of other folders than the checkpoint's, by GGUF name
    text_name  the name of a tensor in the part of the checkpoint that is read, None for one of another part
    moved      gets what is in another order than the checkpoint has it, but for what all checkpoints of the kind have

    Raises ModelError for a tensor that is missing, not known, or of another shape than the configuration says.
    """
    tied = config.flag("tie_word_embeddings", architecture.tied)
    outer = {**architecture.outer, **architecture.heads.get(find_class(config), {})}
    named, left_out = text_name or str, _left_out(architecture, outer, tied)
    stored = stored_tensors(checkpoint, config, lambda name: (plain := named(name)) is None or left_out(plain))
    factors = architecture.factors(config)
    modules = {**architecture.names, **architecture.class_names.get(find_class(config), {})}
    found = find({named(name) or name: tensor for name, tensor in stored.items()}, architecture, modules, outer)
    found.single |= beside
    moved = Moved() if moved is None else moved
    absorb_orders(found.single, found.experts, moved)
    absorb_orders_of_heads(found.single, found.halves, moved)
    expected = architecture.tensors(hp)
    if not tied and "output.weight" in expected and "output.weight" not in found.single:
        raise _fault(checkpoint, "lm_head.weight", "is missing", "with tie_word_embeddings")
    made: list[LazyTensor] = []
    for name, want in expected.items():
        if name in constants:
            tensor: LazyTensor | None = _constant(name, constants[name])
        else:
            tensor = _made(checkpoint, found, name, hp, architecture, want.shape)
        if tensor is not None and name == "position_embd.weight":
            tensor = _without_rows(tensor, architecture.before_positions(config))
        if tensor is not None and name == "output.weight" and (axis := architecture.unit_output(config)) is not None:
            tensor = of_unit_length(tensor, axis)
        if tensor is not None and (factor := factors.get(split_layer(name)[1])) is not None:
            tensor = multiplied(tensor, factor)
        if tensor is None and not want.optional:
            raise _fault(checkpoint, name, "is missing", f"shape {list(want.shape)}")
        if tensor is not None and tensor.shape != want.shape:
            problem = f"shape {list(tensor.shape)} contradicts the configuration"
            raise _fault(checkpoint, name, problem, f"shape {list(want.shape)}")
        if tensor is not None:
            made.append(_shifted(tensor, architecture.norm_shift) if name.endswith("norm.weight") else tensor)
    _refuse_others(checkpoint, found, expected)
    return tuple(made)


def layer_numbers(checkpoint: Checkpoint, architecture: Architecture[Any], n_layer: int) -> dict[str, list[float]]:
    """Keys of metadata that have a number for each layer, of the tensors that hold them.

    Raises ModelError for one that is missing or no number, FileError for one that can't be read.
    """
    found: dict[str, list[float]] = {key: [] for key in architecture.numbers.values()}
    for (module, key), i in product(architecture.numbers.items(), range(n_layer)):
        name = f"{architecture.base}{architecture.layer}.{i}.{module}"
        tensor = checkpoint.tensors.get(name)
        if tensor is None or math.prod(tensor.shape) != 1:
            raise _fault(checkpoint, name, "is missing" if tensor is None else f"has {list(tensor.shape)}", "a number")
        found[key].append(float(tensor.floats().reshape(-1)[0]))
    return found


def _left_out(architecture: Architecture[Any], outer: Mapping[str, str], tied: bool) -> Callable[[str], bool]:
    unused = (*architecture.unused, *(("lm_head.",) if tied else ()))

    def left_out(name: str) -> bool:
        plain = architecture.plain_name(name)
        return name.endswith((*IGNORED, *architecture.ignored, *architecture.numbers)) or (
            bool(unused) and plain.startswith(unused) and plain not in outer
        )

    return left_out


def find(
    tensors: Mapping[str, LazyTensor], architecture: Architecture[Any], modules: Mapping[str, str],
    outer: Mapping[str, str],
) -> Found:  # fmt: skip
    """A checkpoint's tensors, by its own names, where `modules` of layers and `outer` say that they belong."""
    found = Found()
    in_layer = re.compile(re.escape(architecture.layer) + _NUMBER)
    for name, tensor in tensors.items():
        plain = architecture.plain_name(name)
        layer = in_layer.fullmatch(plain)
        if layer is not None and _find_in_layer(found, modules, f"blk.{layer[1]}.", layer[2], tensor):
            continue
        one = _ONE_OF.fullmatch(plain)
        if one is not None and (stack := outer.get(f"{one[1]}.*.{one[3]}")) is not None:
            found.experts.setdefault(stack, {})[int(one[2])] = tensor
        else:
            found.single[outer.get(plain, name)] = tensor
    return found


def _find_in_layer(found: Found, names: Mapping[str, str], prefix: str, part: str, tensor: LazyTensor) -> bool:
    """Put a layer's tensor where it belongs; whether it is known."""
    stem, _, kind = part.rpartition(".")
    if kind not in ("weight", *BESIDE) or part in names:  # stacked experts may go without
        stem, kind = part, "" if kind == "weight" else "weight"
    expert = _EXPERT.fullmatch(stem)
    target = names.get(f"{expert[1]}.*.{expert[3]}" if expert else stem)
    if target is None:
        return False
    if expert:
        found.experts.setdefault(f"{prefix}{target}.{kind}", {})[int(expert[2])] = tensor
    elif " " in target:
        for which, name in enumerate(target.split()):
            full = _full(prefix, name, kind)
            if kind in SHARED and not is_of_heads(full):
                found.single[full] = tensor
            elif not is_no_part(full):
                found.halves[full] = tensor, which
    else:
        found.single[_full(prefix, target, kind)] = tensor
    return True


def _full(prefix: str, target: str, kind: str) -> str:
    """The whole name of a tensor, which is the target itself or of that kind."""
    is_whole = not kind or target.endswith((".weight", *WHOLE))
    return f"{prefix}{target}" if is_whole else f"{prefix}{target}.{kind}"


def _made(
    checkpoint: Checkpoint, found: Found, name: str, hp: Hyperparams, architecture: Architecture[Any],
    want: tuple[int, ...],
) -> LazyTensor | None:  # fmt: skip
    """The tensor called `name`, to be made when its turn comes; None where the checkpoint has nothing for it.

    want  its shape, where that says which part of another it is
    """
    if name in found.experts:
        parts = found.experts[name]
        rows = [parts[i] for i in range(want[0]) if i in parts]
        if len(rows) < want[0] or len(parts) > want[0]:
            what = "experts" if "_exps." in name else "parts"
            raise _fault(checkpoint, name, f"has {what} {_few(sorted(parts))}", f"0 to {want[0] - 1}")
        if len({(t.format, t.shape) for t in rows}) > 1:
            raise _fault(checkpoint, name, "has experts of different shapes or types", "one shape and type")
        if rows[0].format.per_row:
            parted = [in_groups(row) for row in rows]
            rows = [row for row in parted if row is not None]
            if len(rows) < len(parted):
                raise _fault(checkpoint, name, f"has experts with rows of {want[-1]} values", "multiples of 32")
        if name.endswith((".scale", ".input_scale")):  # of one number each
            both = found.single.get(name)  # beside those of weights one that the architecture has for each expert
            return _source(name, rows[0].format, (len(rows),), lambda: _times(_row(stacked(rows)), both))
        return _source(name, rows[0].format, (len(rows), *rows[0].shape), lambda: stacked(rows))
    if name in found.halves:
        both, which = found.halves[name]
        if (remade := architecture.remade(name, both, hp)) is not both:
            return _source(name, remade.format, remade.shape, remade.load)
        of_heads = is_of_heads(name)
        rows_of_both = (*want[:-2], 2 * want[-2], want[-1]) if len(want) > 1 else want
        columns = columns_of(architecture.columns, both.shape, rows_of_both)
        part = part_of_heads(both, name, want) if of_heads else half(both, which, columns)
        if part is None:
            allowed = f"what {list(want)} is a part of" if of_heads else "floats of both"
            raise _fault(checkpoint, name, f"has shape {list(both.shape)} for two tensors", allowed)
        return _source(name, *part)
    if name not in found.single:
        return None
    tensor = architecture.remade(name, found.single[name], hp)
    if architecture.columns == "in one" and name.endswith("_exps.weight"):
        one = apart(tensor, want, columns=name.endswith("down_exps.weight"))
        if one is None:
            raise _fault(checkpoint, name, f"has shape {list(tensor.shape)}", f"floats of all experts, {list(want)}")
        return _source(name, tensor.format, *one)
    columns = columns_of(architecture.columns, tensor.shape, want)
    if columns and name.endswith("_exps.weight") and len(tensor.shape) == 3 and tensor.format.is_float:
        return _source(name, tensor.format, *transposed(tensor))
    if name.endswith(
        ("_inp_shexp.weight", "exp_probs_b.bias", CLASSIFIER)
    ):  # [K] or one row [1, K], which is a vector in GGUF
        return _source(name, tensor.format, tensor.shape[-1:], lambda: _row(tensor.load()))
    turned = in_order(name, tensor, hp, architecture)
    return _source(name, turned.format, turned.shape, turned.load)


def in_order(name: str, tensor: LazyTensor, hp: Hyperparams, architecture: Architecture[Any]) -> LazyTensor:
    """The tensor `name` with its rows, or values of a bias, where rope on neighbours wants those of q or k."""
    layer, part = split_layer(name)
    heads = 0 if layer is None else hp.turned_heads(layer).get(part.rpartition(".")[0], 0)
    reordered = architecture.reordered and name.endswith((".weight", ".bias"))
    if not (reordered and hp.rope.interleaved and heads and tensor.shape[0] % (2 * heads) == 0):
        return tensor
    return rows_moved(tensor, lambda rows: neighbouring(rows, heads))


def _times(scales: QTensor, others: LazyTensor | None) -> QTensor:
    """Scales of experts, each times its other one."""
    if others is None:
        return scales
    values = dequantize(scales) * dequantize(others.load())
    return QTensor(by_name("F32"), values.shape, values.view(np.uint8), scales.name)


def _row(tensor: QTensor) -> QTensor:
    """A matrix of one row, or of one column, as a vector."""
    return QTensor(tensor.format, (tensor.size,), tensor.data.reshape(-1))


def _source(name: str, fmt: BlockFormat, shape: tuple[int, ...], load: Callable[[], QTensor]) -> LazyTensor:
    if len(shape) > 1 and not name.endswith(("ffn_gate_inp.weight", ".bias")):
        return LazyTensor(name, fmt, shape, lambda: _named(load(), name))
    return LazyTensor(name, by_name("F32"), shape, lambda: _named(_as_f32(load()), name))


def _named(tensor: QTensor, name: str) -> QTensor:
    return QTensor(tensor.format, tensor.shape, tensor.data, name)


def _as_f32(tensor: QTensor) -> QTensor:
    values = np.ascontiguousarray(dequantize(tensor))
    return QTensor(by_name("F32"), tensor.shape, values.view(np.uint8))


def _shifted(tensor: LazyTensor, shift: float) -> LazyTensor:
    """A norm's weights, F32, with `shift` added."""
    if not shift:
        return tensor
    plain = by_name("F32")
    return LazyTensor(
        tensor.name, plain, tensor.shape,
        lambda: quantize_reference(dequantize(tensor.load()) + np.float32(shift), plain, tensor.name),
    )  # fmt: skip


def _without_rows(tensor: LazyTensor, count: int) -> LazyTensor:
    """A matrix without its first rows."""
    if not count or len(tensor.shape) != 2 or tensor.shape[0] <= count:
        return tensor
    shape = tensor.shape[0] - count, tensor.shape[1]
    return LazyTensor(
        tensor.name, tensor.format, shape,
        lambda: QTensor(tensor.format, shape, np.ascontiguousarray(tensor.load().data[count:]), tensor.name),
    )  # fmt: skip


def _constant(name: str, values: F32) -> LazyTensor:
    plain = by_name("F32")
    return LazyTensor(name, plain, values.shape, lambda: quantize_reference(values, plain, name))


def _refuse_others(checkpoint: Checkpoint, found: Found, expected: Mapping[str, object]) -> None:
    others = [name for names in (found.single, found.experts, found.halves) for name in names if name not in expected]
    if others:
        outside = not others[0].startswith("blk.") and others[0] in found.single
        first = found.single[others[0]].name if outside else others[0]  # outside of layers as the checkpoint names it
        raise _fault(checkpoint, first, f"and {len(others) - 1} more are not part of this architecture", None)


def _few(numbers: list[int]) -> str:
    first = ", ".join(map(str, numbers[:4]))
    return first if len(numbers) <= 4 else f"{first}, ... ({len(numbers)})"


def _fault(checkpoint: Checkpoint, name: str, problem: str, allowed: str | None) -> ModelError:
    return ModelError(problem, file=checkpoint.folder, field=f"tensor {shown(name)}", allowed=allowed)
