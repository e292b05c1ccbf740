"""The tensors of a checkpoint under GGUF's names: renamed, q and k reordered, experts stacked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import numpy as np

from octavo.errors import ModelError, shown
from octavo.formats import BlockFormat, QTensor, by_name, dequantize, quantize_reference
from octavo.formats.part import Stack
from octavo.formats.spec import F32
from octavo.graph.names import split_layer
from octavo.huggingface.config.config_json import find_class
from octavo.huggingface.layouts.module_tensors import stored_tensors
from octavo.huggingface.tensors.experts import Shape, apart, columns_of, half, in_groups, stacked, transposed
from octavo.huggingface.tensors.heads import is_of_heads, part_of_heads
from octavo.huggingface.tensors.row_orders import Moved, absorb_orders, absorb_orders_of_heads
from octavo.huggingface.tensors.tensor_matches import FoundTensors, find
from octavo.io.gguf import LazyTensor
from octavo.io.safetensors import Checkpoint
from octavo.models import Architecture, Hyperparams
from octavo.models.shared.config import Config
from octavo.models.shared.conversion import f32_tensor, multiplied, neighbouring, of_unit_length, of_values, rows_moved
from octavo.models.shared.hparams import CLASSIFIER
from octavo.models.shared.weights import Expected

IGNORED = ("rotary_emb.inv_freq",)
"""Ends of names of tensors that follow from the configuration."""
VECTORS = ("_inp_shexp.weight", "exp_probs_b.bias", CLASSIFIER)
"""Ends of names of vectors [K] that a checkpoint may have as a matrix of one row [1, K]."""


def gguf_tensors(
    checkpoint: Checkpoint,
    config: Config,
    architecture: Architecture,
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
    outer = {**architecture.outer, **architecture.modules.outer_by_class.get(find_class(config), {})}
    named, left_out = text_name or str, _left_out(architecture, outer, tied)
    stored = stored_tensors(checkpoint, config, lambda name: (plain := named(name)) is None or left_out(plain))
    modules = {**architecture.names, **architecture.modules.by_class.get(find_class(config), {})}
    found = find({named(name) or name: tensor for name, tensor in stored.items()}, architecture, modules, outer)
    found.single |= beside
    for copy, source in architecture.modules.copies.items():
        if source in found.single:
            found.single.setdefault(copy, found.single[source])
    moved = Moved() if moved is None else moved
    absorb_orders(found.single, found.experts, moved)
    absorb_orders_of_heads(found.single, found.halves, moved)
    expected = architecture.tensors(hp)
    if not tied and "output.weight" in expected and "output.weight" not in found.single:
        raise _fault(checkpoint, "lm_head.weight", "is missing", "with tie_word_embeddings")
    maker = _Maker(checkpoint, config, architecture, hp, found, constants)
    tensors = [maker.tensor(name, want) for name, want in expected.items()]
    _refuse_others(checkpoint, found, expected)
    return tuple(tensor for tensor in tensors if tensor is not None)


def layer_numbers(checkpoint: Checkpoint, architecture: Architecture, n_layer: int) -> dict[str, list[float]]:
    """Keys of metadata that have a number for each layer, of the tensors that hold them.

    Raises ModelError for one that is missing or no number, FileError for one that can't be read.
    """
    found: dict[str, list[float]] = {key: [] for key in architecture.modules.scalars.values()}
    for (module, key), i in product(architecture.modules.scalars.items(), range(n_layer)):
        name = f"{architecture.base}{architecture.layer}.{i}.{module}"
        tensor = checkpoint.tensors.get(name)
        if tensor is None or math.prod(tensor.shape) != 1:
            raise _fault(checkpoint, name, "is missing" if tensor is None else f"has {list(tensor.shape)}", "a number")
        found[key].append(float(tensor.floats().reshape(-1)[0]))
    return found


def _left_out(architecture: Architecture, outer: Mapping[str, str], tied: bool) -> Callable[[str], bool]:
    unused = (*architecture.unused, *(("lm_head.",) if tied else ()))

    def left_out(name: str) -> bool:
        plain = architecture.plain_name(name)
        return name.endswith((*IGNORED, *architecture.modules.ignored, *architecture.modules.scalars)) or (
            bool(unused) and plain.startswith(unused) and plain not in outer
        )

    return left_out


@dataclass(frozen=True)
class _Maker:
    """Makes the tensors of a model from those of its checkpoint. Each is loaded when its turn comes."""

    checkpoint: Checkpoint
    config: Config
    architecture: Architecture
    hp: Hyperparams
    found: FoundTensors
    constants: Mapping[str, F32]

    def tensor(self, name: str, want: Expected) -> LazyTensor | None:
        """The tensor called `name`; None for an optional one that the checkpoint lacks."""
        constant = self.constants.get(name)
        tensor = self._stored(name, want.shape) if constant is None else _constant(name, constant)
        if tensor is None:
            if want.optional:
                return None
            raise self._fault(name, "is missing", f"shape {list(want.shape)}")
        tensor = self._changed(name, tensor)
        if tensor.shape != want.shape:
            problem = f"shape {list(tensor.shape)} contradicts the configuration"
            raise self._fault(name, problem, f"shape {list(want.shape)}")
        return tensor

    def _changed(self, name: str, tensor: LazyTensor) -> LazyTensor:
        """The tensor with what the architecture does to its values."""
        if name == "position_embd.weight":
            tensor = _without_rows(tensor, self.architecture.layout.before_positions(self.config))
        unit_output = self.architecture.layout.unit_output if name == "output.weight" else None
        if unit_output is not None and (axis := unit_output(self.config)) is not None:
            tensor = of_unit_length(tensor, axis)
        if (factor := self.factors.get(split_layer(name)[1])) is not None:
            tensor = multiplied(tensor, factor)
        shift = self.architecture.layout.norm_shift if name.endswith("norm.weight") else 0.0
        return of_values(tensor, lambda values: values + np.float32(shift)) if shift else tensor

    @cached_property
    def factors(self) -> Mapping[str, float | F32]:
        """What tensors are multiplied by, by GGUF's name without that of the layer."""
        factors = self.architecture.layout.factors
        return {} if factors is None else factors(self.config)

    def _stored(self, name: str, want: Shape) -> LazyTensor | None:
        """The tensor called `name`; None where the checkpoint has nothing for it.

        want  its shape, where that says which part of another it is
        """
        if name in self.found.experts:
            return self._of_experts(name, want)
        if name in self.found.halves:
            return self._of_half(name, want)
        if name in self.found.single:
            return self._of_single(name, want)
        return None

    def _of_experts(self, name: str, want: Shape) -> LazyTensor:
        """A tensor that the checkpoint has in parts, one an expert: these stacked."""
        parts = self.found.experts[name]
        rows = [parts[i] for i in range(want[0]) if i in parts]
        if len(rows) < want[0] or len(parts) > want[0]:
            what = "experts" if "exps." in name else "parts"
            raise self._fault(name, f"has {what} {_first_of(sorted(parts))}", f"0 to {want[0] - 1}")
        if len({(t.format, t.shape) for t in rows}) > 1:
            raise self._fault(name, "has experts of different shapes or types", "one shape and type")
        if rows[0].format.per_row:
            grouped = [in_groups(row) for row in rows]
            rows = [row for row in grouped if row is not None]
            if len(rows) < len(grouped):
                raise self._fault(name, f"has experts with rows of {want[-1]} values", "multiples of 32")
        if name.endswith((".scale", ".input_scale")):  # one number for each expert
            factors = self.found.single.get(name)  # Gemma 4 multiplies each expert by a number of its own
            return _source(name, rows[0].format, (len(rows),), lambda: _times(_row(stacked(rows)), factors))
        readable = [row.parts for row in rows if row.parts is not None]
        stack = (lambda: Stack([one() for one in readable], name)) if len(readable) == len(rows) else None
        return _source(name, rows[0].format, (len(rows), *rows[0].shape), lambda: stacked(rows), stack)

    def _of_half(self, name: str, want: Shape) -> LazyTensor:
        """A tensor that the checkpoint has joined with another one: its part."""
        both, which = self.found.halves[name]
        if (remade := self.architecture.layout.converted(name, both, self.hp)) is not both:
            return _source(name, remade.format, remade.shape, remade.load)
        if is_of_heads(name):
            part, allowed = part_of_heads(both, name, want), f"what {list(want)} is a part of"
        else:
            rows_of_both = (*want[:-2], 2 * want[-2], want[-1]) if len(want) > 1 else want
            columns = columns_of(self.architecture.layout.columns, both.shape, rows_of_both)
            part, allowed = half(both, which, columns), "floats of both"
        if part is None:
            raise self._fault(name, f"has shape {list(both.shape)} for two tensors", allowed)
        return _source(name, *part)

    def _of_single(self, name: str, want: Shape) -> LazyTensor:
        """A tensor that the checkpoint has by itself: stacked experts as rows, q and k in the order of rope."""
        tensor = self.architecture.layout.converted(name, self.found.single[name], self.hp)
        lies = self.architecture.layout.columns
        if name.endswith("_exps.weight"):
            if lies == "in one":
                one = apart(tensor, want, columns=name.endswith("down_exps.weight"))
                if one is None:
                    problem = f"has shape {list(tensor.shape)}"
                    raise self._fault(name, problem, f"floats of all experts, {list(want)}")
                return _source(name, tensor.format, *one)
            if columns_of(lies, tensor.shape, want) and len(tensor.shape) == 3 and tensor.format.is_float:
                return _source(name, tensor.format, *transposed(tensor))
        if name.endswith(VECTORS):
            return _source(name, tensor.format, tensor.shape[-1:], lambda: _row(tensor.load()))
        ordered = in_order(name, tensor, self.hp, self.architecture)
        return _source(name, ordered.format, ordered.shape, ordered.load, ordered.parts)

    def _fault(self, name: str, problem: str, allowed: str | None) -> ModelError:
        return _fault(self.checkpoint, name, problem, allowed)


def in_order(name: str, tensor: LazyTensor, hp: Hyperparams, architecture: Architecture) -> LazyTensor:
    """The tensor `name` with its rows, or values of a bias, where rope on neighbours wants those of q or k."""
    layer, part = split_layer(name)
    heads = 0 if layer is None else hp.rope_heads(layer).get(part.rpartition(".")[0], 0)
    reordered = architecture.layout.permuted and name.endswith((".weight", ".bias"))
    if not (reordered and hp.rope.interleaved and heads and tensor.shape[0] % (2 * heads) == 0):
        return tensor
    return rows_moved(tensor, lambda rows: neighbouring(rows, heads))


def _times(scales: QTensor, others: LazyTensor | None) -> QTensor:
    """Scales of experts, each times its other one."""
    if others is None:
        return scales
    return f32_tensor(dequantize(scales) * dequantize(others.load()), scales.name)


def _row(tensor: QTensor) -> QTensor:
    """A matrix of one row, or of one column, as a vector."""
    return QTensor(tensor.format, (tensor.size,), tensor.data.reshape(-1))


def _source(
    name: str, fmt: BlockFormat, shape: tuple[int, ...], load: Callable[[], QTensor],
    parts: Callable[[], QTensor] | None = None,
) -> LazyTensor:
    if len(shape) > 1 and not name.endswith(("ffn_gate_inp.weight", "lerp_fused.weight", ".bias")):
        return LazyTensor(name, fmt, shape, lambda: _named(load(), name), parts=parts)
    return LazyTensor(name, by_name("F32"), shape, lambda: f32_tensor(dequantize(load()), name))


def _named(tensor: QTensor, name: str) -> QTensor:
    return QTensor(tensor.format, tensor.shape, tensor.data, name)


def _without_rows(tensor: LazyTensor, count: int) -> LazyTensor:
    """A matrix without its first rows."""
    if not count or len(tensor.shape) != 2 or tensor.shape[0] <= count:
        return tensor
    return rows_moved(tensor, lambda rows: rows[count:], tensor.shape[0] - count)


def _constant(name: str, values: F32) -> LazyTensor:
    plain = by_name("F32")
    return LazyTensor(name, plain, values.shape, lambda: quantize_reference(values, plain, name))


def _refuse_others(checkpoint: Checkpoint, found: FoundTensors, expected: Mapping[str, object]) -> None:
    others = [name for names in (found.single, found.experts, found.halves) for name in names if name not in expected]
    if others:
        outside = not others[0].startswith("blk.") and others[0] in found.single
        first = found.single[others[0]].name if outside else others[0]  # outside of layers as the checkpoint names it
        more = f", nor are {len(others) - 1} others" if len(others) > 1 else ""
        raise _fault(checkpoint, first, f"is not part of this architecture{more}", None)


def _first_of(numbers: list[int]) -> str:
    first = ", ".join(map(str, numbers[:4]))
    return first if len(numbers) <= 4 else f"{first}, ... ({len(numbers)})"


def _fault(checkpoint: Checkpoint, name: str, problem: str, allowed: str | None) -> ModelError:
    return ModelError(problem, file=checkpoint.folder, field=f"tensor {shown(name)}", allowed=allowed)
